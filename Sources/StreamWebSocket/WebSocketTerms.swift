// What both sides have agreed upon in the upgrade. Goes with a client from the lane that greets him to the lane of his link.

/// A sub-protocol that this gateway knows. Without one, and with `binary`, messages are bytes and nothing else.
public enum WebSocketSubprotocol: String, CaseIterable, Sendable {
  /// What websockify's clients ask for: binary messages are bytes.
  case binary
  /// Binary messages are bytes, text messages are control in JSON.
  case baudwayV1 = "baudway.v1"
}

public struct WebSocketTerms: Equatable, Sendable {
  public var subprotocol: WebSocketSubprotocol?
  /// Nil: nothing is compressed.
  public var deflate: DeflateTerms?

  public init(subprotocol: WebSocketSubprotocol? = nil, deflate: DeflateTerms? = nil) {
    self.subprotocol = subprotocol
    self.deflate = deflate
  }
}

/// The parameters of permessage-deflate that were agreed upon (RFC 7692 section 7.1), as this side sees them.
public struct DeflateTerms: Equatable, Sendable {
  /// Size of the window that this side compresses with: two to the power of 9 to 15 bytes.
  public var ownWindowBits = 15
  /// Whether a message of this side may refer to what stood in the ones before it.
  public var ownContextTakeover = true
  /// The same of the other side: 8 to 15.
  public var otherWindowBits = 15
  public var otherContextTakeover = true

  public init() {}
}

/// What this side is willing to do for permessage-deflate.
public struct DeflateSettings: Equatable, Sendable {
  /// The largest window to compress with, and to ask of the other side: 9 to 15. Memory per client is 8 windows and 32 KiB to compress,
  /// a window and 10 KiB to expand.
  public var windowBits: Int
  /// Whether to keep windows from one message to the next; without, they are there only while a message is.
  public var contextTakeover: Bool

  public init(windowBits: Int = 12, contextTakeover: Bool = true) {
    precondition((9...15).contains(windowBits))
    self.windowBits = windowBits
    self.contextTakeover = contextTakeover
  }

  /// The first of a client's offers that can be taken as it stands, and the words to say so; nil when there is none
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

  /// What a client asks for.
  var offer: String {
    var offer = "\(DeflateOffer.name); client_max_window_bits"
    if windowBits < 15 { offer += "; server_max_window_bits=\(windowBits)" }
    if !contextTakeover { offer += "; server_no_context_takeover; client_no_context_takeover" }
    return offer
  }

  /// What a client makes of the server's answer; nil when it is not one to `offer` (RFC 7692 section 7.1).
  func terms(of answer: String) -> DeflateTerms? {
    guard let answer = DeflateOffer(answer) else { return nil }
    var terms = DeflateTerms()
    terms.ownContextTakeover = contextTakeover && !answer.clientForgets
    if let bits = answer.clientWindowBits {
      // Without a value it says nothing, and a server may not say that.
      guard let bits, bits >= 9 else { return nil }
      terms.ownWindowBits = bits
    }
    terms.ownWindowBits = min(terms.ownWindowBits, windowBits)
    terms.otherContextTakeover = !answer.serverForgets
    terms.otherWindowBits = answer.serverWindowBits ?? 15
    // A larger window than was asked for, or a promise that was asked for and not given.
    guard windowBits == 15 || terms.otherWindowBits <= windowBits, contextTakeover || answer.serverForgets else {
      return nil
    }
    return terms
  }
}

/// One element of Sec-WebSocket-Extensions that is permessage-deflate, well formed.
struct DeflateOffer: Equatable {
  static let name = "permessage-deflate"
  var serverForgets = false
  var clientForgets = false
  var serverWindowBits: Int?
  /// `.some(nil)`: named without a value.
  var clientWindowBits: Int??

  /// Nil when it is another extension, or has a parameter that is unknown, twice there or out of its range.
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

  /// "8" to "15", perhaps in quotes; leading zeroes are not allowed.
  private static func bits(_ value: String) -> Int? {
    var value = value[...]
    if value.count >= 2, value.first == "\"", value.last == "\"" { value = value.dropFirst().dropLast() }
    return (8...15).first { "\($0)" == value }
  }
}
