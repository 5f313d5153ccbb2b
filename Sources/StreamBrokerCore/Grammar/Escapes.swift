// Bytes written as text with escapes, as in `device.on-open` and `packets.delimiter`.

import ByteStreams

package enum Escapes {
  /// The bytes of `text` in UTF-8, with the escapes `\r \n \t \\ \xHH` decoded. Nil for any other escape.
  package static func bytes(of text: String) -> [UInt8]? {
    var bytes: [UInt8] = []
    var rest = text.utf8[...]
    while let byte = rest.popFirst() {
      guard byte == UInt8(ascii: "\\") else {
        bytes.append(byte)
        continue
      }
      switch rest.popFirst() {
      case UInt8(ascii: "r"): bytes.append(0x0D)
      case UInt8(ascii: "n"): bytes.append(0x0A)
      case UInt8(ascii: "t"): bytes.append(0x09)
      case UInt8(ascii: "\\"): bytes.append(UInt8(ascii: "\\"))
      case UInt8(ascii: "x"):
        guard let high = rest.popFirst().flatMap(PercentEncoding.hexValue),
          let low = rest.popFirst().flatMap(PercentEncoding.hexValue)
        else { return nil }
        bytes.append(high << 4 | low)
      default: return nil
      }
    }
    return bytes
  }

  /// `text` with all backslashes doubled that do not start an escape, such as those in ASCII art. Nil if that is still
  /// invalid, or if `text` has control characters.
  static func repair(_ text: String) -> String? {
    var repaired = ""
    var rest = text[...]
    while let letter = rest.first {
      // An escape has two or four characters; everything else has one.
      let known =
        letter == "\\" ? [4, 2].first { bytes(of: String(rest.prefix($0)))?.count == 1 && rest.count >= $0 } : 1
      repaired += known == nil ? "\\\\" : rest.prefix(known ?? 1)
      rest = rest.dropFirst(known ?? 1)
    }
    return bytes(of: repaired) == nil || text.unicodeScalars.contains(where: Suggestion.isControl) ? nil : repaired
  }

  /// The reverse: printable ASCII unchanged, everything else escaped.
  package static func text(of bytes: [UInt8]) -> String {
    bytes.map { byte in
      switch byte {
      case 0x0D: "\\r"
      case 0x0A: "\\n"
      case 0x09: "\\t"
      case UInt8(ascii: "\\"): "\\\\"
      case 0x20...0x7E: String(Unicode.Scalar(byte))
      default: "\\x" + (byte < 16 ? "0" : "") + String(byte, radix: 16, uppercase: true)
      }
    }.joined()
  }
}
