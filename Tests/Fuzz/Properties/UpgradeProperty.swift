// The upgrade from both sides: bytes as a request, and the same bytes as an answer. Pieces must not change the result,
// and the reply must be a complete HTTP answer.

@testable import StreamWebSocket

enum UpgradeProperty {
  static func check(_ input: [UInt8]) throws(Broken) {
    let whole = request([input])
    try hold(request(input.map { [$0] }) == whole, "another request in pieces")
    switch whole {
    case .success(nil): break
    case .success(let head?): try check(head)
    case .failure(let fault): try check(HTTPRefusal(fault))
    }
    try checkLine(input, isHead: (try? whole.get()) ?? nil != nil)
    let answered = answer([input])
    try hold(answer(input.map { [$0] }) == answered, "another answer in pieces")
    if case .success(let head?) = answered {
      let asked = WebSocketRequest(
        host: "h", target: "/", subprotocol: "binary", deflate: DeflateSettings(), fields: [],
        key: "dGhlIHNhbXBsZSBub25jZQ==")
      do throws(WebSocketRequest.Fault) { _ = try asked.terms(of: head) } catch {
        try holdsOneLine("\(error)", "a fault")
      }
    }
  }

  /// A raw port judges the same bytes by their first line. Pieces must not change the verdict, and what a server reads
  /// as a request counts as one.
  private static func checkLine(_ input: [UInt8], isHead: Bool) throws(Broken) {
    guard input.withUnsafeBytes({ HTTPRequestLine.mayBegin(with: $0) }) else { return }
    var whole = HTTPRequestLine()
    let verdict = input.withUnsafeBytes { whole.judge($0) }
    try hold(!isHead || verdict == .isRequest, "a request that is none")
    var line = HTTPRequestLine()
    for end in 1...input.count {
      let judged = input[..<end].withUnsafeBytes { line.judge($0) }
      if judged != .undecided { return try hold(judged == verdict, "another verdict in pieces") }
    }
    try hold(verdict == .undecided, "no verdict in pieces")
  }

  private static func request(_ pieces: [[UInt8]]) -> Result<HTTPRequestHead?, HTTPFault> {
    var parser = HTTPRequestParser(limit: 2048)
    for piece in pieces {
      do throws(HTTPFault) {
        if case .complete(let head, _) = try parser.take(piece) { return .success(head) }
      } catch { return .failure(error) }
    }
    return .success(nil)
  }

  private static func answer(_ pieces: [[UInt8]]) -> Result<HTTPResponseHead?, HTTPFault> {
    var parser = HTTPResponseParser(limit: 2048)
    for piece in pieces {
      do {
        if case .complete(let head, _) = try piece.withUnsafeBytes({ try parser.take($0) }) { return .success(head) }
      } catch { return .failure(error as? HTTPFault ?? .tooLarge) }
    }
    return .success(nil)
  }

  private static func check(_ head: HTTPRequestHead) throws(Broken) {
    try holdsOneLine(head.method + head.target, "a first line")
    try hold(head.path.hasPrefix("/"), "the path \(head.path)")
    for field in head.fields.all { try holdsOneLine(field.name, "a field's name") }
    for isSecure in [false, true] {
      let settings = WebSocketUpgrade.Settings(isSecure: isSecure, deflate: DeflateSettings(windowBits: 12))
      var named = settings
      named.hosts = HostNames(["gate", "*.lab.example"])
      if case .success = upgrade(head, named), head.fields.count(of: "origin") > 0 {
        // Without the port and the root's dot, the host is one of ours.
        let host = lowercased(head["host"] ?? "")
        let isAddress = host.first.map { $0 == "[" || $0.isNumber } ?? false
        try hold(
          isAddress || ["gate", "localhost"].contains(where: host.hasPrefix) || host.contains(".lab.example"),
          "a page under the name \(host)")
        guard case .success = upgrade(head, settings) else { throw Broken("refused without names") }
      }
      switch upgrade(head, settings) {
      case .failure(let refusal): try check(refusal)
      case .success(let upgrade):
        guard case .success(let answer?) = answer([upgrade.response]) else { throw Broken("no whole answer") }
        try hold(answer.status == 101 && answer.fields.all.count <= 5, "another answer")
        guard let terms = upgrade.terms.deflate else { continue }
        try hold((9...12).contains(terms.ownWindowBits) && (8...15).contains(terms.otherWindowBits), "\(terms)")
      }
    }
  }

  private static func upgrade(
    _ head: HTTPRequestHead, _ settings: WebSocketUpgrade.Settings
  ) -> Result<WebSocketUpgrade, HTTPRefusal> {
    do throws(HTTPRefusal) { return .success(try WebSocketUpgrade(head, settings)) } catch { return .failure(error) }
  }

  private static func check(_ refusal: HTTPRefusal) throws(Broken) {
    try holdsOneLine(refusal.text, "a refusal")
    guard case .success(let answer?) = answer([refusal.bytes]) else { throw Broken("no whole answer: \(refusal.text)") }
    try hold(answer.status == refusal.status.rawValue, "another status")
    try hold(answer["content-length"] == "\(refusal.text.utf8.count + 1)", "another length")
  }
}
