// What the gateway answers to a request of the admin listener, and its form on the connection.

import StreamTLS
import StreamWebSocket

/// An answer that is whole, or content of a length that is not known when it begins.
enum AdminAnswer {
  case whole(AdminResponse)
  case pieces(contentType: String, any ControlAnswer)
}

/// Knows the answers. Lives on the lane of the admin server.
protocol AdminBackend: AnyObject {
  /// Calls `done` once, now or later.
  /// For a request that looks.
  func answer(_ request: AdminRequest, for caller: AdminCaller, then done: @escaping (AdminAnswer) -> Void)
  /// Calls `done` once, when the change is made, or is not.
  func carryOut(_ action: AdminAction, for caller: AdminCaller, then done: @escaping (AdminAnswer) -> Void)
  func hasRoute(_ name: String) -> Bool
  /// Hands a client over to the route that `acceptance` names. If the route has gone, the connection closes.
  func admit(_ accepted: consuming AcceptedConnection, asTerminal acceptance: WebSocketAcceptance)
  /// The admin listener verifies clients' certificates by `context` from now on.
  func trusts(_ context: TLSServerContext)
}

/// The pieces of a response as they are sent: its head, then its content in chunks (RFC 9112 section 7.1), or for an
/// HTTP/1.0 client until the connection ends.
final class AdminPieces: ControlAnswer {
  private var head: [UInt8]?
  /// Nil when all of it was sent.
  private var content: (any ControlAnswer)?
  private let isChunked: Bool

  init(_ answer: AdminAnswer, to request: AdminRequest) {
    switch answer {
    case .whole(let response):
      head = response.adapted(to: request).bytes
      isChunked = false
    case .pieces(let contentType, let content):
      isChunked = !request.isOld
      let response = AdminResponse(status: .ok, contentType: contentType).adapted(to: request)
      head = Array(response.head(length: nil, isChunked: isChunked).utf8)
      self.content = request.isHead ? nil : content
    }
  }

  func next(_ done: @escaping ([UInt8]?) -> Void) {
    if let head = head.take() { return done(head) }
    guard let content else { return done(nil) }
    content.next { [weak self] piece in
      guard let self else { return }
      guard let piece else {
        self.content = nil
        return done(isChunked ? Array("0\r\n\r\n".utf8) : nil)
      }
      // An empty chunk would end the content.
      if piece.isEmpty { return next(done) }
      done(isChunked ? Array("\(String(piece.count, radix: 16))\r\n".utf8) + piece + Array("\r\n".utf8) : piece)
    }
  }
}
