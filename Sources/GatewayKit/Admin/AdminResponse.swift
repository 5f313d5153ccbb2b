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
  /// Nil where there is no content.
  var contentType: String?
  var content: [UInt8] = []
  /// Whether it responds to HEAD: then the content is not sent (RFC 9110 section 9.3.2).
  var isHead = false
  /// What a browser may load and run for it.
  var policy = "default-src 'none'; frame-ancestors 'none'"
  /// Whether a browser may keep it.
  var caching = "no-store"

  static let plainText = "text/plain; charset=utf-8"
  static let json = "application/json"

  static func text(_ content: String, _ status: HTTPStatus = .ok, isHead: Bool = false) -> AdminResponse {
    AdminResponse(status: status, contentType: plainText, content: Array(content.utf8), isHead: isHead)
  }

  static func json(_ value: JSONValue, isHead: Bool = false) -> AdminResponse {
    .json(text: value.description, isHead: isHead)
  }

  /// `text` is JSON without a line end.
  static func json(text: String, isHead: Bool = false) -> AdminResponse {
    AdminResponse(status: .ok, contentType: json, content: Array((text + "\n").utf8), isHead: isHead)
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
      fields += [prompt, Field(name: "WWW-Authenticate", value: "Bearer")]
    case .unavailable, .tooManyRequests: fields.append(Field(name: "Retry-After", value: "5"))
    default: break
    }
    return AdminResponse(
      status: status, fields: fields, contentType: "application/problem+json",
      content: Array((problem.description + "\n").utf8), isHead: isHead)
  }

  /// A browser that gets it asks for a name and a password itself.
  private static let prompt = Field(name: "WWW-Authenticate", value: "Basic realm=\"baudway\", charset=\"UTF-8\"")
  /// After that a browser does not come by plain HTTP any more (RFC 6797). A year.
  private static let secureOnly = Field(name: "Strict-Transport-Security", value: "max-age=31536000")

  /// As the client that sent the request needs it.
  func adapted(to request: AdminRequest) -> AdminResponse {
    var response = self
    response.isHead = request.isHead
    // A script shows its own form.
    if request.isOfScript { response.fields.removeAll { $0 == Self.prompt } }
    if request.isSecure { response.fields.append(Self.secureOnly) }
    return response
  }

  static let logIn = "Log in with HTTP Basic or a bearer token of a user under 'users'."

  /// The head, up to its empty line. `length` is nil for content whose length is not known yet.
  func head(length: Int?, isChunked: Bool = false) -> String {
    var head = "HTTP/1.1 \(status.rawValue) \(status.phrase)\r\n"
    if let contentType { head += "Content-Type: \(contentType)\r\n" }
    if let length { head += "Content-Length: \(length)\r\n" }
    if isChunked { head += "Transfer-Encoding: chunked\r\n" }
    for field in fields { head += "\(field.name): \(field.value)\r\n" }
    // A browser must not guess its type.
    head += "Cache-Control: \(caching)\r\nX-Content-Type-Options: nosniff\r\n"
    head += "Content-Security-Policy: \(policy)\r\nConnection: close\r\n\r\n"
    return head
  }

  /// The whole response.
  var bytes: [UInt8] {
    // The length of a 304 would be that of the file (RFC 9110 section 8.6).
    let head = Array(head(length: contentType == nil ? nil : content.count).utf8)
    return isHead ? head : head + content
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

  init(_ refusal: HTTPRefusal) {
    self.init(refusal.status, refusal.text)
    fields = refusal.fields.map { AdminResponse.Field(name: $0.name, value: $0.value) }
    cause = refusal.cause
  }

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
