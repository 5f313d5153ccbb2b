// Messages to bluetoothd's service list (its `--compat` socket), to register another program's record. They are BlueZ's
// own, in addition to SDP's. Values only.

enum ServiceRegistration {
  /// SDP_SVC_REGISTER_REQ: bluetoothd removes the record when the connection is closed.
  static func request(_ record: ServiceRecord, transaction: UInt16) -> [UInt8] {
    let parameters = [0] + record.element.encoded  // no flags
    return [0x75] + DataElement.bigEndian(UInt64(transaction), 2)
      + DataElement.bigEndian(UInt64(parameters.count), 2) + parameters
  }

  enum Answer: Hashable, Sendable {
    /// The record is in the list, with that number.
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
