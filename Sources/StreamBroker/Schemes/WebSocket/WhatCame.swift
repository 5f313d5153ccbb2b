// What came in place of HTTP's answer, by its first bytes: what it is, not what it says, since others' bytes belong in no log.

struct WhatCame: Equatable {
  /// "SSH".
  let words: String
  /// What to try instead, where that is known.
  let advice: String?
  /// So many of the first bytes tell.
  static let enough = 16

  /// Nil when it is HTTP, as far as its first bytes say.
  init?(_ first: [UInt8]) {
    let text = String(decoding: first, as: UTF8.self)
    if text.hasPrefix("HTTP/") { return nil }
    advice = first.starts(with: [0x15, 3]) || first.starts(with: [0x16, 3]) ? "try wss:// in place of ws://" : nil
    words =
      if advice != nil {
        "TLS"
      } else if text.hasPrefix("SSH-") {
        "SSH"
      } else if text.hasPrefix("RFB ") {
        "VNC"
      } else if text.hasPrefix("GET ") {
        "our own request, as from an echo,"
      } else if first.first == 0xFF {
        "telnet"
      } else if first.allSatisfy({ (0x20...0x7E).contains($0) || (0x09...0x0D).contains($0) }) {
        "plain text"
      } else {
        "something else"
      }
  }
}
