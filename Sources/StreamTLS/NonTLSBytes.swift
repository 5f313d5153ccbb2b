// Finds out from the first bytes what a peer sends instead of TLS, and gives our answer to it.

enum NonTLSBytes {
  case http
  case other(String)

  /// Nil if it may be TLS.
  init?(_ first: [UInt8]) {
    guard let byte = first.first else { return nil }
    // A TLS handshake, an alert, or an SSL 2 hello with a two-byte length.
    if byte == 0x16 || byte == 0x15 || byte & 0x80 != 0 && byte != 0xFF { return nil }
    let text = String(decoding: first, as: UTF8.self)
    if Self.methods.contains(where: { text.hasPrefix($0) }) {
      self = .http
    } else if text.hasPrefix("HTTP/") {
      self = .other("plain HTTP")
    } else if text.hasPrefix("SSH-") {
      self = .other("SSH")
    } else if text.hasPrefix("PROXY ") || first.starts(with: [0x0D, 0x0A, 0x0D, 0x0A, 0x00, 0x0D, 0x0A, 0x51]) {
      self = .other("a PROXY protocol header")
    } else if byte == 0xFF {
      self = .other("telnet")
    } else if first.allSatisfy({ (0x20...0x7E).contains($0) || $0 == 0x0D || $0 == 0x0A || $0 == 0x09 }) {
      self = .other("plain text")
    } else {
      self = .other("unknown bytes")
    }
  }

  private static let methods = [
    "GET ", "POST ", "HEAD ", "PUT ", "DELETE ", "OPTIONS ", "PATCH ", "CONNECT ", "TRACE ", "PRI ",
  ]

  /// The answer, sent in clear.
  var answer: [UInt8] {
    switch self {
    case .http:
      let text = "This port speaks TLS: use https:// or wss:// instead of http:// or ws://.\n"
      return Array(
        """
        HTTP/1.1 400 Bad Request\r
        Content-Type: text/plain; charset=utf-8\r
        Content-Length: \(text.utf8.count)\r
        Connection: close\r
        \r
        \(text)
        """.utf8)
    // A fatal alert of TLS 1.2: unexpected_message (RFC 8446 section 6.2).
    case .other: return [0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x0A]
    }
  }
}
