// The identity of a device: its own name (Generic Access) and its Device Information service. It is read while bytes
// flow, with one request at a time, as ATT requires. A device without these values refuses, and nothing more happens.
// Uses no socket and no clock.

import ByteStreams

struct GATTIdentity: Sendable {
  // Assigned numbers: device name, manufacturer's name, model, serial number, firmware revision.
  private var left: ArraySlice<UInt16> = [0x2A00, 0x2A29, 0x2A24, 0x2A25, 0x2A26]
  /// A request is outstanding: no other may be sent.
  private(set) var isAsking = false
  private(set) var facts = DeviceFacts()
  // A value that did not fit into the first answer: its handle, its beginning, and what was read since.
  private var long: (handle: UInt16, beginning: [UInt8], read: [UInt8])?
  // Errors "invalid offset" and "attribute not long" (section 3.4.1.1): the value has no more bytes.
  private static let nothingBehind: Set<UInt8> = [0x07, 0x0B]
  private let mtu: Int
  private let knownName: String?

  /// `knownName` is kept if only its beginning can be read from the device.
  init(mtu: Int, knownName: String? = nil) {
    self.mtu = mtu
    self.knownName = knownName
  }

  /// The next request; nil when one is outstanding, or all are answered.
  mutating func ask() -> [UInt8]? {
    guard !isAsking, let type = left.first else { return nil }
    isAsking = true
    if let long {
      return (long.read.isEmpty ? ATTRequest.read(long.handle) : .readOn(long.handle, from: long.read.count)).encoded
    }
    return ATTRequest.values(of: BluetoothUUID(UInt32(type))).encoded
  }

  /// Returns whether `message` is the answer; its text goes into `facts`.
  mutating func handle(_ message: ATTMessage) -> Bool {
    guard isAsking, let type = left.first else { return false }
    switch (message, long) {
    case (.values(let values), nil):
      // An answer has room for this much of a value (Bluetooth Core, Vol 3, Part F, section 3.4.4.2). A value of that
      // length may be longer.
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
    // First the value is complete; in the next two cases the device gives only its beginning.
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

  /// Whether more bytes can't change the text that is kept.
  private func isEnough(_ beginning: [UInt8]) -> Bool {
    let text = beginning.drop { $0 == 0x20 }
    // In UTF-8 every byte of a character but the first has these two bits.
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
