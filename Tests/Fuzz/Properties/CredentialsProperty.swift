// What a client sends to authenticate: an Authorization header, or by prefix: `s:` a sub-protocol, `h:` a hash of
// crypt(3) from a config file, `p:` a pattern of routes and a name.

import StreamBroker

@testable import GatewayKit

enum CredentialsProperty {
  static func check(_ input: [UInt8]) throws(Broken) {
    let text = String(decoding: input, as: UTF8.self)
    switch text.prefix(2) {
    case "s:": try checkSubprotocol(String(text.dropFirst(2)))
    case "h:": try checkHash(String(text.dropFirst(2)))
    case "p:": try checkPattern(String(text.dropFirst(2)))
    default:
      try checkHeader(text)
      try checkBase64(input)
    }
  }

  private static func checkHeader(_ text: String) throws(Broken) {
    guard let credential = Credential(authorization: text) else { return }
    switch credential {
    case .none: throw Broken("a header that says nothing")
    case .token(let token):
      try hold(text.hasSuffix(token.reveal()) && BearerToken.isToken(token.reveal()), "a token that was not sent")
    case .password(let user, let password):
      try hold(!user.isEmpty && !user.contains(":") && !password.reveal().isEmpty, "a name with a colon, or nothing")
      try holdsOneLine(user, "a user")
      // Two different headers never mean the same, except for spaces and the case of the scheme.
      let again = base64(Array("\(user):\(password.reveal())".utf8))
      try hold(text.utf8.reversed().starts(with: again.utf8.reversed()), "another way to say the same")
    }
    try decide(credential)
  }

  private static func checkSubprotocol(_ name: String) throws(Broken) {
    guard let credential = Credential(subprotocol: name) else { return }
    guard case .token(let token) = credential, name == "bearer.\(token.reveal())" else { throw Broken("another token") }
    try hold(Credential(authorization: [], subprotocols: ["binary", name]) == credential, "lost among others")
    try hold(Credential(authorization: ["Bearer \(token.reveal())"], subprotocols: [name]) == nil, "two at once")
    try decide(credential)
  }

  /// Only right credentials are accepted, and results print no secret.
  private static func decide(_ credential: Credential) throws(Broken) {
    let users = [
      Config.User(
        name: "ada", password: Secret("hash-sentinel"), tokens: [Secret("token-sentinel-0")], certificates: [],
        roles: nil)
    ]
    let access = Access(users, route: "gps", only: nil)
    switch access.decide(credential, role: .writer) {
    case .failed: break
    case .admitted(let identity, _):
      try hold(credential == .token(Secret("token-sentinel-0")) && identity.name == "ada", "somebody else gets in")
    case .check(let question):
      try hold(question.mayBeRight == (question.user == "ada"), "an unknown user")
      try hold(access.decide(question, isRight: false, role: .writer) == .failed, "a wrong password gets in")
      let right = access.decide(question, isRight: true, role: .writer)
      try hold((right == .failed) == !question.mayBeRight, "an unknown user gets in")
      try hold(!"\(question) \(right)".contains("sentinel"), "a secret is printed")
    case .asks, .denied: throw Broken("what was shown was not looked at")
    }
  }

  private static func checkBase64(_ input: [UInt8]) throws(Broken) {
    let text = base64(input)
    try hold(input.isEmpty || Base64.decode(text.utf8) == input, "bytes that don't come back")
    if let bytes = Base64.decode(input) { try hold(Array(base64(bytes).utf8) == input, "another way to say the same") }
  }

  private static func checkHash(_ text: String) throws(Broken) {
    guard let fault = CryptHash.fault(of: text) else {
      return try hold(!text.utf8.contains { $0 <= 0x20 || $0 >= 0x7F }, "a hash with odd letters")
    }
    try hold(text.utf8.count < 24 || !fault.contains(text), "a secret is printed")
    try holdsOneLine(fault, "a fault")
  }

  private static func checkPattern(_ text: String) throws(Broken) {
    let parts = text.split(separator: " ", maxSplits: 1, omittingEmptySubsequences: false).map(String.init)
    guard parts.count == 2, parts[0].utf8.count <= 64, parts[1].utf8.count <= 64 else { return }
    let (pattern, name) = (Array(parts[0].utf8), Array(parts[1].utf8))
    // A reference implementation: which prefixes of the name match the pattern so far.
    var fits = [true] + [Bool](repeating: false, count: name.count)
    for letter in pattern {
      var next = [Bool](repeating: false, count: name.count + 1)
      for end in 0...name.count {
        if letter == UInt8(ascii: "*") {
          next[end] = fits[end] || (end > 0 && next[end - 1])
        } else if end > 0, letter == UInt8(ascii: "?") || letter == name[end - 1] {
          next[end] = fits[end - 1]
        }
      }
      fits = next
    }
    try hold(RoutePattern(parts[0]).matches(parts[1]) == fits[name.count], "a pattern that fits otherwise")
  }

  private static func base64(_ bytes: [UInt8]) -> String {
    let letters = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".utf8)
    var text: [UInt8] = []
    for start in stride(from: 0, to: bytes.count, by: 3) {
      let group = (0..<3).map { start + $0 < bytes.count ? UInt32(bytes[start + $0]) : 0 }
      let bits = group[0] << 16 | group[1] << 8 | group[2]
      for place in 0..<4 {
        let isPadding = start + place > bytes.count
        text.append(isPadding ? UInt8(ascii: "=") : letters[Int(bits >> UInt32(18 - 6 * place) & 63)])
      }
    }
    return String(decoding: text, as: UTF8.self)
  }
}
