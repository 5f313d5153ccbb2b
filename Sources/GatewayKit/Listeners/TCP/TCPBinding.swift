// The sockets behind a listener of the network: its address, bound, or those that were inherited for it. Every kind of
// listener on TCP uses it.

import ByteStreams
import Glibc
import StreamBroker

struct TCPBinding {
  let listen: Config.Listen
  let inherited: InheritedSockets
  /// What clients inherit: whether the kernel looks after idle ones, and whether what they have not read is bounded.
  var keepsAlive: Bool
  var limitsUnsent: Bool

  private var port: UInt16 { UInt16(listen.port) }  // the URL's grammar lets no larger one through
  // Clients that may wait for accept(2); the kernel cuts it to net.core.somaxconn.
  private static let queue: Int32 = 4096

  /// Whether somebody has bound it for us, and goes on to have it.
  var isInherited: Bool { !inherited.matching(listen).isEmpty }

  /// Hands out each socket: one, but for inherited ones. Where none of those can be used any more, one of our own.
  func open(_ take: (consuming Descriptor) throws(SystemError) -> Void) throws(SystemError) {
    var isOpen = false
    for inherited in inherited.matching(listen) {
      guard let socket = try? adopt(inherited) else { continue }
      try take(socket)
      isOpen = true
    }
    if !isOpen { try take(bind()) }
  }

  /// Where a socket of `open` listens: "127.0.0.1:4001", "*:4001".
  func name(of socket: Int32) throws(SystemError) -> String {
    let address = try SocketAddress.local(of: socket) ?? .any(.ipv6, port: port)
    return listen.host == nil ? "*:\(address.port)" : "\(address)"
  }

  /// Why it can't be opened, and what to do about that.
  func failure(_ error: SystemError) -> OpenFailure {
    let advice: String? =
      switch error.errno {
      case EACCES where port < 1024:
        "ports below 1024 need the capability CAP_NET_BIND_SERVICE (AmbientCapabilities= of a unit), or a socket of systemd"
      case EADDRINUSE: "another program has it, or another gateway"
      case EADDRNOTAVAIL: "no interface has that address yet"
      default: nil
      }
    return OpenFailure(error.call, error, advice: advice)
  }

  /// On a socket that is bound it can't fail.
  func setKeepalive(of socket: Int32) throws(SystemError) {
    if keepsAlive {
      try SocketOptions.applyKeepalive(to: socket)
    } else {
      try SocketOptions.set(socket, SOL_SOCKET, SO_KEEPALIVE, 0)
    }
  }

  /// What clients inherit from it may have been set for another route before.
  private func adopt(_ inherited: InheritedSockets.Socket) throws(SystemError) -> Descriptor {
    let socket = try inherited.duplicate()
    // For its clients as well: one that is leaving would keep the port from it, should it have to listen again.
    try SocketOptions.set(socket.raw, SOL_SOCKET, SO_REUSEADDR, 1)
    try listenAgain(socket.raw)
    try SocketOptions.applyStream(to: socket.raw, keepalive: false, limitsUnsent: limitsUnsent)
    if !limitsUnsent { try SocketOptions.set(socket.raw, Int32(IPPROTO_TCP), TCP_NOTSENT_LOWAT, 0) }
    try setKeepalive(of: socket.raw)
    return socket
  }

  /// Somebody who has the socket too may have shut it down. One that listens has another queue by this, and nothing else.
  private func listenAgain(_ socket: Int32) throws(SystemError) {
    guard Glibc.listen(socket, Self.queue) == 0 else { throw SystemError("listen") }
    // A port that the kernel had chosen has gone with that, and it has chosen another one.
    guard try SocketAddress.local(of: socket)?.port == port else {
      shutdown(socket, Int32(SHUT_RD))
      throw SystemError("listen", EADDRNOTAVAIL)
    }
  }

  private func bind() throws(SystemError) -> Descriptor {
    guard let host = listen.host else {
      do {
        return try bind(.any(.ipv6, port: port), forBoth: true)
      } catch  where error.errno == EAFNOSUPPORT {  // a kernel without IPv6
        return try bind(.any(.ipv4, port: port))
      }
    }
    guard let address = SocketAddress(numeric: host, port: port) else {
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
    try SocketOptions.applyStream(to: socket.raw, keepalive: keepsAlive, limitsUnsent: limitsUnsent)
    guard address.withSockaddr({ Glibc.bind(socket.raw, $0, $1) }) == 0 else { throw SystemError("bind") }
    guard Glibc.listen(socket.raw, Self.queue) == 0 else { throw SystemError("listen") }
    return socket
  }
}
