// Compares the origins of web pages as RFC 6454 does: scheme, host and port, whatever the spelling.

import ByteStreams

package enum OriginNames {
  /// One spelling for each origin: in lower case, without the scheme's own port and the dot of the root, numeric
  /// addresses in their usual form. A text that is no origin, such as `null`, is only in lower case.
  package static func normal(_ text: String) -> String {
    let text = lowercased(text)
    guard let parts = parts(of: text) else { return text }
    let port = parts.port.flatMap { $0 == defaultPort(of: parts.scheme) ? nil : ":\($0)" } ?? ""
    return "\(parts.scheme)://\(host(parts.host))\(port)"
  }

  /// Why no browser ever sends this origin, or nil.
  package static func obstacle(_ text: String) -> String? {
    if text == "*" || text == "null" { return nil }
    let text = lowercased(text)
    guard let end = text.firstRange(of: "://") else { return nil }
    let scheme = String(text[..<end.lowerBound])
    if let page = ["ws": "http", "wss": "https"][scheme] {
      return "a browser sends the page's own origin, which begins with \(page)://"
    }
    if scheme == "file" { return "for a page of a file a browser sends 'null'" }
    guard let parts = parts(of: text) else { return "its port is no number from 1 to 65535" }
    if parts.port == 0 { return "its port is no number from 1 to 65535" }
    let isAddress = parts.host.hasPrefix("[")
    if !isAddress && parts.host.contains(where: { ":[]".contains($0) })
      || isAddress && SocketAddress(numeric: String(parts.host.dropFirst().dropLast()), port: 0) == nil
    {
      return "an IPv6 address stands in brackets, as in http://[::1]:8080"
    }
    let name = parts.host.hasSuffix(".") ? parts.host.dropLast() : parts.host[...]
    let isWhole = isAddress || name.split(separator: ".", omittingEmptySubsequences: false).allSatisfy { !$0.isEmpty }
    return isWhole ? nil : "its host has an empty label"
  }

  private static func defaultPort(of scheme: String) -> UInt16? {
    switch scheme {
    case "http", "ws": 80
    case "https", "wss": 443
    default: nil
    }
  }

  /// Nil if it has no scheme, or a port that is no number. A port may be empty.
  private static func parts(of text: String) -> (scheme: String, host: String, port: UInt16?)? {
    guard let mark = text.firstRange(of: "://") else { return nil }
    let (scheme, rest) = (String(text[..<mark.lowerBound]), text[mark.upperBound...])
    let search = rest.lastIndex(of: "]").map { rest[$0...] } ?? rest
    guard let colon = search.lastIndex(of: ":") else { return (scheme, String(rest), nil) }
    let digits = rest[rest.index(after: colon)...]
    if digits.isEmpty { return (scheme, String(rest[..<colon]), nil) }
    guard digits.utf8.allSatisfy({ (0x30...0x39).contains($0) }), let port = UInt16(digits) else { return nil }
    return (scheme, String(rest[..<colon]), port)
  }

  private static func host(_ host: String) -> String {
    if host.hasPrefix("["), host.hasSuffix("]"),
      let address = SocketAddress(numeric: String(host.dropFirst().dropLast()), port: 0)
    {
      return "[\(address.host)]"
    }
    return host.hasSuffix(".") ? String(host.dropLast()) : host
  }
}
