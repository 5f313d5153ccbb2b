// A listener whose clients have to complete a handshake first: PROXY header, TLS, HTTP, log-in. It runs on its route's
// lane and asks the handshake server, which binds the address and hands over the clients that have completed theirs.

import ByteStreams

final class HandshakeListener: Listener {
  private let listen: Config.Listen
  private let context: ListenerContext
  private let handshakeServer: LaneRef<HandshakeServer>
  private let number = RouteBinding.nextNumber()

  init(_ listen: Config.Listen, _ context: ListenerContext) {
    guard let handshakeServer = context.handshakeServer else {
      preconditionFailure("a gateway that greets has a handshake server")
    }
    self.listen = listen
    self.context = context
    self.handshakeServer = handshakeServer
  }

  /// The binding with the route's present settings.
  private var binding: RouteBinding { RouteBinding(number, listen, of: context) }

  func start() {
    let binding = binding
    handshakeServer.post { _, handshakeServer in handshakeServer.open(binding) }
  }

  func contextChanged() {
    let binding = binding
    handshakeServer.post { _, handshakeServer in handshakeServer.change(binding) }
  }

  func stop(then done: @escaping () -> Void) {
    let (number, word) = (number, context.closing)
    let back = context.callBack(done)
    handshakeServer.post { _, handshakeServer in
      handshakeServer.close(number, word)
      back()
    }
  }
}
