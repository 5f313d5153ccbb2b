// From a service to the handles that carry the bytes: the requests, and the result of each answer.

import Testing

@testable import StreamBrokerBluetooth

/// A device with one service, as the answers of its ATT server at the agreed MTU.
struct PaperDevice {
  struct Value {
    let handle: UInt16
    let uuid: String
    let properties: UInt8
    var switchAt: UInt16?
  }
  var service = "FFE0"
  var range: ClosedRange<UInt16> = 10...30
  var values = [Value(handle: 12, uuid: "FFE1", properties: 0x1C, switchAt: 13)]
  var mtu: Int? = 185
  /// Requests of this opcode are refused with the code, `times` times.
  var refusals: [UInt8: (code: UInt8, times: Int)] = [:]

  static func uuid(_ text: String) -> [UInt8] { BluetoothUUID(text)?.attribute ?? [] }

  mutating func answer(_ request: [UInt8]) -> [UInt8] {
    let opcode = request[0]
    if let refusal = refusals[opcode], refusal.times > 0 {
      refusals[opcode]?.times -= 1
      return [1, opcode, 0, 0, refusal.code]
    }
    switch opcode {
    case 0x02: return mtu.map { [3] + LittleEndian.bytes(UInt16($0)) } ?? [1, 2, 0, 0, 6]
    case 0x06:
      guard Array(request[7...]) == Self.uuid(service) else { return [1, 6, 1, 0, 0x0A] }
      return [7] + LittleEndian.bytes(range.lowerBound) + LittleEndian.bytes(range.upperBound)
    case 0x08:
      let from = LittleEndian.word(request[1...])
      guard let value = values.first(where: { $0.handle - 1 >= from }) else { return [1, 8, 1, 0, 0x0A] }
      let item =
        LittleEndian.bytes(value.handle - 1) + [value.properties] + LittleEndian.bytes(value.handle)
        + Self.uuid(value.uuid)
      return [9, UInt8(item.count)] + item
    case 0x04:
      let range = LittleEndian.word(request[1...])...LittleEndian.word(request[3...])
      guard let found = values.compactMap(\.switchAt).first(where: range.contains) else { return [1, 4, 1, 0, 0x0A] }
      return [5, 1] + LittleEndian.bytes(found) + [0x02, 0x29]
    case 0x12: return [0x13]
    default: return [1, opcode, 0, 0, 6]
    }
  }
}

@Suite("A look-up of a device's serial service")
struct GATTLookUpTests {
  private static func wish(_ service: String = "FFE0", _ profile: GATTProfile = .auto) -> GATTWish {
    GATTWish(service: BluetoothUUID(service) ?? BluetoothUUID(0), profile: profile)
  }

  /// Plays both sides to the end. Returns the last step and all requests.
  private func play(_ wish: GATTWish, _ device: PaperDevice) -> (GATTLookUp.Step, [[UInt8]]) {
    var device = device
    var lookUp = GATTLookUp(wish)
    var requests = [lookUp.firstRequest]
    while requests.count < 100 {
      let step = lookUp.handle(device.answer(requests[requests.count - 1]))
      switch step {
      case .send(let next): requests.append(next)
      case .secure:
        guard case .send(let again) = lookUp.handleSecured() else { return (step, requests) }
        requests.append(again)
      default: return (step, requests)
      }
    }
    return (.wait, requests)
  }

  private static func plan(
    mtu: Int = 185, rx: UInt16 = 12, tx: UInt16 = 12, asks: Bool = false, early: [UInt8] = []
  ) -> GATTLookUp.Step {
    .ready(GATTPlan(mtu: mtu, ourMTU: 517, rx: rx, tx: tx, asksForAnswers: asks, early: early))
  }

  private static let two = [
    PaperDevice.Value(handle: 12, uuid: "FFF2", properties: 0x04),
    PaperDevice.Value(handle: 14, uuid: "FFF1", properties: 0x20, switchAt: 16),
    PaperDevice.Value(handle: 18, uuid: "FFF3", properties: 0x1C, switchAt: 19),
  ]

  @Test("requests MTU, service, characteristics and their CCCD, and writes it")
  func requests() {
    let (step, requests) = play(Self.wish(), PaperDevice())
    #expect(step == Self.plan())
    #expect(
      requests == [
        [0x02, 0x05, 0x02],
        [0x06, 1, 0, 0xFF, 0xFF, 0x00, 0x28, 0xE0, 0xFF],
        [0x08, 10, 0, 30, 0, 0x03, 0x28],
        [0x08, 12, 0, 30, 0, 0x03, 0x28],
        [0x04, 13, 0, 30, 0],
        [0x12, 13, 0, 1, 0],
      ])
  }

  @Test("takes the first notifying and the first writable characteristic, and enables notifications")
  func auto() {
    var device = PaperDevice()
    device.values = Self.two
    let (step, requests) = play(Self.wish(), device)
    #expect(step == Self.plan(rx: 14, tx: 12))
    #expect(requests.last == [0x12, 16, 0, 2, 0])  // indications
    #expect(requests.contains([0x04, 15, 0, 16, 0]))  // not beyond the next declaration
  }

  @Test("takes characteristics by UUID, also of 128 bits")
  func named() {
    var device = PaperDevice(service: "6E400001-B5A3-F393-E0A9-E50E24DCCA9E")
    device.values = [
      .init(handle: 12, uuid: "6E400002-B5A3-F393-E0A9-E50E24DCCA9E", properties: 0x08),
      .init(handle: 14, uuid: "6E400003-B5A3-F393-E0A9-E50E24DCCA9E", properties: 0x10, switchAt: 15),
    ]
    #expect(
      play(Self.wish(device.service, GATTProfile("nus") ?? .auto), device).0 == Self.plan(rx: 14, tx: 12, asks: true))
    device = PaperDevice(service: "FFF0")
    device.values = Self.two
    #expect(play(Self.wish("FFF0", GATTProfile("fff0") ?? .auto), device).0 == Self.plan(rx: 14, tx: 12))
  }

  @Test(
    "agrees on an MTU that both support",
    arguments: [(nil, 23), (5, 23), (23, 23), (247, 247), (517, 517), (65535, 517)])
  func mtu(theirs: Int?, agreed: Int) {
    var device = PaperDevice()
    device.mtu = theirs
    #expect(play(Self.wish(), device).0 == Self.plan(mtu: agreed))
  }

  @Test("reports what is missing")
  func missing() {
    var device = PaperDevice()
    #expect(play(Self.wish("FFF0"), device).0 == .giveUp(.noSuchService(BluetoothUUID(0xFFF0))))
    #expect(play(Self.wish("FFE0", GATTProfile("fff0") ?? .auto), device).0 == .giveUp(.missing(BluetoothUUID(0xFFF1))))
    device.values = [.init(handle: 12, uuid: "FFE1", properties: 0x0C)]
    #expect(play(Self.wish(), device).0 == .giveUp(.noNotifier))
    #expect(play(Self.wish("FFE0", GATTProfile("hm10") ?? .auto), device).0 == .giveUp(.silent(BluetoothUUID(0xFFE1))))
    device.values = [.init(handle: 12, uuid: "FFE1", properties: 0x10)]
    #expect(play(Self.wish(), device).0 == .giveUp(.nothingToWrite))
    device.values = [.init(handle: 12, uuid: "FFE1", properties: 0x1C)]
    #expect(play(Self.wish(), device).0 == .giveUp(.noSwitch))
  }

  @Test("writes in the requested way if the device supports it")
  func writing() {
    var wish = Self.wish()
    wish.writing = .request
    #expect(play(wish, PaperDevice()).0 == Self.plan(asks: true))
    var device = PaperDevice()
    device.values = [.init(handle: 12, uuid: "FFE1", properties: 0x14, switchAt: 13)]
    #expect(play(wish, device).0 == .giveUp(.noRequests))
    wish.writing = .command
    device.values = [.init(handle: 12, uuid: "FFE1", properties: 0x18, switchAt: 13)]
    #expect(play(wish, device).0 == .giveUp(.noCommands))
  }

  @Test("encrypts the link if the device requires it, once", arguments: [0x05, 0x0F] as [UInt8])
  func encryption(code: UInt8) {
    var device = PaperDevice()
    device.refusals = [0x12: (code, 1)]
    let (step, requests) = play(Self.wish(), device)
    #expect(step == Self.plan())
    #expect(requests.suffix(2) == [[0x12, 13, 0, 1, 0], [0x12, 13, 0, 1, 0]])
    device.refusals = [0x12: (code, 2)]
    #expect(play(Self.wish(), device).0 == .giveUp(.refused(ATTError(code: code))))
    device.refusals = [0x12: (0x03, 1)]
    #expect(play(Self.wish(), device).0 == .giveUp(.refused(ATTError(code: 0x03))))
  }

  @Test("answers the device's requests meanwhile, keeps its notifications, and ignores late messages")
  func meanwhile() {
    var lookUp = GATTLookUp(Self.wish())
    var device = PaperDevice()
    #expect(lookUp.handle([0x02, 0x80, 0x00]) == .send([0x03, 0x05, 0x02]))
    #expect(lookUp.handle([0x0A, 1, 0]) == .send([0x01, 0x0A, 0, 0, 0x06]))
    #expect(lookUp.handle([0x1B, 12, 0, 7]) == .wait)  // no characteristic has this handle yet
    var request = lookUp.firstRequest
    while request[0] != 0x12 {
      guard case .send(let next) = lookUp.handle(device.answer(request)) else { break }
      request = next
      #expect(lookUp.handle([0x13]) == .wait || request[0] == 0x12)
      if request[0] == 0x12 { return }
    }
  }

  @Test("keeps values that arrive before the device has confirmed")
  func early() {
    var lookUp = GATTLookUp(Self.wish())
    var device = PaperDevice()
    var request = lookUp.firstRequest
    while request[0] != 0x12, case .send(let next) = lookUp.handle(device.answer(request)) { request = next }
    #expect(lookUp.handle([0x1B, 12, 0, 65, 66]) == .wait)
    #expect(lookUp.handle([0x1B, 11, 0, 99]) == .wait)
    #expect(lookUp.handle([0x1D, 12, 0, 67]) == .send([0x1E]))
    #expect(lookUp.handle([0x13]) == Self.plan(early: [65, 66, 67]))
    #expect(lookUp.handle([0x13]) == .wait)
  }

  @Test(
    "gives up on invalid answers, and does not loop",
    arguments: [
      [], [0x01, 0x02], [0x03, 1], [0x1B, 1], [0x05, 3, 1, 0], [0x05, 1, 1, 0, 2], [0x07], [0x07, 2, 0, 1, 0],
      [0x07, 0, 0, 1, 0], [0x09, 1, 1], [0x09, 7, 1, 0, 2], [0x09, 0],
    ] as [[UInt8]])
  func malformed(message: [UInt8]) {
    var lookUp = GATTLookUp(Self.wish())
    guard case .giveUp(.malformed) = lookUp.handle(message) else {
      Issue.record("taken: \(message)")
      return
    }
    #expect(lookUp.handle([0x03, 23, 0]) == .wait)
  }

  @Test("gives up on a declaration that points back, and on endless answers")
  func circles() {
    var lookUp = GATTLookUp(Self.wish())
    _ = lookUp.handle([0x03, 23, 0])
    _ = lookUp.handle([0x07, 10, 0, 30, 0])
    let back: [UInt8] = [0x09, 7, 11, 0, 0x1C, 12, 0, 0xE1, 0xFF]
    #expect(lookUp.handle(back) == .send([0x08, 12, 0, 30, 0, 0x03, 0x28]))
    #expect(lookUp.handle(back) == .giveUp(.malformed("a declaration of a characteristic")))
    var endless = GATTLookUp(Self.wish())
    for _ in 0..<GATTLookUp.mostMessages { #expect(endless.handle([0x1B, 1, 0]) == .wait) }
    #expect(endless.handle([0x1B, 1, 0]) == .giveUp(.endless))
  }
}
