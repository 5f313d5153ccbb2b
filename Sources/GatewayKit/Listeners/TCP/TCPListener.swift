// tcp://127.0.0.1:4001 · tcp://[::1]:4001 · tcp://:4001 (all addresses, IPv4 and IPv6) · tcp://*:0 (any free port)

import ByteStreams
import StreamBroker

final class TCPListener: Listener, TCPAcceptorOwner {
  private let listen: Config.Listen
  private let context: ListenerContext
  private lazy var acceptor = TCPAcceptor(of: self, on: context.poller)
  /// Its URL while clients can connect: "tcp://127.0.0.1:4001".
  private var bound: String?

  init(_ listen: Config.Listen, _ context: ListenerContext) {
    self.listen = listen
    self.context = context
  }

  func start() { acceptor.start() }

  func contextChanged() { acceptor.keepaliveChanged() }

  func stop(then done: @escaping () -> Void) {
    acceptor.stop()
    context.status.publish(.listenerClosed(route: context.route, listener: listen.target, bound: bound))
    bound = nil
    done()
  }

  // MARK: - Its acceptor

  var listenSocket: TCPListenSocket {
    TCPListenSocket(
      listen: listen, inherited: context.inherited, ownConnections: context.ownConnections,
      keepsAlive: context.keepsAlive, limitsUnsent: context.isShared)
  }

  var isReady: Bool { true }
  var refusalLine: String? { context.sendsNotices ? "baudway: out of descriptors" : nil }

  func accepted(_ descriptor: consuming Descriptor, from peer: SocketAddress?, at url: String) {
    let label = AcceptedConnection.Label(address: peer, listener: url)
    guard context.rates.admits(peer, at: context.poller.timers.now) else {
      let ending = Ending.tooFast(label)
      if context.sendsNotices, let reason = ending.cause {
        AcceptLoop.sendLine("baudway: \(reason)", to: descriptor.raw)
      }
      return context.ended(label, ending, nanoseconds: 0)
    }
    context.arrived(AcceptedConnection(descriptor, kind: .tcp(wasDialled: false), label: label))
  }

  func happened(_ event: TCPAcceptor.Event) {
    let (route, target) = (context.route, listen.target)
    switch event {
    case .listening:
      let name = "\(listen.scheme)://\(acceptor.name ?? "")"
      bound = name
      context.status.publish(.listening(route: route, listener: target, bound: name))
    case .waiting(let failure, let retry):
      context.status.publish(.listenerWaits(route: route, listener: target, failure, retry: retry))
    case .lost(_, let failure, let retry):
      context.status.publish(.listenerClosed(route: route, listener: target, bound: bound))
      bound = nil
      context.status.publish(.listenerWaits(route: route, listener: target, failure, retry: retry))
    case .outOfDescriptors(let error):
      context.status.publish(.outOfDescriptors(route: route, listener: bound ?? target, error))
    }
  }
}
