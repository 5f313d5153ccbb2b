// What both sides agreed on in the upgrade. Passed with a client from the handshake lane to the lane of its link.

/// A sub-protocol that this gateway knows. Without one, and with `binary`, messages are only bytes.
package enum WebSocketSubprotocol: String, CaseIterable, Sendable {
  /// Requested by websockify's clients: binary messages are bytes.
  case binary
  /// Binary messages are bytes, text messages are control in JSON.
  case baudwayV1 = "baudway.v1"
}

package struct WebSocketTerms: Equatable, Sendable {
  package var subprotocol: WebSocketSubprotocol?
  /// Nil: no compression.
  package var deflate: DeflateTerms?

  package init(subprotocol: WebSocketSubprotocol? = nil, deflate: DeflateTerms? = nil) {
    self.subprotocol = subprotocol
    self.deflate = deflate
  }
}

/// The agreed parameters of permessage-deflate (RFC 7692 section 7.1), as this side sees them.
package struct DeflateTerms: Equatable, Sendable {
  /// Size of the window that this side compresses with: two to the power of 9 to 15 bytes.
  package var ownWindowBits = 15
  /// Whether a message of this side may refer to earlier ones.
  package var ownContextTakeover = true
  /// The same for the other side: 8 to 15.
  package var otherWindowBits = 15
  package var otherContextTakeover = true

  package init() {}
}

/// What this side accepts for permessage-deflate.
package struct DeflateSettings: Equatable, Sendable {
  /// The largest window to compress with, and to request from the other side: 9 to 15. Memory per client (zlib 1.2.13):
  /// 4 windows and 38 KiB to compress, a window and 7 KiB to expand.
  package var windowBits: Int
  /// Whether to keep windows from one message to the next; otherwise they exist only during a message.
  package var contextTakeover: Bool

  package init(windowBits: Int = 12, contextTakeover: Bool = true) {
    precondition((9...15).contains(windowBits))
    self.windowBits = windowBits
    self.contextTakeover = contextTakeover
  }

  /// The first of a client's offers that is acceptable as it is, and the text of the response; nil if there is none
  /// (RFC 7692 section 5).
  func accept(_ offers: [String]) -> (terms: DeflateTerms, answer: String)? {
    for offer in offers {
      if let offer = DeflateOffer(offer), let accepted = accept(offer) { return accepted }
    }
    return nil
  }

  private func accept(_ offer: DeflateOffer) -> (terms: DeflateTerms, answer: String)? {
    var terms = DeflateTerms()
    var answer = DeflateOffer.name
    terms.ownWindowBits = min(windowBits, offer.serverWindowBits ?? 15)
    // zlib can't compress raw with a window of 256 bytes.
    guard terms.ownWindowBits >= 9 else { return nil }
    terms.ownContextTakeover = contextTakeover && !offer.serverForgets
    if !terms.ownContextTakeover { answer += "; server_no_context_takeover" }
    if offer.serverWindowBits != nil { answer += "; server_max_window_bits=\(terms.ownWindowBits)" }
    terms.otherContextTakeover = contextTakeover && !offer.clientForgets
    if !terms.otherContextTakeover { answer += "; client_no_context_takeover" }
    if let most = offer.clientWindowBits {
      terms.otherWindowBits = min(most ?? 15, windowBits)
      if terms.otherWindowBits < 15 { answer += "; client_max_window_bits=\(terms.otherWindowBits)" }
    }
    return (terms, answer)
  }

  /// The client's offer.
  var offer: String {
    var offer = "\(DeflateOffer.name); client_max_window_bits"
    if windowBits < 15 { offer += "; server_max_window_bits=\(windowBits)" }
    if !contextTakeover { offer += "; server_no_context_takeover; client_no_context_takeover" }
    return offer
  }

  /// The terms in the server's response; nil if it does not fit `offer` (RFC 7692 section 7.1).
  func terms(of answer: String) -> DeflateTerms? {
    guard let answer = DeflateOffer(answer) else { return nil }
    var terms = DeflateTerms()
    terms.ownContextTakeover = contextTakeover && !answer.clientForgets
    if let bits = answer.clientWindowBits {
      // Without a value it means nothing, and a server must not send that.
      guard let bits, bits >= 9 else { return nil }
      terms.ownWindowBits = bits
    }
    terms.ownWindowBits = min(terms.ownWindowBits, windowBits)
    terms.otherContextTakeover = !answer.serverForgets
    terms.otherWindowBits = answer.serverWindowBits ?? 15
    // The window is larger than requested, or a requested promise is missing.
    guard windowBits == 15 || terms.otherWindowBits <= windowBits, contextTakeover || answer.serverForgets else {
      return nil
    }
    return terms
  }
}

/// An element of Sec-WebSocket-Extensions that is permessage-deflate, well formed.
struct DeflateOffer: Equatable {
  static let name = "permessage-deflate"
  var serverForgets = false
  var clientForgets = false
  var serverWindowBits: Int?
  /// `.some(nil)`: named without a value.
  var clientWindowBits: Int??

  /// Nil if it is another extension, or has a parameter that is unknown, duplicate or out of range.
  init?(_ element: String) {
    let parts = element.split(separator: ";", omittingEmptySubsequences: false).map { part in
      String(decoding: trimmed(Array(part.utf8)[...]), as: UTF8.self)
    }
    guard parts[0] == Self.name else { return nil }
    var seen: Set<String> = []
    for part in parts.dropFirst() {
      let halves = part.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false).map { half in
        String(decoding: trimmed(Array(half.utf8)[...]), as: UTF8.self)
      }
      guard seen.insert(halves[0]).inserted else { return nil }
      let value = halves.count == 2 ? halves[1] : nil
      switch (halves[0], value) {
      case ("server_no_context_takeover", nil): serverForgets = true
      case ("client_no_context_takeover", nil): clientForgets = true
      case ("server_max_window_bits", let value?):
        guard let bits = Self.bits(value) else { return nil }
        serverWindowBits = bits
      case ("client_max_window_bits", nil): clientWindowBits = .some(nil)
      case ("client_max_window_bits", let value?):
        guard let bits = Self.bits(value) else { return nil }
        clientWindowBits = bits
      default: return nil
      }
    }
  }

  /// "8" to "15", optionally in quotes; leading zeroes are not allowed.
  private static func bits(_ value: String) -> Int? {
    var value = value[...]
    if value.count >= 2, value.first == "\"", value.last == "\"" { value = value.dropFirst().dropLast() }
    return (8...15).first { "\($0)" == value }
  }
}
