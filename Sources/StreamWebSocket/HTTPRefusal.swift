// The response to a request that does not become a WebSocket: a status, fields and a sentence for people.

package struct HTTPRefusal: Error, Equatable, Sendable {
  /// Why a page was refused.
  package enum Cause: Sendable {
    /// The page has another origin.
    case foreignOrigin
    /// The page has the same origin, by a name that is not one of the server's.
    case foreignHost
  }

  package let status: HTTPStatus
  /// In addition to the fields of every response. They must not contain line ends.
  package var fields: [(name: String, value: String)]
  /// For people: what was wrong, and what to do.
  package let text: String
  /// Whether it responds to HEAD, and so has no content (RFC 9110 section 9.3.2).
  package var answersHead = false
  package var cause: Cause?

  package init(_ status: HTTPStatus, _ text: String, fields: [(name: String, value: String)] = []) {
    self.status = status
    self.text = text
    self.fields = fields
  }

  /// The response to bytes that are not a head.
  package init(_ fault: HTTPFault) {
    switch fault {
    case .malformed(let words):
      self.init(.badRequest, "This is a WebSocket port, and the input is not a valid request: \(words).")
    case .tooLarge: self.init(.headTooLarge, "The head of the request is too long.")
    case .version: self.init(.versionNotSupported, "This port speaks HTTP/1.1.")
    }
  }

  /// The whole response. Close the connection after it.
  package var bytes: [UInt8] {
    let body = text + "\n"
    var head = "HTTP/1.1 \(status.rawValue) \(status.phrase)\r\n"
    for field in fields { head += "\(field.name): \(field.value)\r\n" }
    head += "Content-Type: text/plain; charset=utf-8\r\nContent-Length: \(body.utf8.count)\r\nConnection: close\r\n\r\n"
    return Array((answersHead ? head : head + body).utf8)
  }

  package static func == (one: HTTPRefusal, other: HTTPRefusal) -> Bool { one.bytes == other.bytes }

  // MARK: - Refusals made by callers

  /// No route has this path.
  package static let notFound = HTTPRefusal(.notFound, "No route of this gateway has this path.")
  /// Log-in is needed, or failed.
  package static func unauthorized(realm: String = "baudway") -> HTTPRefusal {
    HTTPRefusal(
      .unauthorized, "Please log in: HTTP Basic, a bearer token, or a sub-protocol \"bearer.TOKEN\".",
      fields: [("WWW-Authenticate", "Basic realm=\"\(realm)\", charset=\"UTF-8\""), ("WWW-Authenticate", "Bearer")])
  }
  /// The page may not connect. `name` is its origin, or the host name by which it reaches us.
  static func foreignPage(_ cause: Cause, _ name: String) -> HTTPRefusal {
    let text =
      switch cause {
      case .foreignOrigin:
        "Pages from \(name) may not connect here. To allow them, add this origin to websocket.origins in the gateway's configuration."
      case .foreignHost:
        "Pages may not reach this gateway as \(name). To allow this, add the name to websocket.hosts in the gateway's configuration."
      }
    var refusal = HTTPRefusal(.forbidden, text)
    refusal.cause = cause
    return refusal
  }
  /// All slots are taken.
  package static func unavailable(_ text: String, retryAfter: Duration? = nil) -> HTTPRefusal {
    let seconds = retryAfter.map { max(1, $0.components.seconds) }
    return HTTPRefusal(.unavailable, text, fields: seconds.map { [("Retry-After", "\($0)")] } ?? [])
  }
}
