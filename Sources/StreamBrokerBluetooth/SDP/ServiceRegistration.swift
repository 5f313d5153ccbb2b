// What is said to bluetoothd's service list (its `--compat` socket), where another program's record is to stand. BlueZ's own
// messages, beside those of the air. Values only.

enum ServiceRegistration {
  /// SDP_SVC_REGISTER_REQ: the record goes when the connection does.
  static func request(_ record: ServiceRecord, transaction: UInt16) -> [UInt8] {
    let parameters = [0] + record.element.encoded  // no flags
    return [0x75] + DataElement.bigEndian(UInt64(transaction), 2)
      + DataElement.bigEndian(UInt64(parameters.count), 2) + parameters
  }

  enum Answer: Hashable, Sendable {
    /// It stands in the list, by that number.
    case registered(handle: UInt32)
    case refused(code: UInt16)
    case malformed
  }

  static func answer(_ message: [UInt8]) -> Answer {
    guard message.count >= 5 else { return .malformed }
    let parameters = message[5...]
    guard Int(message[3]) << 8 | Int(message[4]) == parameters.count else { return .malformed }
    let number = parameters.reduce(0) { $0 << 8 | UInt64($1) }
    switch (message[0], parameters.count) {
    case (0x76, 4): return .registered(handle: UInt32(number))
    case (0x01, 2): return .refused(code: UInt16(number))
    default: return .malformed
    }
  }
}
