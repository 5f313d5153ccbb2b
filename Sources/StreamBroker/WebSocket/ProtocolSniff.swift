// Names what arrived instead of an HTTP response, by its first bytes. It names the kind, not the content, because the
// other side's bytes do not belong in a log.

struct ProtocolSniff: Equatable {
  /// "SSH".
  let words: String
  /// What to try instead, if known.
  let advice: String?
  /// The number of first bytes that are needed.
  static let enough = 16

  /// Nil if it is HTTP, as far as its first bytes show.
  init?(_ first: [UInt8]) {
    let text = String(decoding: first, as: UTF8.self)
    if text.hasPrefix("HTTP/") { return nil }
    advice = first.starts(with: [0x15, 3]) || first.starts(with: [0x16, 3]) ? "try wss:// instead of ws://" : nil
    words =
      if advice != nil {
        "TLS"
      } else if text.hasPrefix("SSH-") {
        "SSH"
      } else if text.hasPrefix("RFB ") {
        "VNC"
      } else if text.hasPrefix("GET ") {
        "our own request, as from an echo"
      } else if first.first == 0xFF {
        "telnet"
      } else if first.allSatisfy({ (0x20...0x7E).contains($0) || (0x09...0x0D).contains($0) }) {
        "plain text"
      } else {
        "something else"
      }
  }
}
