// Origins of web pages, for `websocket.origins`.

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

  /// A whole URL, or a host without a scheme, was meant.
  static func repair(_ text: String) -> String? {
    let candidates = [String(text.prefix { $0 != "/" }), "https://" + text.prefix { $0 != "/" }]
    if let range = text.firstRange(of: "://") {
      let origin = text[..<range.upperBound] + text[range.upperBound...].prefix { $0 != "/" && $0 != "?" && $0 != "#" }
      return isOrigin(String(origin)) ? String(origin) : nil
    }
    return candidates.first { isOrigin($0) }
  }
}
