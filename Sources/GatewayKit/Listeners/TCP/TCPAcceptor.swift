// Listens at a TCP address: binds it, accepts clients, and binds again when that fails or the socket is lost. All TCP
// listeners use it, with or without a handshake.

import ByteStreams
import StreamBroker

/// The listener that a `TCPAcceptor` serves. It owns the acceptor, and must stop it before it is freed.
protocol TCPAcceptorOwner: AnyObject {
  /// How to open the address; a reload can change the options that clients inherit.
  var listenSocket: TCPListenSocket { get }
  /// Whether clients can be served; the address is not bound before.
  var isReady: Bool { get }
  /// A line for clients that are refused at the descriptor limit.
  var refusalLine: String? { get }
  /// `url` names the socket that the client connected to, with the listener's scheme: "tcp://127.0.0.1:4001".
  func accepted(_ descriptor: consuming Descriptor, from peer: SocketAddress?, at url: String)
  func happened(_ event: TCPAcceptor.Event)
}

final class TCPAcceptor {
  enum Event {
    case listening
    /// Reported once per reason.
    case waiting(OpenFailure, retry: Duration)
    /// The socket accepts no more; `name` was its address.
    case lost(name: String, OpenFailure, retry: Duration)
    case outOfDescriptors(SystemError)
  }

  private unowned let owner: any TCPAcceptorOwner
  private let poller: Poller
  private var loops: [AcceptLoop] = []  // one; several only with inherited sockets
  private var retry: BindRetry
  /// The address it listens on, "127.0.0.1:4001"; nil while it does not listen.
  private(set) var name: String?

  init(of owner: any TCPAcceptorOwner, on poller: Poller) {
    self.owner = owner
    self.poller = poller
    retry = BindRetry(poller.timers)
  }

  /// Why it does not listen; nil while it does, and before `start`.
  var failure: OpenFailure? { retry.failure }
  var isWaiting: Bool { retry.isWaiting }

  /// Binds, unless it listens already or its owner is not ready. Retries while the address is missing or in use.
  func start() {
    retry.cancel()
    guard loops.isEmpty, owner.isReady else { return }
    let socket = owner.listenSocket
    do throws(SystemError) {
      try socket.open { descriptor throws(SystemError) in try accept(from: descriptor, of: socket) }
      retry.succeeded()
      owner.happened(.listening)
    } catch {
      closeLoops()
      let failure = socket.failure(error)
      if retry.failed(failure, again: { [weak self] in self?.start() }) {
        owner.happened(.waiting(failure, retry: BindRetry.pause))
      }
    }
  }

  private func accept(from descriptor: consuming Descriptor, of socket: TCPListenSocket) throws(SystemError) {
    let name = try socket.name(of: descriptor.raw)
    let url = "\(socket.listen.scheme)://\(name)"
    // The loops stop before the acceptor is freed, and the owner outlives the acceptor.
    unowned let owner = owner
    let isInherited = socket.isInherited
    loops.append(
      try AcceptLoop(
        descriptor, on: poller, refusalLine: owner.refusalLine,
        outOfDescriptors: { owner.happened(.outOfDescriptors($0)) }, lost: { [unowned self] in lost($0) },
        accepted: { client, peer in
          if isInherited { owner.listenSocket.completeOptions(of: client.raw) }
          owner.accepted(client, from: peer, at: url)
        }))
    self.name = name
  }

  private func lost(_ error: SystemError) {
    let name = name ?? ""  // it has one while it has loops
    closeLoops()
    let failure = OpenFailure.lost(error)
    let pause = retry.lost(failure) { [weak self] in self?.start() }
    owner.happened(.lost(name: name, failure, retry: pause))
  }

  /// Updates keepalive on the sockets, for later clients.
  func keepaliveChanged() {
    let socket = owner.listenSocket
    for loop in loops { loop.withSocket { try? socket.setKeepalive(of: $0) } }
  }

  /// Hands over clients that have already connected, and closes the sockets.
  func stop() {
    retry.cancel()
    closeLoops()
  }

  private func closeLoops() {
    guard !loops.isEmpty else { return }
    let isInherited = owner.listenSocket.isInherited
    for loop in loops { loop.stop(isSocketShared: isInherited) }
    loops = []
    name = nil
  }
}
