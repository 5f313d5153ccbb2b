// Decodes percent-encoding (RFC 3986 section 2.1): in endpoints' URLs, in USB identities there, in request targets.

package enum PercentEncoding {
  /// The bytes that `text` stands for. Calls `broken` with the offset of each % that is not followed by two hexadecimal
  /// digits. If `broken` returns, the % stands for itself.
  package static func decode<Failure: Error>(
    _ text: some Sequence<UInt8>, broken: (Int) throws(Failure) -> Void
  ) throws(Failure) -> [UInt8] {
    let text = Array(text)
    var bytes: [UInt8] = []
    var next = 0
    while next < text.count {
      if text[next] == UInt8(ascii: "%") {
        if next + 2 < text.count, let high = hexValue(text[next + 1]), let low = hexValue(text[next + 2]) {
          bytes.append(high << 4 | low)
          next += 3
          continue
        }
        try broken(next)
      }
      bytes.append(text[next])
      next += 1
    }
    return bytes
  }

  /// The value of a hexadecimal digit in ASCII; nil for any other byte.
  package static func hexValue(_ digit: UInt8) -> UInt8? {
    switch digit {
    case UInt8(ascii: "0")...UInt8(ascii: "9"): digit - UInt8(ascii: "0")
    case UInt8(ascii: "a")...UInt8(ascii: "f"): digit - UInt8(ascii: "a") + 10
    case UInt8(ascii: "A")...UInt8(ascii: "F"): digit - UInt8(ascii: "A") + 10
    default: nil
    }
  }
}
