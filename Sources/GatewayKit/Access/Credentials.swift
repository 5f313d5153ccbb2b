// Parses clients' credentials from HTTP headers. The input is untrusted: it is bounded, parsed strictly, and never
// appears in a message.

import StreamBroker

package enum BearerToken {
  /// Shortest token, in characters: a shorter one could be guessed.
  static let least = 16
  static let most = 1024

  /// Characters allowed both in a header (RFC 6750, section 2.1) and in the name of a sub-protocol (RFC 6455, section
  /// 4.1).
  static func isToken(_ text: some StringProtocol) -> Bool {
    !text.isEmpty && text.utf8.count <= most && text.utf8.allSatisfy(isLetter)
  }

  private static func isLetter(_ byte: UInt8) -> Bool {
    switch byte {
    case 0x30...0x39, 0x41...0x5A, 0x61...0x7A: true
    default: "-._~+".utf8.contains(byte)
    }
  }
}

extension Credential {
  /// Parses an Authorization header's value (RFC 7617, RFC 6750); nil if the scheme is unknown or the value is
  /// malformed.
  package init?(authorization value: some StringProtocol) {
    guard value.utf8.count <= 4096, let space = value.firstIndex(of: " ") else { return nil }
    let rest = value[space...].drop { $0 == " " }
    switch value[..<space].lowercased() {
    case "basic":
      guard let bytes = Base64.decode(rest.utf8), let text = String(validating: bytes, as: UTF8.self),
        let colon = text.unicodeScalars.firstIndex(of: ":"), !text.unicodeScalars.contains(where: Suggestion.isControl)
      else { return nil }
      let (user, password) = (text[..<colon], text[text.unicodeScalars.index(after: colon)...])
      guard !user.isEmpty, !password.isEmpty else { return nil }
      self = .password(user: String(user), Secret(String(password)))
    case "bearer":
      guard BearerToken.isToken(rest) else { return nil }
      self = .token(Secret(String(rest)))
    default: return nil
    }
  }

  /// Parses the sub-protocol `bearer.TOKEN`, which a web page offers because it can't set headers; nil for any other.
  package init?(subprotocol name: some StringProtocol) {
    let prefix = "bearer."
    guard name.utf8.starts(with: prefix.utf8) else { return nil }
    // By bytes: a combining character after the dot would join it into one Character.
    let token = name[name.utf8.index(name.startIndex, offsetBy: prefix.utf8.count)...]
    guard BearerToken.isToken(token) else { return nil }
    self = .token(Secret(String(token)))
  }

  /// The credential of an upgrade request, from its Authorization headers or the sub-protocols that it offers. Nil if
  /// it is malformed, or if there are several.
  package init?(authorization: [String], subprotocols: [String]) {
    let offered = subprotocols.filter { $0.utf8.starts(with: "bearer.".utf8) }
    guard authorization.count + offered.count <= 1 else { return nil }
    if let value = authorization.first {
      self.init(authorization: value)
    } else if let name = offered.first {
      self.init(subprotocol: name)
    } else {
      self = .none
    }
  }
}

/// Base64 by RFC 4648, section 4, strictly: with padding, without other characters, in the one canonical form.
enum Base64 {
  static func decode(_ text: some Collection<UInt8>) -> [UInt8]? {
    guard !text.isEmpty, text.count % 4 == 0 else { return nil }
    var bytes: [UInt8] = []
    bytes.reserveCapacity(text.count / 4 * 3)
    var (bits, count, padding): (UInt32, Int, Int) = (0, 0, 0)
    for letter in text {
      if letter == UInt8(ascii: "=") {
        padding += 1
        continue
      }
      guard padding == 0, let value = value(of: letter) else { return nil }
      bits = bits << 6 | value
      count += 1
      if count % 4 == 0 { bytes += [UInt8(bits >> 16 & 0xFF), UInt8(bits >> 8 & 0xFF), UInt8(bits & 0xFF)] }
    }
    // Unused bits must be zero, or two texts would decode to the same bytes.
    switch padding {
    case 0: break
    case 1:
      guard bits & 0x3 == 0 else { return nil }
      bytes += [UInt8(bits >> 10 & 0xFF), UInt8(bits >> 2 & 0xFF)]
    case 2:
      guard bits & 0xF == 0 else { return nil }
      bytes.append(UInt8(bits >> 4 & 0xFF))
    default: return nil
    }
    return bytes
  }

  private static func value(of letter: UInt8) -> UInt32? {
    switch letter {
    case 0x41...0x5A: UInt32(letter - 0x41)
    case 0x61...0x7A: UInt32(letter - 0x61 + 26)
    case 0x30...0x39: UInt32(letter - 0x30 + 52)
    case 0x2B: 62
    case 0x2F: 63
    default: nil
    }
  }
}
