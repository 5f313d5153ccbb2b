// tcp://127.0.0.1:4001 · tcp://[::1]:4001 · tcp://:4001 (all addresses, IPv4 and IPv6) · tcp://*:0 (any free port)

import ByteStreams
import StreamBroker
import Glibc

final class TCPListener: Listener {
  /// Nil for all addresses.
  private let host: String?
  private let port: UInt16
  private let url: String
  private let listen: Config.Listen
  private let context: ListenerContext
  private var loops: [AcceptLoop] = []  // one, but for inherited sockets
  private var isInherited = false
  private var bound: String?
  private var retryTimer: Timers.Token?
  private var lastError: SystemError?

  private static let retry = Duration.seconds(1)
  // Clients that may wait for accept(2); the kernel cuts it to net.core.somaxconn.
  private static let queue: Int32 = 4096

  init(_ listen: Config.Listen, _ context: ListenerContext) {
    host = listen.host
    port = UInt16(listen.port)  // the URL's grammar lets no larger one through
    url = listen.place
    self.listen = listen
    self.context = context
  }

  func start() {
    do throws(SystemError) {
      let inherited = context.inherited.matching(listen)
      isInherited = !inherited.isEmpty
      if !isInherited { try accept(from: bind()) }
      for socket in inherited { try accept(from: adopt(socket)) }
      context.status.tell(.listening(route: context.route, listener: url, bound: bound ?? url))
    } catch {
      closeLoops()
      // An address that is not there yet, or a port somebody still holds: wait for it, and say so once.
      if error != lastError {
        let failure = OpenFailure(error.call, error)
        context.status.tell(.listenerWaits(route: context.route, listener: url, failure, retry: Self.retry))
      }
      lastError = error
      retryTimer = context.poller.timers.after(Self.retry) { [weak self] in self?.start() }
    }
  }

  private func accept(from socket: consuming Descriptor) throws(SystemError) {
    let address = try SocketAddress.local(of: socket.raw) ?? .any(.ipv6, port: port)
    let name = host == nil ? "tcp://*:\(address.port)" : "tcp://\(address)"
    let context = context
    loops.append(
      try AcceptLoop(
        socket, on: context.poller, farewell: context.sendsNotices ? "baudway: out of descriptors" : nil,
        outOfDescriptors: { context.status.tell(.outOfDescriptors(route: context.route, listener: name, $0)) },
        accepted: { descriptor, address in
          context.arrived(
            Arrival(descriptor, kind: .tcp(wasDialled: false), label: Arrival.Label(address: address, listener: name)))
        }))
    bound = name
  }

  private func closeLoops() {
    for loop in loops { loop.stop(isSocketShared: isInherited) }
    loops = []
    bound = nil
  }

  func contextChanged() {
    // Inherited by those who come from now on. It can't fail on a socket that is bound.
    for loop in loops { loop.withSocket { try? setKeepalive(of: $0) } }
  }

  func stop(then done: @escaping () -> Void) {
    context.poller.timers.cancel(retryTimer)
    let bound = bound
    closeLoops()
    context.status.tell(.listenerClosed(route: context.route, listener: url, bound: bound))
    done()
  }

  private func setKeepalive(of socket: Int32) throws(SystemError) {
    if context.keepsAlive {
      try SocketOptions.applyKeepalive(to: socket)
    } else {
      try SocketOptions.set(socket, SOL_SOCKET, SO_KEEPALIVE, 0)
    }
  }

  /// What clients inherit from it may have been set for another route before.
  private func adopt(_ inherited: InheritedSockets.Socket) throws(SystemError) -> Descriptor {
    let socket = try inherited.duplicate()
    try SocketOptions.applyStream(to: socket.raw, keepalive: false, limitsUnsent: context.isShared)
    if !context.isShared { try SocketOptions.set(socket.raw, Int32(IPPROTO_TCP), TCP_NOTSENT_LOWAT, 0) }
    try setKeepalive(of: socket.raw)
    return socket
  }

  private func bind() throws(SystemError) -> Descriptor {
    guard let host else {
      do {
        return try bind(.any(.ipv6, port: port), forBoth: true)
      } catch  where error.errno == EAFNOSUPPORT {  // a kernel without IPv6
        return try bind(.any(.ipv4, port: port))
      }
    }
    guard let address = SocketAddress(numeric: host == "localhost" ? "127.0.0.1" : host, port: port) else {
      throw SystemError("bind", EADDRNOTAVAIL)
    }
    return try bind(address)
  }

  private func bind(_ address: SocketAddress, forBoth: Bool = false) throws(SystemError) -> Descriptor {
    let socket = try Descriptor.socket(address.family)
    try SocketOptions.set(socket.raw, SOL_SOCKET, SO_REUSEADDR, 1)
    if address.family == .ipv6 {
      try SocketOptions.set(socket.raw, Int32(IPPROTO_IPV6), IPV6_V6ONLY, forBoth ? 0 : 1)
    }
    // Inherited by all that are accepted.
    try SocketOptions.applyStream(to: socket.raw, keepalive: context.keepsAlive, limitsUnsent: context.isShared)
    guard address.withSockaddr({ Glibc.bind(socket.raw, $0, $1) }) == 0 else { throw SystemError("bind") }
    guard Glibc.listen(socket.raw, Self.queue) == 0 else { throw SystemError("listen") }
    return socket
  }
}
