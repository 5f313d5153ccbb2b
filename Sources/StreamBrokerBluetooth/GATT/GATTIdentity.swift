// Who a device is: the name it has for itself (Generic Access), and what its Device Information service says. Asked beside the bytes
// once these flow, one question at a time, as ATT wants it; a device that has none of it refuses, and that is all. No socket, no clock.

import ByteStreams

struct GATTIdentity: Sendable {
  // Assigned numbers: device name, manufacturer's name, model, serial number, firmware revision.
  private var left: ArraySlice<UInt16> = [0x2A00, 0x2A29, 0x2A24, 0x2A25, 0x2A26]
  /// An answer is awaited: no other request may be sent.
  private(set) var isAsking = false
  private(set) var facts = DeviceFacts()
  // A value that did not fit in the first answer, and what has been read of it.
  private var long: (handle: UInt16, beginning: [UInt8], read: [UInt8])?
  // Errors "invalid offset" and "attribute not long" (section 3.4.1.1).
  private static let nothingBehind: Set<UInt8> = [0x07, 0x0B]
  private let mtu: Int
  private let knownName: String?

  /// `knownName` stays where the device's own is only its beginning.
  init(mtu: Int, knownName: String? = nil) {
    self.mtu = mtu
    self.knownName = knownName
  }

  /// The next question; nil when one is under way, or all are answered.
  mutating func ask() -> [UInt8]? {
    guard !isAsking, let type = left.first else { return nil }
    isAsking = true
    if let long {
      return (long.read.isEmpty ? ATTRequest.read(long.handle) : .readOn(long.handle, from: long.read.count)).encoded
    }
    return ATTRequest.values(of: BluetoothUUID(UInt32(type))).encoded
  }

  /// Whether `message` is the answer, whose text goes into `facts`.
  mutating func handle(_ message: ATTMessage) -> Bool {
    guard isAsking, let type = left.first else { return false }
    switch (message, long) {
    case (.values(let values), nil):
      // An answer has room for so much of a value (Bluetooth Core, Vol 3, Part F, section 3.4.4.2): one of that length may go on.
      if let first = values.first, first.value.count >= min(mtu - 4, 253) {
        long = (first.handle, Array(first.value), [])
        isAsking = false
        return true
      }
      if let value = values.first?.value { note(type, value) }
    case (.part(let part), .some(var value)):
      value.read += part
      long = value
      if part.count >= mtu - 1, value.read.count < ATTMessage.longestValue, !isEnough(value.read) {
        isAsking = false
        return true
      }
      note(type, value.read[...])
    case (.refusal(of: ATTRequest.readByType, _), nil): break
    // There is nothing behind what it has said, or it says nothing but the beginning.
    case (.refusal(of: ATTRequest.readBlob, let code), let value?) where Self.nothingBehind.contains(code):
      note(type, value.read[...])
    case (.refusal(of: ATTRequest.readBlob, _), let value?): noteBeginning(type, value.read[...])
    case (.refusal(of: ATTRequest.readValue, _), let value?): noteBeginning(type, value.beginning[...])
    default: return false
    }
    isAsking = false
    long = nil
    left.removeFirst()
    return true
  }

  var isOver: Bool { left.isEmpty }

  /// The beginning of a name is better than none; half a serial number is wrong.
  private mutating func noteBeginning(_ type: UInt16, _ value: ArraySlice<UInt8>) {
    if type == 0x2A00, knownName?.utf8.starts(with: value) != true { note(type, value) }
  }

  /// Whether what lies behind can't change what is kept of a text.
  private func isEnough(_ beginning: [UInt8]) -> Bool {
    let text = beginning.drop { $0 == 0x20 }
    // In UTF-8 all but a character's first byte have these two bits.
    return text.contains(0) || text.count { $0 & 0xC0 != 0x80 } > DeviceFacts.mostText
  }

  private mutating func note(_ type: UInt16, _ value: ArraySlice<UInt8>) {
    guard let text = DeviceFacts.text(value) else { return }
    switch type {
    case 0x2A00: facts.name = text
    case 0x2A29: facts.manufacturer = text
    case 0x2A24: facts.model = text
    case 0x2A25: facts.serialNumber = text
    default: facts.firmware = text
    }
  }
}
