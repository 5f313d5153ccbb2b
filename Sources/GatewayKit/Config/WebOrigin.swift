// Checks the values of `websocket.origins` and `websocket.hosts`.

/// What a browser sends as Origin (RFC 6454, section 6.1): `https://lab.example`, `http://127.0.0.1:8080`.
enum WebOrigin {
  static func isOrigin(_ text: String) -> Bool {
    if text == "*" || text == "null" { return true }
    guard let range = text.firstRange(of: "://") else { return false }
    let (scheme, rest) = (text[..<range.lowerBound], text[range.upperBound...])
    let isGood = { (letter: Character) in
      letter.isASCII && (letter.isLetter || letter.isNumber || "+-.".contains(letter))
    }
    return !scheme.isEmpty && scheme.allSatisfy(isGood) && !rest.isEmpty
      && rest.allSatisfy { isGood($0) || ":[]_".contains($0) }
  }

  /// The probable origin in a whole URL, or in a host without a scheme.
  static func repair(_ text: String) -> String? {
    let candidates = [String(text.prefix { $0 != "/" }), "https://" + text.prefix { $0 != "/" }]
    if let range = text.firstRange(of: "://") {
      let origin = text[..<range.upperBound] + text[range.upperBound...].prefix { $0 != "/" && $0 != "?" && $0 != "#" }
      return isOrigin(String(origin)) ? String(origin) : nil
    }
    return candidates.first { isOrigin($0) }
  }

  // MARK: - Hosts

  /// For `websocket.hosts`: a name whose first label may be `*`, or `*` alone.
  static func isHostName(_ text: String) -> Bool {
    if text == "*" { return true }
    var name = text.utf8.starts(with: "*.".utf8) ? text.dropFirst(2) : text[...]
    if name.hasSuffix("."), name.count > 1 { name = name.dropLast() }  // the dot of the root
    let labels = name.split(separator: ".", omittingEmptySubsequences: false)
    return name.utf8.count <= 253
      && labels.allSatisfy { label in
        (1...63).contains(label.utf8.count)
          && label.utf8.allSatisfy {
            (0x30...0x39).contains($0) || (0x41...0x5A).contains($0) || (0x61...0x7A).contains($0)
              || $0 == UInt8(ascii: "-") || $0 == UInt8(ascii: "_")
          }
      }
  }

  /// The host of a URL, or of a name with a port.
  static func hostName(in text: String) -> String? {
    let rest = text.firstRange(of: "://").map { text[$0.upperBound...] } ?? text[...]
    let name = String(rest.prefix { !":/?#".contains($0) })
    return name != text && isHostName(name) ? name : nil
  }
}
