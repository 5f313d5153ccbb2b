// Flows of the management channel: which adapter to use, what to switch on, and which of the devices found is the
// wanted one.

import ByteStreams
import StreamBroker
import Testing

@testable import StreamBrokerBluetooth

/// The kernel's events as bytes.
enum Kernel {
  static func event(_ code: UInt16, _ adapter: UInt16, _ parameters: [UInt8]) -> ManagementEvent? {
    ManagementEvent([code, adapter, UInt16(parameters.count)].flatMap(LittleEndian.bytes) + parameters)
  }
  static func answer(
    _ command: ManagementCommand.Code, _ adapter: UInt16, _ content: [UInt8] = [], status: UInt8 = 0
  ) -> ManagementEvent? {
    event(status == 0 ? 1 : 2, adapter, LittleEndian.bytes(command.rawValue) + [status] + content)
  }
  static func list(_ indexes: UInt16...) -> ManagementEvent? {
    answer(.indexList, 0xFFFF, ([UInt16(indexes.count)] + indexes).flatMap(LittleEndian.bytes))
  }
  /// hciN has the address 00:…:0N. Settings: bit 0 is power, bit 7 BR/EDR, bit 9 LE.
  static func information(
    _ adapter: UInt16, hasLE: Bool = true, isOn: Bool, speaksLE: Bool, speaksClassic: Bool = false
  ) -> ManagementEvent? {
    let now: UInt8 = (isOn ? 1 : 0) | (speaksClassic ? 0x80 : 0)
    let settings: [UInt8] = [1, hasLE ? 2 : 0, 0, 0, now, speaksLE ? 2 : 0, 0, 0]
    return answer(.information, adapter, [UInt8(adapter), 0, 0, 0, 0, 0, 9, 0xFF, 0xFF] + settings + [0, 0, 0])
  }
  static func found(
    _ adapter: UInt16, _ last: UInt8, kind: UInt8 = 2, _ advertised: [[UInt8]]
  ) -> ManagementEvent? {
    let data = advertised.flatMap { [UInt8($0.count)] + $0 }
    return event(
      0x12, adapter, [last, 0, 0, 0, 0, 0xC0, kind, 0xC4, 0, 0, 0, 0] + LittleEndian.bytes(UInt16(data.count)) + data)
  }
}

@Suite("An adapter that speaks Low Energy")
struct AdapterFlowTests {
  /// The steps that follow the events, without `.wait`.
  private func play(_ wanted: String? = nil, _ events: ManagementEvent?...) -> [AdapterFlow.Step] {
    var flow = AdapterFlow(wanted)
    return events.map { $0.map { flow.handle($0) } ?? .giveUp(.isGone("an event that is none")) }.filter { $0 != .wait }
  }

  private func index(_ step: AdapterFlow.Step?) -> UInt16? {
    if case .ready(let adapter) = step { adapter.index } else { nil }
  }

  @Test("is chosen by name")
  func asks() {
    #expect(AdapterFlow(nil).firstCommand.encoded == [3, 0, 0xFF, 0xFF, 0, 0])
    let steps = play(nil, Kernel.list(1, 0), Kernel.information(0, isOn: true, speaksLE: true))
    #expect(steps == [.send(.ask(0)), .send(.ask(1))])
    #expect(ManagementCommand.turnOn(.setPowered, of: 2).encoded == [5, 0, 2, 0, 1, 0, 1])
  }

  @Test("is used unchanged when it is ready; the first that is on")
  func ready() {
    let off = Kernel.information(0, isOn: false, speaksLE: true)
    let on = Kernel.information(1, isOn: true, speaksLE: true)
    #expect(index(play(nil, Kernel.list(0, 1), off, on).last) == 1)
    #expect(
      play(nil, Kernel.list(0, 1), off, Kernel.answer(.information, 1, status: 0x11)).last
        == .send(.turnOn(.setPowered, of: 0)))
    #expect(index(play("hci1", Kernel.list(0, 1), off, on).last) == 1)
    #expect(index(play("00:00:00:00:00:01", Kernel.list(0, 1), off, on).last) == 1)
  }

  @Test("is switched on, Low Energy first")
  func switchedOn() {
    let steps = play(
      nil, Kernel.list(0), Kernel.information(0, isOn: false, speaksLE: false), Kernel.answer(.setLE, 0, [0, 2, 0, 0]),
      Kernel.answer(.setLE, 0, [0, 2, 0, 0]), Kernel.answer(.setPowered, 0, [1, 2, 0, 0]))
    #expect(steps.dropLast() == [.send(.ask(0)), .send(.turnOn(.setLE, of: 0)), .send(.turnOn(.setPowered, of: 0))])
    #expect(index(steps.last) == 0)
    let ready = play(nil, Kernel.list(0), Kernel.information(0, isOn: true, speaksLE: false), Kernel.answer(.setLE, 0))
    #expect(index(ready.last) == 0)
  }

  @Test("is checked again when another program is switching it")
  func busy() throws {
    var flow = AdapterFlow(nil)
    let off = Kernel.information(0, isOn: false, speaksLE: true)
    for event in [Kernel.list(0), off] { _ = flow.handle(try #require(event)) }
    let busy = try #require(Kernel.answer(.setPowered, 0, status: ManagementStatus.busy))
    #expect(flow.handle(busy) == .retryLater)
    #expect(flow.handleRetry() == .send(.ask(0)))
    var gone = flow
    #expect(gone.handle(try #require(Kernel.answer(.information, 0, status: 0x11))) == .giveUp(.isGone("hci0")))
    var hanging = flow
    #expect(hanging.handleTimeout() == .giveUp(.isBusy("hci0")))
    #expect(index(flow.handle(try #require(Kernel.information(0, isOn: true, speaksLE: true)))) == 0)
    #expect(flow.handleRetry() == .wait)
  }

  @Test("is missing, with the reason")
  func missing() {
    let off = Kernel.information(0, isOn: false, speaksLE: true)
    let dumb = Kernel.information(0, isOn: true, speaksLE: false)
    #expect(play(nil, Kernel.list()) == [.giveUp(.none)])
    #expect(play(nil, Kernel.list(0), Kernel.answer(.information, 0, status: 0x11)).last == .giveUp(.none))
    #expect(
      play(nil, Kernel.list(0), Kernel.information(0, hasLE: false, isOn: true, speaksLE: false)).last
        == .giveUp(.noLE("hci0")))
    guard case .giveUp(.noSuch("hci7", others: let others)) = play("hci7", Kernel.list(0), off).last else {
      Issue.record("taken")
      return
    }
    #expect(others.map(\.description) == ["hci0 (00:00:00:00:00:00)"])
    #expect(
      play(nil, Kernel.list(0), off, Kernel.answer(.setPowered, 0, status: 0x14)).last
        == .giveUp(.mayNot("hci0", isOff: true)))
    #expect(
      play(nil, Kernel.list(0), dumb, Kernel.answer(.setLE, 0, status: 0x14)).last
        == .giveUp(.mayNot("hci0", isOff: false)))
    for status in [0x03, 0x12] as [UInt8] {
      #expect(
        play(nil, Kernel.list(0), off, Kernel.answer(.setPowered, 0, status: status)).last
          == .giveUp(.isBlocked("hci0")))
    }
    #expect(
      play(nil, Kernel.list(0), off, Kernel.answer(.setPowered, 0, status: 0x0B)).last
        == .giveUp(.refused("hci0", status: 0x0B)))
    #expect(play(nil, Kernel.list(0), off, Kernel.event(5, 0, [])).last == .giveUp(.isGone("hci0")))
    #expect(play(nil, Kernel.list(0), off, Kernel.event(5, 1, [])).last == .send(.turnOn(.setPowered, of: 0)))
  }

  @Test("gets no message about waiting, because a single opening does not wait")
  func promisesNothing() {
    #expect(AdapterFlow.Fault.none.advice == "this machine has no Bluetooth adapter")
    #expect(AdapterFlow.Fault.isGone("hci0").advice == "the adapter hci0 was just removed")
    #expect(ScanFlow.Fault.isGone.advice == "the adapter was just removed")
    #expect(ConnectFlow.Fault.adapterIsGone.failure("x").advice == "the adapter was just removed")
  }

  @Test("is switched on for Bluetooth Classic in the same way")
  func classic() {
    func play(_ events: ManagementEvent?...) -> [AdapterFlow.Step] {
      var flow = AdapterFlow(nil, need: .classic)
      return events.map { $0.map { flow.handle($0) } ?? .giveUp(.none) }.filter { $0 != .wait }
    }
    let off = Kernel.information(0, hasLE: false, isOn: false, speaksLE: false, speaksClassic: true)
    let steps = play(Kernel.list(0), off, Kernel.answer(.setPowered, 0, [1, 0, 0, 0]))
    #expect(steps.dropLast() == [.send(.ask(0)), .send(.turnOn(.setPowered, of: 0))])
    #expect(index(steps.last) == 0)
    let other = Kernel.information(1, isOn: true, speaksLE: true)
    #expect(play(Kernel.list(0, 1), off, other).last == .send(.turnOn(.setPowered, of: 0)))
    #expect(play(Kernel.list(1), other).last == .giveUp(.noClassic("hci1")))
  }

  @Test("gives up once when the kernel does not answer")
  func silent() throws {
    var flow = AdapterFlow(nil)
    #expect(flow.handleTimeout() == .giveUp(.silent))
    #expect(flow.handleTimeout() == .wait)
    #expect(flow.handle(try #require(Kernel.list(0))) == .wait)
  }

  @Test("asks whether to pair, and gets an answer")
  func pairing() {
    let place: [UInt8] = [5, 0, 0, 0, 0, 0xC0, 2]
    let device = PairedAddress(BluetoothAddress([0xC0, 0, 0, 0, 0, 5]), .leRandom)
    let event = Kernel.event(0x0F, 1, place + [1, 0, 0, 0, 0])
    #expect(event?.content == .asksToPair(device, justWorks: true))
    #expect(
      Kernel.event(0x0F, 1, place + [0, 1, 2, 3, 0])?.content == .asksToPair(device, justWorks: false))
    #expect(
      Kernel.event(0x0F, 1, [5, 0, 0, 0, 0, 0xC0, 0, 1, 0, 0, 0, 0])?.content
        == .asksToPair(PairedAddress(device.address, .classic), justWorks: true))
    #expect(Kernel.event(0x0F, 1, [5, 0, 0, 0, 0, 0xC0, 3, 1, 0, 0, 0, 0]) == nil)
    #expect(Kernel.event(0x0F, 1, place) == nil)
    #expect(ManagementCommand.confirm(device, 1).encoded == [0x1C, 0, 1, 0, 7, 0] + place)
  }

  @Test("ignores events that are cut off, late, or of another adapter")
  func hostile() {
    #expect(ManagementEvent([]) == nil)
    #expect(ManagementEvent([1, 0, 0, 0, 1, 0, 3]) == nil)
    #expect(ManagementEvent([1, 0, 0, 0, 2, 0, 3]) == nil)
    #expect(ManagementEvent([0x12, 0, 0, 0, 2, 0, 3, 0]) == nil)
    #expect(ManagementEvent([0x13, 0, 0, 0, 1, 0, 3]) == nil)
    #expect(play(nil, Kernel.answer(.indexList, 0xFFFF, [9, 0, 1, 0])) == [.giveUp(.none)])
    let other = play(
      nil, Kernel.list(0), Kernel.answer(.setPowered, 0), Kernel.information(3, isOn: true, speaksLE: true))
    #expect(other == [.send(.ask(0))])
    #expect(play(nil, Kernel.list(0), Kernel.answer(.information, 0, [1, 2, 3])).last == .giveUp(.none))
  }
}

@Suite("A scan")
struct ScanFlowTests {
  private static let name: [UInt8] = [9] + Array("HMSoft".utf8)
  private static let service: [UInt8] = [3, 0x0A, 0x18, 0xE0, 0xFF]
  private static let long: [UInt8] = [7] + (BluetoothUUID("6E400001-B5A3-F393-E0A9-E50E24DCCA9E")?.attribute ?? [])

  private func flow(_ uuid: String = "FFE0", name: String? = nil, address: String? = nil) -> ScanFlow {
    let service = BluetoothUUID(uuid) ?? BluetoothUUID(0)
    return ScanFlow(
      ScanFlow.Wish(service: service, name: name, address: address.flatMap { BluetoothAddress($0) }), on: 0)
  }

  private func handle(_ flow: inout ScanFlow, _ event: ManagementEvent?) -> ScanFlow.Step {
    event.map { flow.handle($0) } ?? .giveUp(.isGone)
  }

  private func finds(_ flow: ScanFlow, _ advertised: [[UInt8]]) -> Bool {
    var flow = flow
    _ = handle(&flow, Kernel.answer(.startDiscovery, 0, [6]))
    if case .found = handle(&flow, Kernel.found(0, 5, advertised)) { return true }
    return false
  }

  @Test("finds by service, by name, by address")
  func fits() {
    #expect(finds(flow(), [[1, 6], Self.service]))
    #expect(finds(flow("180A"), [Self.service]))
    #expect(!finds(flow("FFE1"), [Self.service, Self.name]))
    #expect(finds(flow("6E400001-B5A3-F393-E0A9-E50E24DCCA9E"), [Self.long]))
    #expect(finds(flow("FFF0", name: "HMSoft"), [Self.service, Self.name]))
    #expect(!finds(flow(name: "HMSoft2"), [Self.service, Self.name]))
    #expect(finds(flow("FFF0", address: "C0:00:00:00:00:05"), []))
    #expect(!finds(flow(address: "C0:00:00:00:00:06"), [Self.service]))
    #expect(!finds(flow(), [[3, 0xE0]]))
    #expect(!finds(flow(), [[0x03]]))
    var classic = flow()
    #expect(handle(&classic, Kernel.found(0, 5, kind: 0, [Self.service])) == .wait)
  }

  @Test("finds by the beginning of a name, which ends in '*'; elsewhere '*' is an ordinary character")
  func beginnings() {
    func finds(_ wanted: String, _ advertised: String) -> Bool {
      self.finds(flow(name: wanted), [[9] + Array(advertised.utf8)])
    }
    #expect(finds("GoPro*", "GoPro 1234") && finds("GoPro*", "GoPro"))
    #expect(!finds("GoPro*", "My GoPro 1234") && !finds("GoPro*", "GoPr") && !finds("GoPro*", "gopro 1"))
    #expect(!finds("GoPro", "GoPro 1234"))
    #expect(finds("a*b", "a*b") && !finds("a*b", "axb") && finds("*b*", "*b1") && !finds("*b*", "ab1"))
    #expect(finds("Bü*", "Büro") && !finds("Bu*", "Büro"))
    // A name that itself ends in '*' is found, as others that begin so.
    #expect(finds("a*", "a*") && finds("a*", "ab"))
    #expect(!self.finds(flow(name: "GoPro*"), [Self.service]))  // no name
  }

  @Test("names what it looks for")
  func wishes() {
    #expect("\(flow(name: "GoPro*").wish)" == "a device whose name begins with 'GoPro'")
    #expect("\(flow(name: "Go*Pro").wish)" == "a device named 'Go*Pro'")
  }

  @Test("reports the address and its kind, and ends the scan it began")
  func found() {
    var flow = flow()
    #expect(flow.firstCommand.encoded == [0x23, 0, 0, 0, 1, 0, 6])
    #expect(handle(&flow, Kernel.answer(.startDiscovery, 0, [6])) == .wait)
    #expect(handle(&flow, Kernel.found(1, 5, [Self.service])) == .wait)  // of another adapter
    guard case .found(let device, let ending) = handle(&flow, Kernel.found(0, 5, kind: 1, [Self.service, Self.name]))
    else {
      Issue.record("not found")
      return
    }
    #expect(device.device.description == "C0:00:00:00:00:05" && !device.device.isRandom)
    #expect(device.name == "HMSoft" && device.strength == -60)
    #expect(ending?.encoded == [0x24, 0, 0, 0, 1, 0, 6])
    #expect(handle(&flow, Kernel.found(0, 5, [Self.service])) == .wait)
  }

  @Test("uses another program's scan without ending it, and begins its own afterwards")
  func busy() {
    var flow = flow()
    #expect(handle(&flow, Kernel.answer(.startDiscovery, 0, status: 0x0A)) == .retryLater)
    #expect(flow.ending == nil)
    #expect(flow.handleRetry() == .send(flow.firstCommand))
    #expect(handle(&flow, Kernel.answer(.startDiscovery, 0, [6])) == .wait)
    #expect(flow.handleRetry() == .wait)
    #expect(handle(&flow, Kernel.event(0x13, 0, [6, 0])) == .send(flow.firstCommand))
    #expect(flow.ending == nil)
    var other = self.flow()
    _ = handle(&other, Kernel.answer(.startDiscovery, 0, status: 0x0A))
    guard case .found(_, nil) = handle(&other, Kernel.found(0, 5, [Self.service])) else {
      Issue.record("not found, or ended")
      return
    }
  }

  @Test("is refused, and reports the reason")
  func refused() {
    #expect(ScanFlow.Fault.mayNot.cause?.name == "EPERM")  // exit codes depend on it
    for (status, fault) in [(0x14, .mayNot), (0x0F, .isOff), (0x0D, .refused(status: 0x0D))]
      as [(UInt8, ScanFlow.Fault)]
    {
      var flow = flow()
      #expect(handle(&flow, Kernel.answer(.startDiscovery, 0, status: status)) == .giveUp(fault))
      #expect(handle(&flow, Kernel.found(0, 5, [Self.service])) == .wait)
    }
    var flow = flow()
    #expect(handle(&flow, Kernel.event(5, 0, [])) == .giveUp(.isGone))
  }
}
