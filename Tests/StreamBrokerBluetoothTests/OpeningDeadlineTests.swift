// Each step of an opening ends, whatever hangs. Uses a manual clock, in the test's own thread.

import Dispatch
import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import StreamBrokerBluetooth

@Suite("The steps of an opening", .timeLimit(.minutes(5)))
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

  /// Runs the poller until the device has received an answer.
  private func answer(to device: Device) -> [UInt8]? {
    for _ in 0..<1000 {
      if let message = device.handle() { return message }
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
    pass(AdapterStep.timeout - .seconds(1))
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
    #expect(device.handle() == ManagementCommand.list.encoded)
    try device.say([1, 0, 0xFF, 0xFF, 7, 0, 3, 0, 0, 1, 0, 0, 0])
    #expect(answer(to: device) == ManagementCommand.ask(0).encoded)
    let isOn: [UInt8] = [1, 2, 0, 0]
    let adapter = [1, 0, 0, 0, 0, 0, 9, 0xFF, 0xFF] + isOn + isOn + [0, 0, 0]
    try device.say([1, 0, 0, 0, UInt8(3 + adapter.count), 0, 4, 0, 0] + adapter)
    step.readAll()
    pass(AdapterFlow.timeout)
    #expect(failure == nil)
    pass(AdapterStep.timeout)
    #expect(failure.map { "\($0)".contains("load the bonds") } == true)
    step.close()
  }

  @Test("give up a socket that is never made")
  func socket() throws {
    let queue = DeviceQueue.of("OpeningDeadlineTests.socket")
    queue.queue.suspend()
    defer { queue.queue.resume() }
    let flow = ConnectFlow(Keys.lamp, on: 0, timeout: .seconds(3))
    let step = ConnectStep(flow, on: poller, via: queue)
    var failure: OpenFailure?
    step.start("x", { .failure(OpenFailure("nobody hears of this", nil)) }, dialling: { _ in true }) {
      if case .failure(.unmade(let why)) = $0 { failure = why }
    }
    pass(AdapterStep.timeout - .seconds(1))
    #expect(failure == nil)
    pass(.seconds(1))
    #expect(failure?.cause?.errno == ETIMEDOUT)
  }

  @Test(
    "connect again where an earlier channel may just be ending: for two seconds if it is busy, three times after a reset",
    arguments: [
      (EBUSY, 3, true), (EBUSY, .max, false), (ECONNRESET, 4, true), (ECONNRESET, .max, false), (EHOSTDOWN, 2, false),
    ])
  func earlierChannel(number: Int32, good: Int, connects: Bool) async throws {
    let (outcome, dials, time) = try await onLane { lane in
      let flow = ConnectFlow(Keys.lamp, on: 0, timeout: .seconds(30))
      let step = ConnectStep(flow, on: lane.poller)
      var (dials, outcome) = (0, "")
      let (start, isOver) = (ContinuousClock.now, Gate())
      step.start(
        "x",
        {
          do { return .success(try Device.pair().0) } catch { return .failure(OpenFailure("make a pair", nil)) }
        },
        dialling: { _ throws(SystemError) in
          dials += 1
          guard dials < good else { return true }
          throw SystemError("connect", number)
        }
      ) {
        switch $0 {
        case .success: outcome = "connected"
        case .failure(.fault(.system(let error))): outcome = "\(error.errno)"
        case .failure(let failure): outcome = "\(failure)"
        }
        isOver.open()
      }
      await isOver.wait(on: lane)
      return (outcome, dials, start.duration(to: .now))
    }
    #expect(outcome == (connects ? "connected" : "\(number)"))
    switch (number, connects) {
    case (_, true): #expect(dials == good)
    case (ECONNRESET, _): #expect(dials == 1 + ConnectStep.mostResets)
    case (EBUSY, _): #expect(dials > 3 && time >= ConnectStep.busyPatience)
    default: #expect(dials == 1)
    }
  }

  @Test("end an attribute look-up in which the device keeps sending requests, each within the answer timeout")
  func endlessAttributes() throws {
    let (parcel, device) = try Device.pair()
    defer { device.hangUp() }
    var failure: GATTExchange.Failure?
    let lookUp = GATTLookUp(GATTWish(service: BluetoothUUID(0xFFE0)))
    let conversation = GATTExchange(parcel, lookUp, on: poller) { result in
      if case .failure(let why) = result { failure = why }
    }
    conversation.start(awaiting: nil)
    #expect(device.handle() == lookUp.firstRequest)
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

  @Test("end a channel look-up whose answer comes in pieces, each within the answer timeout")
  func endlessPieces() throws {
    let (parcel, device) = try Device.pair()
    defer { device.hangUp() }
    var failure: SDPExchange.Failure?
    let conversation = SDPExchange(parcel, ChannelLookUp(BluetoothUUID(0x1101)), on: poller) { result in
      if case .failure(let why) = result { failure = why }
    }
    conversation.start()
    #expect(device.handle() != nil)
    for transaction in 1...7 as ClosedRange<UInt16> {
      try device.say(ChannelLookUpTests.answer(transaction, [0x35], continuation: [1]))
      #expect(answer(to: device) != nil)
      #expect(failure == nil)
      pass(.milliseconds(4400))
    }
    #expect(failure == .endless)
    conversation.cancel()
  }

  @Test("keep the answering objects with the stream until it is closed")
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

  @Test("without an adapter are woken by one that appeared before the watch, and others are not")
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
      let question = device.handle()
      #expect(question == (cause == lacks ? ManagementCommand.list.encoded : nil))
      if question != nil {
        try device.say([1, 0, 0xFF, 0xFF, isThere ? 7 : 5, 0, 3, 0, 0, isThere ? 1 : 0, 0] + (isThere ? [0, 0] : []))
      }
      // A later event whose effect shows that the earlier message was read.
      try device.say([4, 0, 1, 0, 0, 0])
      for _ in 0..<1000 where changes < news + 1 { _ = poller.turn(waiting: 10) }
      #expect(changes == news + 1)
      watch.cancel()
      device.hangUp()
    }
  }
}
