// The answer to a request that does not become a WebSocket: a status, fields and a sentence for whoever sees it.

public struct HTTPRefusal: Error, Equatable, Sendable {
  public enum Status: Int, CaseIterable, Sendable {
    case badRequest = 400
    case unauthorized = 401
    case forbidden = 403
    case notFound = 404
    case methodNotAllowed = 405
    case upgradeRequired = 426
    case tooManyRequests = 429
    case headTooLarge = 431
    case unavailable = 503
    case versionNotSupported = 505

    /// The words of RFC 9110 section 15.
    public var phrase: String {
      switch self {
      case .badRequest: "Bad Request"
      case .unauthorized: "Unauthorized"
      case .forbidden: "Forbidden"
      case .notFound: "Not Found"
      case .methodNotAllowed: "Method Not Allowed"
      case .upgradeRequired: "Upgrade Required"
      case .tooManyRequests: "Too Many Requests"
      case .headTooLarge: "Request Header Fields Too Large"
      case .unavailable: "Service Unavailable"
      case .versionNotSupported: "HTTP Version Not Supported"
      }
    }
  }

  /// Why a page was refused.
  public enum Cause: Sendable {
    /// It is of another origin.
    case foreignOrigin
    /// It is of the same origin, by a name that is not one of the server's.
    case foreignHost
  }

  public let status: Status
  /// Besides those that each answer has. No line ends in them.
  public var fields: [(name: String, value: String)]
  /// For people: what was wrong, and what to do.
  public let text: String
  /// The answer to HEAD has no content (RFC 9110 section 9.3.2).
  public var answersHead = false
  public var cause: Cause?

  public init(_ status: Status, _ text: String, fields: [(name: String, value: String)] = []) {
    self.status = status
    self.text = text
    self.fields = fields
  }

  /// What bytes that are no head are answered.
  public init(_ fault: HTTPFault) {
    switch fault {
    case .malformed(let words):
      self.init(.badRequest, "This is a WebSocket port, and what came is no request: \(words).")
    case .tooLarge: self.init(.headTooLarge, "The head of the request is too long.")
    case .version: self.init(.versionNotSupported, "This port speaks HTTP/1.1.")
    }
  }

  /// The whole answer. The connection is to be closed behind it.
  public var bytes: [UInt8] {
    let body = text + "\n"
    var head = "HTTP/1.1 \(status.rawValue) \(status.phrase)\r\n"
    for field in fields { head += "\(field.name): \(field.value)\r\n" }
    head += "Content-Type: text/plain; charset=utf-8\r\nContent-Length: \(body.utf8.count)\r\nConnection: close\r\n\r\n"
    return Array((answersHead ? head : head + body).utf8)
  }

  public static func == (one: HTTPRefusal, other: HTTPRefusal) -> Bool { one.bytes == other.bytes }

  // MARK: - Those that callers make

  /// No route has this path.
  public static let notFound = HTTPRefusal(.notFound, "No route of this gateway has this path.")
  /// Log-in is needed, or was wrong.
  public static func unauthorized(realm: String = "baudway") -> HTTPRefusal {
    HTTPRefusal(
      .unauthorized, "Please log in: HTTP Basic, a bearer token, or a sub-protocol \"bearer.TOKEN\".",
      fields: [("WWW-Authenticate", "Basic realm=\"\(realm)\", charset=\"UTF-8\""), ("WWW-Authenticate", "Bearer")])
  }
  /// A page that may not connect. `name` is its origin, or the host by whose name it reaches us.
  static func foreignPage(_ cause: Cause, _ name: String) -> HTTPRefusal {
    let text =
      switch cause {
      case .foreignOrigin:
        "Pages from \(name) may not connect here. Whoever runs this gateway can allow it: websocket.origins."
      case .foreignHost:
        "Pages may not reach this gateway as \(name). Whoever runs it can allow that name: websocket.hosts."
      }
    var refusal = HTTPRefusal(.forbidden, text)
    refusal.cause = cause
    return refusal
  }
  /// All places are taken.
  public static func unavailable(_ text: String, retryAfter: Duration? = nil) -> HTTPRefusal {
    let seconds = retryAfter.map { max(1, $0.components.seconds) }
    return HTTPRefusal(.unavailable, text, fields: seconds.map { [("Retry-After", "\($0)")] } ?? [])
  }
}
