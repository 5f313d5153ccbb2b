// Why a device refuses a request (Bluetooth Core, Vol 3, Part F, section 3.4.1.1; codes from 0xE0 on: its Supplement,
// Part B).

struct ATTError: Hashable, Sendable, CustomStringConvertible {
  let code: UInt8

  static let attributeNotFound = ATTError(code: 0x0A)

  /// The link is not encrypted, or its authentication is too weak.
  var wantsEncryption: Bool { code == 0x05 || code == 0x0F }

  private static let names: [UInt8: String] = [
    0x01: "invalid handle", 0x02: "reading is not permitted", 0x03: "writing is not permitted", 0x04: "invalid PDU",
    0x05: "insufficient authentication", 0x06: "request not supported", 0x07: "invalid offset",
    0x08: "insufficient authorization", 0x09: "its queue is full", 0x0A: "attribute not found",
    0x0B: "attribute not long", 0x0C: "the encryption key is too short", 0x0D: "invalid length of the value",
    0x0E: "unlikely error", 0x0F: "insufficient encryption", 0x10: "unsupported group type",
    0x11: "insufficient resources", 0x12: "its attributes have changed", 0x13: "value not allowed",
    0xFC: "write request rejected", 0xFD: "the switch for notifications is set wrongly",
    0xFE: "procedure already in progress", 0xFF: "value out of range",
  ]

  private var name: String {
    (0x80...0x9F).contains(code) ? "an error of its application" : Self.names[code] ?? "unknown"
  }

  var description: String {
    let digits = String(code, radix: 16, uppercase: true)
    return "ATT error 0x\(digits.count < 2 ? "0" : "")\(digits): \(name)"
  }
}
