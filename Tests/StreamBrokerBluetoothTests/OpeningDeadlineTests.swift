// That each step of an opening ends, whatever hangs: on a clock turned by hand, in the test's own thread.

import Dispatch
import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import StreamBrokerBluetooth

@Suite("The steps of an opening", .timeLimit(.minutes(1)))
struct OpeningDeadlineTests {
  private typealias Device = GATTStreamTests.Device

  private final class Hanging: Opening {
    private(set) var isCancelled = false
    func cancel() { isCancelled = true }
  }

  private let clock = ManualClock()
  private let poller: Poller

  init() throws {
    let clock = clock.clock
    poller = try Poller(clock: clock) { _ in }
  }

  private func pass(_ time: Duration) {
    clock.advance(by: time)
    poller.timers.fireDue()
  }

  /// Lets the poller hear until the device has an answer.
  private func answer(to device: Device) -> [UInt8]? {
    for _ in 0..<1000 {
      if let message = device.hear() { return message }
      _ = poller.turn(waiting: 10)
    }
    return nil
  }

  @Test("give up a management channel that is never made")
  func management() throws {
    let making = Hanging()
    var failure: OpenFailure?
    let step = AdapterStep(AdapterFlow(nil), bonds: nil, on: poller, making: { _, _ in making }) { _ in
    } failed: {
      failure = $0
    }
    step.start { _ in }
    pass(AdapterStep.patience - .seconds(1))
    #expect(failure == nil && !making.isCancelled)
    pass(.seconds(1))
    #expect(failure?.cause?.errno == ETIMEDOUT && making.isCancelled)
    step.close()
  }

  @Test("give up a keeper of bonds that hangs")
  func keeper() throws {
    let queue = DeviceQueue.of("OpeningDeadlineTests.keeper")
    queue.queue.suspend()
    defer { queue.queue.resume() }
    let (parcel, device) = try Device.pair()
    defer { device.hangUp() }
    let keeper = BondKeeper(path: "/nowhere/bonds", kernel: BondKeeper.Kernel(), via: queue) { _ in }
    var made: ((Result<DescriptorParcel, OpenFailure>) -> Void)?
    var failure: OpenFailure?
    let step = AdapterStep(
      AdapterFlow(nil), bonds: keeper, on: poller,
      making: { _, done in
        made = done
        return Hanging()
      }
    ) { _ in
    } failed: {
      failure = $0
    }
    step.start { _ in }
    made?(.success(parcel))
    #expect(device.hear() == ManagementCommand.list.encoded)
    try device.say([1, 0, 0xFF, 0xFF, 7, 0, 3, 0, 0, 1, 0, 0, 0])
    #expect(answer(to: device) == ManagementCommand.ask(0).encoded)
    let isOn: [UInt8] = [1, 2, 0, 0]
    let adapter = [1, 0, 0, 0, 0, 0, 9, 0xFF, 0xFF] + isOn + isOn + [0, 0, 0]
    try device.say([1, 0, 0, 0, UInt8(3 + adapter.count), 0, 4, 0, 0] + adapter)
    step.readAll()
    pass(AdapterFlow.patience)
    #expect(failure == nil)
    pass(AdapterStep.patience)
    #expect(failure.map { "\($0)".contains("load the bonds") } == true)
    step.close()
  }

  @Test("give up a socket that is never made")
  func socket() throws {
    let queue = DeviceQueue.of("OpeningDeadlineTests.socket")
    queue.queue.suspend()
    defer { queue.queue.resume() }
    let flow = ConnectFlow(Keys.lamp, on: 0, patience: .seconds(3))
    let step = ConnectStep(flow, on: poller, via: queue)
    var failure: OpenFailure?
    step.start("x", { .failure(OpenFailure("nobody hears of this", nil)) }, dialling: { _ in true }) {
      if case .failure(.unmade(let why)) = $0 { failure = why }
    }
    pass(AdapterStep.patience - .seconds(1))
    #expect(failure == nil)
    pass(.seconds(1))
    #expect(failure?.cause?.errno == ETIMEDOUT)
  }

  @Test("end a look-up of attributes in which the device goes on asking, each time within the time for an answer")
  func endlessAttributes() throws {
    let (parcel, device) = try Device.pair()
    defer { device.hangUp() }
    var failure: GATTConversation.Failure?
    let lookUp = GATTLookUp(GATTWish(service: BluetoothUUID(0xFFE0)))
    let conversation = GATTConversation(parcel, lookUp, on: poller) { result in
      if case .failure(let why) = result { failure = why }
    }
    conversation.start(awaiting: nil)
    #expect(device.hear() == lookUp.firstRequest)
    for _ in 0..<3 {
      try device.say([0x02, 0xF7, 0x00])
      #expect(answer(to: device)?.first == 0x03)
      pass(.seconds(9))
      #expect(failure == nil)
    }
    try device.say([0x02, 0xF7, 0x00])
    #expect(answer(to: device)?.first == 0x03)
    pass(.seconds(3))
    #expect(failure == .endless)
    conversation.cancel()
  }

  @Test("end a look-up of a channel that comes in pieces, each within the time for an answer")
  func endlessPieces() throws {
    let (parcel, device) = try Device.pair()
    defer { device.hangUp() }
    var failure: SDPConversation.Failure?
    let conversation = SDPConversation(parcel, ChannelLookUp(BluetoothUUID(0x1101)), on: poller) { result in
      if case .failure(let why) = result { failure = why }
    }
    conversation.start()
    #expect(device.hear() != nil)
    for transaction in 1...7 as ClosedRange<UInt16> {
      try device.say(ChannelLookUpTests.answer(transaction, [0x35], continuation: [1]))
      #expect(answer(to: device) != nil)
      #expect(failure == nil)
      pass(.milliseconds(4400))
    }
    #expect(failure == .endless)
    conversation.cancel()
  }

  @Test("leave what answers with the stream until that is closed")
  func afterwards() throws {
    let (parcel, device) = try Device.pair()
    defer { device.hangUp() }
    guard let descriptor = parcel.take() else { throw SystemError("socketpair", EBADF) }
    let stream = BluetoothStream(descriptor, isLE: true, on: poller)
    var closings = 0
    stream.socket.whenClosed = { closings += 1 }
    #expect(closings == 0)
    stream.close()
    stream.close()
    #expect(closings == 1)
  }

  @Test("that lack an adapter are woken by one that came before anybody watched, and others are not")
  func watch() throws {
    let lacks = SystemError("connect", EHOSTUNREACH)
    for (cause, isThere, news) in [
      (lacks, true, 1), (lacks, false, 0), (SystemError("connect", ECONNRESET), true, 0), (nil, true, 0),
    ] as [(SystemError?, Bool, Int)] {
      let (parcel, device) = try Device.pair()
      var changes = 0
      var made: ((Result<DescriptorParcel, OpenFailure>) -> Void)?
      let watch = AdapterWatch(
        on: poller, after: cause,
        making: { _, done in
          made = done
          return Hanging()
        }, changed: { changes += 1 })
      made?(.success(parcel))
      let question = device.hear()
      #expect(question == (cause == lacks ? ManagementCommand.list.encoded : nil))
      if question != nil {
        try device.say([1, 0, 0xFF, 0xFF, isThere ? 7 : 5, 0, 3, 0, 0, isThere ? 1 : 0, 0] + (isThere ? [0, 0] : []))
      }
      // What it hears behind that tells that it has been heard.
      try device.say([4, 0, 1, 0, 0, 0])
      for _ in 0..<1000 where changes < news + 1 { _ = poller.turn(waiting: 10) }
      #expect(changes == news + 1)
      watch.cancel()
      device.hangUp()
    }
  }
}
