// Who a device is: the name it has for itself (Generic Access), and what its Device Information service says. Asked beside the bytes
// once these flow, one question at a time, as ATT wants it; a device that has none of it refuses, and that is all. No socket, no clock.

import ByteStreams

struct GATTIdentity: Sendable {
  // Assigned numbers: device name, manufacturer's name, model, serial number, firmware revision.
  private var left: ArraySlice<UInt16> = [0x2A00, 0x2A29, 0x2A24, 0x2A25, 0x2A26]
  /// An answer is awaited: no other request may be sent.
  private(set) var isAsking = false
  private(set) var facts = DeviceFacts()

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
    case .values(let values): note(type, values.first.flatMap { DeviceFacts.text($0.value) })
    case .refusal(of: ATTRequest.readByType, _): break
    default: return false
    }
    isAsking = false
    left.removeFirst()
    return true
  }

  var isOver: Bool { left.isEmpty }

  private mutating func note(_ type: UInt16, _ text: String?) {
    guard let text else { return }
    switch type {
    case 0x2A00: facts.name = text
    case 0x2A29: facts.manufacturer = text
    case 0x2A24: facts.model = text
    case 0x2A25: facts.serialNumber = text
    default: facts.firmware = text
    }
  }
}
