// A response of the admin listener, and a refusal, as values. Every response ends its connection: the listener serves
// one request per connection.

import StreamWebSocket

struct AdminResponse: Equatable, Sendable {
  struct Field: Equatable, Sendable {
    let name: String
    let value: String
  }

  var status: HTTPStatus
  /// In addition to the fields of every response. They must not contain line ends.
  var fields: [Field] = []
  var contentType: String
  var content = ""
  /// Whether it responds to HEAD: then the content is not sent (RFC 9110 section 9.3.2).
  var isHead = false

  static let plainText = "text/plain; charset=utf-8"
  static let json = "application/json"

  static func text(_ content: String, _ status: HTTPStatus = .ok, isHead: Bool = false) -> AdminResponse {
    AdminResponse(status: status, contentType: plainText, content: content, isHead: isHead)
  }

  static func json(_ value: JSONValue, isHead: Bool = false) -> AdminResponse {
    AdminResponse(status: .ok, contentType: json, content: value.description + "\n", isHead: isHead)
  }

  /// An error as RFC 9457 has it. `detail` says what was wrong, and what to do.
  static func problem(
    _ status: HTTPStatus, _ detail: String, more: KeyValuePairs<String, JSONValue?> = [:], fields: [Field] = [],
    isHead: Bool = false
  ) -> AdminResponse {
    let members =
      JSONValue.object([
        "type": .text("about:blank"), "title": .text(status.phrase), "status": .integer(status.rawValue),
        "detail": .text(detail),
      ]).members ?? []
    let problem = JSONValue.object(members + (JSONValue.object(more).members ?? []))
    var fields = fields
    switch status {
    case .unauthorized:
      fields += [
        Field(name: "WWW-Authenticate", value: "Basic realm=\"baudway\", charset=\"UTF-8\""),
        Field(name: "WWW-Authenticate", value: "Bearer"),
      ]
    case .unavailable, .tooManyRequests: fields.append(Field(name: "Retry-After", value: "5"))
    default: break
    }
    return AdminResponse(
      status: status, fields: fields, contentType: "application/problem+json", content: problem.description + "\n",
      isHead: isHead)
  }

  static let logIn = "Log in with HTTP Basic or a bearer token of a user under 'users'."

  /// The head, up to its empty line. `length` is nil for content whose length is not known yet.
  func head(length: Int?, isChunked: Bool = false) -> String {
    var head = "HTTP/1.1 \(status.rawValue) \(status.phrase)\r\nContent-Type: \(contentType)\r\n"
    if let length { head += "Content-Length: \(length)\r\n" }
    if isChunked { head += "Transfer-Encoding: chunked\r\n" }
    for field in fields { head += "\(field.name): \(field.value)\r\n" }
    // What a browser must not do with a response: keep it, guess its type, show it in a frame or run it as a page.
    head += "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
    head += "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\nConnection: close\r\n\r\n"
    return head
  }

  /// The whole response.
  var bytes: [UInt8] {
    let head = head(length: content.utf8.count)
    return Array((isHead ? head : head + content).utf8)
  }
}

/// Why a request is not carried out.
struct AdminRefusal: Error, Equatable, Sendable {
  let status: HTTPStatus
  /// For people: what was wrong, and what to do.
  let detail: String
  var fields: [AdminResponse.Field] = []
  /// Why a web page was refused.
  var cause: HTTPRefusal.Cause?
  var isHead = false

  init(_ status: HTTPStatus, _ detail: String) {
    self.status = status
    self.detail = detail
  }

  init(_ refusal: HTTPRefusal) { self.init(refusal.status, refusal.text) }

  /// The response to bytes that are not a request.
  init(_ fault: HTTPFault) {
    switch fault {
    case .malformed(let words): self.init(.badRequest, "The input is not a valid HTTP request: \(words).")
    case .tooLarge: self.init(.headTooLarge, "The head of the request is too long.")
    case .version: self.init(.versionNotSupported, "This port speaks HTTP/1.1.")
    }
  }

  var isOfWebPage: Bool { cause != nil }
  var response: AdminResponse { .problem(status, detail, fields: fields, isHead: isHead) }
}
