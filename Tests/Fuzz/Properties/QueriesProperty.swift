// Path and query of a request to the admin listener. An input that does not begin with a slash is the query of /readyz.

@testable import GatewayKit
@testable import StreamWebSocket

enum QueriesProperty {
  private enum Outcome: Equatable {
    case fault
    case nothing
    case refused(HTTPStatus, String)
    case request(AdminResource, [String: String])
  }

  static func check(_ input: [UInt8]) throws(Broken) {
    // A line end would begin the fields.
    guard !input.contains(0x0D), !input.contains(0x0A) else { return }
    let target = input.first == UInt8(ascii: "/") ? input : Array("/readyz?".utf8) + input
    let head = head(target)
    let isPlain = target.allSatisfy { $0 > 0x20 && $0 < 0x7F && $0 != UInt8(ascii: "#") }
    try hold(isPlain || head == nil, "a target that must be escaped")
    guard let head else { return }
    let outcome = outcome(head)
    let query = head.query.map { "?\($0)" } ?? ""
    try hold(self.outcome("/" + escaped(head.path.utf8.dropFirst()) + query) == outcome, "another path when escaped")
    let lowercase = self.outcome(withLowercaseEscapes(target))
    // A refusal quotes a parameter as it was sent.
    if case .refused(let status, _) = outcome, case .refused(status, _) = lowercase {
    } else {
      try hold(lowercase == outcome, "another one with small digits")
    }
    switch outcome {
    case .fault: throw Broken("no fault before")
    case .nothing: break
    case .refused(let status, let detail):
      try hold(status == .badRequest, "\(status): \(detail)")
      try hold(detail.hasPrefix("The query has ") || detail.hasPrefix("This path takes no parameter '"), detail)
      try holdsOneLine(detail, "a refusal")
    case .request(let resource, let values):
      try hold(path(of: resource).map { Array($0.utf8) == Array(head.path.utf8) } ?? true, "the path of another")
      try check(values, head, outcome)
    }
  }

  /// Each part of the query is there once, as text, and reads back.
  private static func check(_ values: [String: String], _ head: HTTPRequestHead, _ outcome: Outcome) throws(Broken) {
    try hold((head.query ?? "").split(separator: "&").count == values.count, "a parameter is lost")
    for (name, value) in values {
      try hold(!value.unicodeScalars.contains(where: JSONValue.misleads), "\(name) is no text")
    }
    let again = values.map { "\($0.key)=\(escaped($0.value.utf8))" }.joined(separator: "&")
    let path = "/" + escaped(head.path.utf8.dropFirst())
    try hold(self.outcome(values.isEmpty ? path : "\(path)?\(again)") == outcome, "\(again) does not read back")
  }

  private static func head(_ target: [UInt8]) -> HTTPRequestHead? {
    let line = Array("GET ".utf8) + target + Array(" HTTP/1.1\r\nHost: localhost\r\n\r\n".utf8)
    return (try? AdminRig.head(line).get())??.0
  }

  private static func outcome(_ target: String) -> Outcome { outcome(Array(target.utf8)) }
  private static func outcome(_ target: [UInt8]) -> Outcome { head(target).map { outcome($0) } ?? .fault }

  private static func outcome(_ head: HTTPRequestHead) -> Outcome {
    guard let resource = AdminResource(path: head.path) else { return .nothing }
    // What changes something takes POST; its path and query are read in the same way.
    let post = resource.methods.contains("GET") ? head : changed(head)
    guard let post else { return .fault }
    switch AdminRig.request(post, for: resource, WebPageRule()) {
    case .success(let request): return .request(request.resource, request.query)
    case .failure(let refusal): return .refused(refusal.status, refusal.detail)
    }
  }

  /// The same with POST.
  private static func changed(_ head: HTTPRequestHead) -> HTTPRequestHead? {
    (try? AdminRig.head(Array("POST \(head.target) HTTP/1.1\r\nHost: localhost\r\n\r\n".utf8)).get())??.0
  }

  private static func escaped(_ bytes: some Sequence<UInt8>) -> String {
    let digits = Array("0123456789ABCDEF")
    return bytes.map { "%\(digits[Int($0 >> 4)])\(digits[Int($0 & 15)])" }.joined()
  }

  private static func withLowercaseEscapes(_ target: [UInt8]) -> [UInt8] {
    var target = target
    for place in target.indices where target[place] == UInt8(ascii: "%") {
      for digit in place + 1..<min(place + 3, target.count) where UInt8(ascii: "A")...UInt8(ascii: "F") ~= target[digit]
      {
        target[digit] |= 0x20
      }
    }
    return target
  }

  /// The one path that a resource has. Nil for files.
  private static func path(of resource: AdminResource) -> String? {
    let route = { (name: String, what: String) in "/api/v1/routes/\(name)\(what)" }
    return switch resource {
    case .file: nil
    case .health: "/healthz"
    case .ready: "/readyz"
    case .metrics: "/metrics"
    case .openAPI: "/api/v1/openapi.json"
    case .user: "/api/v1/user"
    case .routes: "/api/v1/routes"
    case .clients: "/api/v1/clients"
    case .devices: "/api/v1/devices"
    case .events: "/api/v1/events"
    case .log(nil): "/api/v1/log"
    case .reload: "/api/v1/reload"
    case .route(let name): route(name, "")
    case .log(let name?): route(name, "/log")
    case .kick(let name): route(name, "/kick")
    case .reset(let name): route(name, "/reset")
    case .release(let name): route(name, "/release")
    case .reopen(let name): route(name, "/reopen")
    case .line(let name): route(name, "/line")
    case .writer(let name): route(name, "/writer")
    case .send(let name): route(name, "/send")
    case .terminal(let name): route(name, "/terminal")
    }
  }
}
