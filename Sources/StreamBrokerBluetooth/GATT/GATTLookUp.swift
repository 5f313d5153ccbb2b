// From "connected" to "bytes may flow": MTU, service, characteristics, notifications switched on. Uses no socket and no
// clock.

struct GATTLookUp: Sendable {
  enum Step: Hashable, Sendable {
    case send([UInt8])
    /// The device requires an encrypted link; call `handleSecured()` when it is encrypted.
    case secure
    case ready(GATTPlan)
    case giveUp(Fault)
    /// The message is unsolicited or late.
    case wait
  }

  enum Fault: Error, Hashable, Sendable {
    case noSuchService(BluetoothUUID)
    case missing(BluetoothUUID)
    case noNotifier, nothingToWrite
    case silent(BluetoothUUID)
    case readOnly(BluetoothUUID)
    case noCommands, noRequests
    case noSwitch
    case refused(ATTError)
    case malformed(String)
    case endless
  }

  private enum State: Hashable {
    case agreeing, findingService
    case findingCharacteristics(ClosedRange<UInt16>)
    case findingSwitch(ClosedRange<UInt16>)
    case subscribing
    case over
  }

  let wish: GATTWish
  private(set) var mtu = ATTMessage.leastMTU
  private var state = State.agreeing
  private var outstanding: ATTRequest
  private var service: ClosedRange<UInt16> = 1...1
  private var characteristics: [GATTCharacteristic] = []
  private var rx: GATTCharacteristic?
  private var tx: GATTCharacteristic?
  private var early: [UInt8] = []
  private var isSecured = false
  private var messages = 0

  // With the smallest MTU, a service of some twenty characteristics needs twenty-five answers, including the switch for
  // notifications.
  static let mostMessages = 1024
  private static let cccd = BluetoothUUID(0x2902)  // Client Characteristic Configuration

  init(_ wish: GATTWish) {
    self.wish = wish
    outstanding = .exchangeMTU(wish.mtu)
  }

  /// The request to send first.
  var firstRequest: [UInt8] { outstanding.encoded }

  /// Handles one message of the device.
  mutating func handle(_ bytes: [UInt8]) -> Step {
    guard state != .over else { return .wait }
    messages += 1
    guard messages <= Self.mostMessages else { return giveUp(.endless) }
    do throws(ATTMessage.Fault) {
      let message = try ATTMessage(bytes[...])
      if case .refusal(let request, let code) = message {
        return request == outstanding.opcode ? handleRefusal(ATTError(code: code)) : .wait
      }
      if case .notification(rx?.value, let value) = message { early += value }
      if case .indication(rx?.value, let value) = message { early += value }
      if let answer = message.answer(mtu: wish.mtu) { return .send(answer) }
      return handle(message)
    } catch {
      return giveUp(.malformed(error.what))
    }
  }

  /// The link is encrypted now: repeats the last request.
  mutating func handleSecured() -> Step {
    isSecured = true
    return .send(outstanding.encoded)
  }

  private mutating func handle(_ message: ATTMessage) -> Step {
    switch (state, message) {
    case (.agreeing, .mtu(let theirs)):
      mtu = max(ATTMessage.leastMTU, min(theirs, wish.mtu))
      return findService()
    case (.findingService, .groups(let groups)):
      service = groups[0]
      return findCharacteristics(in: service)
    case (.findingCharacteristics(let range), .values(let values)):
      return handle(values, in: range)
    case (.findingSwitch(let range), .types(let types)):
      if let found = types.first(where: { $0.type == Self.cccd && range.contains($0.handle) }) {
        let indicates = rx?.notifies == false
        return ask(.write(found.handle, [indicates ? 2 : 1, 0]), .subscribing)
      }
      guard let last = types.last?.handle, last >= range.lowerBound else {
        return giveUp(.malformed("types out of order"))
      }
      guard last < range.upperBound else { return giveUp(.noSwitch) }
      return findSwitch(in: last + 1...range.upperBound)
    case (.subscribing, .written): return conclude()
    default: return .wait
    }
  }

  private mutating func handleRefusal(_ error: ATTError) -> Step {
    if error.wantsEncryption, !isSecured { return .secure }
    switch (state, error) {
    case (.agreeing, _): return findService()  // a device without this request has the smallest MTU
    case (.findingService, .attributeNotFound): return giveUp(.noSuchService(wish.service))
    case (.findingCharacteristics, .attributeNotFound): return chooseAndGoOn()
    case (.findingSwitch, .attributeNotFound): return giveUp(.noSwitch)
    default: return giveUp(.refused(error))
    }
  }

  private mutating func findService() -> Step { ask(.service(wish.service), .findingService) }

  private mutating func findCharacteristics(in range: ClosedRange<UInt16>) -> Step {
    ask(.characteristics(range), .findingCharacteristics(range))
  }

  private mutating func findSwitch(in range: ClosedRange<UInt16>) -> Step {
    ask(.types(range), .findingSwitch(range))
  }

  private mutating func handle(_ values: [ATTMessage.HandleAndValue], in range: ClosedRange<UInt16>) -> Step {
    var next = range.lowerBound
    for item in values {
      guard range.contains(item.handle), item.handle >= next, let found = GATTCharacteristic(item) else {
        return giveUp(.malformed("a declaration of a characteristic"))
      }
      characteristics.append(found)
      guard item.handle < range.upperBound else { return chooseAndGoOn() }
      next = item.handle + 1
    }
    return findCharacteristics(in: next...range.upperBound)
  }

  private mutating func chooseAndGoOn() -> Step {
    do throws(Fault) {
      let (rx, tx) = try wish.profile.choose(from: characteristics)
      if wish.writing == .command, !tx.takesCommands { throw .noCommands }
      if wish.writing == .request, !tx.takesRequests { throw .noRequests }
      (self.rx, self.tx) = (rx, tx)
      // The descriptors of a characteristic follow its value, before the next declaration.
      let next = characteristics.map(\.declaration).filter { $0 > rx.declaration }.min()
      let end = next.map { $0 - 1 } ?? service.upperBound
      guard rx.value < end else { throw .noSwitch }
      return findSwitch(in: rx.value + 1...end)
    } catch {
      return giveUp(error)
    }
  }

  private mutating func conclude() -> Step {
    guard let rx, let tx else { return giveUp(.noSwitch) }
    state = .over
    let asksForAnswers = wish.writing == .request || (wish.writing == nil && !tx.takesCommands)
    return .ready(
      GATTPlan(mtu: mtu, ourMTU: wish.mtu, rx: rx.value, tx: tx.value, asksForAnswers: asksForAnswers, early: early))
  }

  private mutating func ask(_ request: ATTRequest, _ state: State) -> Step {
    (outstanding, self.state) = (request, state)
    return .send(request.encoded)
  }

  private mutating func giveUp(_ fault: Fault) -> Step {
    state = .over
    return .giveUp(fault)
  }
}

/// How bytes flow after the look-up.
struct GATTPlan: Hashable, Sendable {
  /// The MTU that both sides agreed on, and the one we offered.
  var mtu: Int
  var ourMTU: Int
  /// Handles of the values to read from (`rx`) and to write to (`tx`).
  var rx: UInt16
  var tx: UInt16
  /// Use write requests, each confirmed, instead of commands.
  var asksForAnswers: Bool
  /// Values that arrived before the device confirmed the subscription.
  var early: [UInt8]
}

extension GATTLookUp.Fault {
  var advice: String {
    switch self {
    case .noSuchService(let uuid): "the device has no service \(uuid)"
    case .missing(let uuid):
      "the service has no characteristic \(uuid); name others by 'rx' and 'tx', or set profile=auto"
    case .noNotifier: "no characteristic of the service notifies or indicates; name another service"
    case .nothingToWrite: "no characteristic of the service can be written; name another service"
    case .silent(let uuid):
      "characteristic \(uuid) neither notifies nor indicates; 'rx' is the characteristic to read from"
    case .readOnly(let uuid): "characteristic \(uuid) can't be written; 'tx' is the characteristic to write to"
    case .noCommands: "the characteristic supports no write commands; leave out 'write', or set write=request"
    case .noRequests: "the characteristic supports no write requests; leave out 'write', or set write=command"
    case .noSwitch: "the characteristic has no switch for notifications (descriptor 2902)"
    case .refused(let error): "the device refused (\(error))"
    case .malformed(let what): "the device's answer makes no sense: \(what)"
    case .endless: "the device's answers do not end"
    }
  }
}
