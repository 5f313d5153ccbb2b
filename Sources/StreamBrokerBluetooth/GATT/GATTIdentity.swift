// Who a device is: the name it has for itself (Generic Access), and what its Device Information service says. Asked beside the bytes
// once these flow, one question at a time, as ATT wants it; a device that has none of it refuses, and that is all. No socket, no clock.

import ByteStreams

struct GATTIdentity: Sendable {
  // Assigned numbers: device name, manufacturer's name, model, serial number, firmware revision.
  private var left: ArraySlice<UInt16> = [0x2A00, 0x2A29, 0x2A24, 0x2A25, 0x2A26]
  /// An answer is awaited: no other request may be sent.
  private(set) var isAsking = false
  private(set) var facts = DeviceFacts()
  // An answer holds so much of a value (Bluetooth Core, Vol 3, Part F, section 3.4.4.2): one of that length may go on.
  private let longestPart: Int
  private let knownName: String?

  /// `knownName` stays where the device's own is only its beginning.
  init(mtu: Int, knownName: String? = nil) {
    longestPart = min(mtu - 4, 253)
    self.knownName = knownName
  }

  /// The next question; nil when one is under way, or all are answered.
  mutating func ask() -> [UInt8]? {
    guard !isAsking, let type = left.first else { return nil }
    isAsking = true
    return ATTRequest.values(of: BluetoothUUID(UInt32(type))).encoded
  }

  /// Whether `message` is the answer, whose text goes into `facts`.
  mutating func handle(_ message: ATTMessage) -> Bool {
    guard isAsking, let type = left.first else { return false }
    switch message {
    case .values(let values): if let value = values.first?.value { note(type, value) }
    case .refusal(of: ATTRequest.readByType, _): break
    default: return false
    }
    isAsking = false
    left.removeFirst()
    return true
  }

  var isOver: Bool { left.isEmpty }

  private mutating func note(_ type: UInt16, _ value: ArraySlice<UInt8>) {
    guard let text = DeviceFacts.text(value) else { return }
    if value.count >= longestPart {
      // The beginning of a name is better than none; half a serial number is wrong.
      guard type == 0x2A00, knownName?.utf8.starts(with: value) != true else { return }
    }
    switch type {
    case 0x2A00: facts.name = text
    case 0x2A29: facts.manufacturer = text
    case 0x2A24: facts.model = text
    case 0x2A25: facts.serialNumber = text
    default: facts.firmware = text
    }
  }
}
