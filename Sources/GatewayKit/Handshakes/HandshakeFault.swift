// Why a handshake failed: the text in the client's ending, and for some reasons the counter in `status`.

import ByteStreams
import StreamBroker
import StreamWebSocket

/// Why a client did not complete its handshake.
enum HandshakeFault: CountedRefusal, Equatable, CustomStringConvertible {
  case tooSlow(String, Duration)
  case left(String)
  case notAProxy
  case tooMany(of: String)
  case tooFast(from: String)
  case crowded(String)
  case tooManyInAll
  case notLetIn(isUser: Bool)
  case noCertificate
  case unnamed
  case tooManyTries
  case comPortAtPrompt
  case noSuchPath(String)
  case noRequest(HTTPFault)
  case refused(HTTPRefusal)
  case adminRefused(AdminRefusal)

  var description: String {
    switch self {
    case .tooSlow(let step, let limit): "no \(step) within \(limit.components.seconds) s of connecting"
    case .left(let step): "no \(step) before the client closed"
    case .notAProxy: "its address is not in the networks of 'proxies'"
    case .tooMany(let address): "too many unfinished handshakes from \(address) ('limits.handshakes-per-address')"
    case .crowded(let step): "no \(step) yet, and other clients from its address are waiting"
    case .tooManyInAll: "too many handshakes are unfinished ('limits.handshakes')"
    case .tooFast(let address): "too many connections per second from \(address) ('limits.connects-per-second')"
    case .notLetIn(let isUser): isUser ? "this user may not use this route" : "no user has this certificate"
    case .noCertificate: "no certificate that identifies the client"
    case .unnamed: "no credentials in the request"
    case .tooManyTries: "wrong user names or passwords"
    case .comPortAtPrompt:
      "sent RFC 2217 requests at the log-in prompt; such clients need a certificate, or a listener with '?role='"
    case .noSuchPath(let path): "no route has the path \(Suggestion.quote(path))"
    case .noRequest(let fault): HTTPRefusal(fault).text
    case .adminRefused(let refusal): "answered \(refusal.response.status.rawValue): \(refusal.detail)"
    case .refused(let refusal): "answered \(refusal.status.rawValue): \(refusal.text)"
    }
  }
}

extension HandshakeFault {
  var counter: String? {
    switch self {
    case .noSuchPath: "no-such-path"
    case .adminRefused(let refusal) where refusal.cause == .foreignOrigin: "web-origin"
    case .adminRefused(let refusal) where refusal.cause == .foreignHost: "web-host"
    case .refused(let refusal) where refusal.cause == .foreignOrigin: "web-origin"
    case .refused(let refusal) where refusal.cause == .foreignHost: "web-host"
    default: nil
    }
  }
}

extension Ending {
  /// The address opened more connections in a second than `limits.connects-per-second` allows.
  static func tooFast(_ label: AcceptedConnection.Label) -> Ending {
    Ending(.denied, HandshakeFault.tooFast(from: label.address?.host ?? "one address"))
  }
}
