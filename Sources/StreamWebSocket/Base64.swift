// Base64 of RFC 4648 section 4, for the key of an upgrade and the response to it.

private let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".utf8)

func base64(_ bytes: [UInt8]) -> String {
  var text: [UInt8] = []
  for start in stride(from: 0, to: bytes.count, by: 3) {
    let group = bytes[start..<min(start + 3, bytes.count)]
    let bits = group.reduce(UInt32(0)) { $0 << 8 | UInt32($1) } << UInt32(8 * (3 - group.count))
    for index in 0..<4 {
      text.append(index <= group.count ? alphabet[Int(bits >> UInt32(18 - 6 * index) & 63)] : UInt8(ascii: "="))
    }
  }
  return String(decoding: text, as: UTF8.self)
}

/// Whether `text` is the canonical encoding of 16 bytes: 22 digits, of which the last has four unused bits of 0, and
/// two padding characters.
func isKeyOf16Bytes(_ text: String) -> Bool {
  let bytes = Array(text.utf8)
  guard bytes.count == 24, bytes[22...].elementsEqual("==".utf8) else { return false }
  let digits = bytes[..<22].map { alphabet.firstIndex(of: $0) }
  guard !digits.contains(nil), let last = digits.last, let last else { return false }
  return last & 15 == 0
}
