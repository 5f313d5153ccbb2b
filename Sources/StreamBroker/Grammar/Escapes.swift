// Bytes written as text with escapes, as `device.on-open` and `packets.delimiter` have them.

public enum Escapes {
  /// The bytes of `text`, in UTF-8, with `\\r \\n \\t \\\\ \\xHH` read as what they stand for. Nil when another letter follows a backslash.
  public static func bytes(of text: String) -> [UInt8]? {
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
        guard rest.count >= 2, let number = hex(rest.prefix(2)) else { return nil }
        bytes.append(number)
        rest = rest.dropFirst(2)
      default: return nil
      }
    }
    return bytes
  }

  /// `text` with each backslash doubled that begins no escape, as pictures made of letters have them.
  static func repair(_ text: String) -> String? {
    var repaired = ""
    var rest = text[...]
    while let letter = rest.first {
      // Of an escape, two or four characters; of all else one.
      let known =
        letter == "\\" ? [4, 2].first { bytes(of: String(rest.prefix($0)))?.count == 1 && rest.count >= $0 } : 1
      repaired += known == nil ? "\\\\" : rest.prefix(known ?? 1)
      rest = rest.dropFirst(known ?? 1)
    }
    return bytes(of: repaired) == nil || text.unicodeScalars.contains(where: Suggestion.isControl) ? nil : repaired
  }

  /// The other way round: printable ASCII as it is, everything else escaped.
  public static func text(of bytes: [UInt8]) -> String {
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

  private static func hex(_ digits: Substring.UTF8View) -> UInt8? {
    var number: UInt8 = 0
    for digit in digits {
      switch digit {
      case 0x30...0x39: number = number << 4 | (digit - 0x30)
      case 0x41...0x46: number = number << 4 | (digit - 0x41 + 10)
      case 0x61...0x66: number = number << 4 | (digit - 0x61 + 10)
      default: return nil
      }
    }
    return number
  }
}
