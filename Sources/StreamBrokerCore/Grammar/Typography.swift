// Characters that word processors and web pages insert instead of plain ones: curly quotes and no-break spaces. They
// look right in an editor but mean something else to YAML and in URLs, so messages name them.

package enum Typography {
  /// The position and name of the first space that is not ASCII. `offset` counts Unicode scalars.
  package static func oddSpace(in text: some Collection<Unicode.Scalar>) -> (offset: Int, name: String)? {
    for (offset, scalar) in text.enumerated() where isOddSpace(scalar) { return (offset, name(of: scalar)) }
    return nil
  }

  package static func isOddSpace(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.value {
    case 0xA0, 0x1680, 0x180E, 0x2000...0x200B, 0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF: true
    default: false
    }
  }

  /// "a no-break space (U+00A0)"
  package static func name(of scalar: Unicode.Scalar) -> String {
    let digits = String(scalar.value, radix: 16, uppercase: true)
    let number = "U+" + String(repeating: "0", count: max(0, 4 - digits.count)) + digits
    return switch scalar.value {
    case 0xA0, 0x202F, 0x2007: "a no-break space (\(number))"
    case 0x200B, 0x2060, 0xFEFF: "an invisible character (\(number))"
    default: "a space that is not a plain one (\(number))"
    }
  }

  package static func isCurlyQuote(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.value {
    case 0x2018...0x201F, 0xAB, 0xBB, 0x2039, 0x203A: true
    default: false
    }
  }

  /// The text between curly quotes, if `text` begins with one; the closing quote may be missing. Otherwise nil.
  package static func unquoted(_ text: String) -> String? {
    let scalars = text.unicodeScalars
    guard let first = scalars.first, isCurlyQuote(first) else { return nil }
    let rest = scalars.dropFirst()
    guard let last = rest.last, isCurlyQuote(last) else { return String(rest) }
    return String(rest.dropLast())
  }
}
