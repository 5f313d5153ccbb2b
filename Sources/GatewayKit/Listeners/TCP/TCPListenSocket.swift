// Opens the sockets of a TCP listener: inherited ones for its address, or one that it binds. Every kind of TCP listener
// uses it.

import ByteStreams
import Glibc
import StreamBroker

struct TCPListenSocket {
  let listen: Config.Listen
  let inherited: InheritedSockets
  /// Learns the port before a client can connect to it.
  let ownConnections: OwnConnections
  // Options that clients inherit: SO_KEEPALIVE for idle clients, TCP_NOTSENT_LOWAT as a bound for unsent bytes.
  var keepsAlive: Bool
  var limitsUnsent: Bool

  private var port: UInt16 { UInt16(listen.port) }  // the URL's grammar allows no larger one
  // The most clients that wait for accept(2); net.core.somaxconn can lower it.
  private static let queue: Int32 = 4096

  /// Whether the starter has bound the address, and the socket stays open after `stop`.
  var isInherited: Bool { !inherited.matching(listen).isEmpty }

  /// Calls `take` for each inherited socket; if none is usable, for one that it binds.
  func open(_ take: (consuming Descriptor) throws(SystemError) -> Void) throws(SystemError) {
    var isOpen = false
    for inherited in inherited.matching(listen) {
      guard let socket = try? adopt(inherited) else { continue }
      try take(socket)
      isOpen = true
    }
    if !isOpen { try take(bind()) }
  }

  /// The address of a socket of `open`: "127.0.0.1:4001", "*:4001".
  func name(of socket: Int32) throws(SystemError) -> String {
    let address = try SocketAddress.local(of: socket) ?? .any(.ipv6, port: port)
    return listen.host == nil ? "*:\(address.port)" : "\(address)"
  }

  /// Why the address can't be opened, with advice.
  func failure(_ error: SystemError) -> OpenFailure {
    let advice: String? =
      switch error.errno {
      case EACCES where port < 1024:
        "ports below 1024 need the capability CAP_NET_BIND_SERVICE (AmbientCapabilities= of a unit), or a socket of systemd"
      case EACCES, EPERM: "a rule of this machine (SELinux, AppArmor, a sandbox) forbids this port"
      case EINVAL where listen.host?.contains(":") == true:
        "a link-local address needs its interface, as in [fe80::1%eth0]"
      case ENODEV, ENXIO: "no interface has that name yet"
      case EAFNOSUPPORT: "this machine has no IPv6: listen on an IPv4 address, such as 127.0.0.1, or on *"
      case EMFILE, ENFILE: "the limit of open files is reached; raise LimitNOFILE= or fs.file-max"
      case ENOBUFS, ENOMEM: "this machine has no memory left for sockets"
      case EADDRINUSE: "another program or gateway uses this address"
      case EADDRNOTAVAIL: "no interface has that address yet"
      default: nil
      }
    return OpenFailure(error.call, error, advice: advice)
  }

  /// Can't fail on a bound socket.
  func setKeepalive(of socket: Int32) throws(SystemError) {
    if keepsAlive {
      try SocketOptions.applyKeepalive(to: socket)
    } else {
      try SocketOptions.set(socket, SOL_SOCKET, SO_KEEPALIVE, 0)
    }
  }

  /// Sets the options of a client that connected before the inherited socket had them, such as the client for which the
  /// gateway was started. On a closed socket this fails; the next read reports that.
  func completeOptions(of client: Int32) {
    let hasAll =
      SocketOptions.value(client, Int32(IPPROTO_TCP), TCP_NODELAY) != 0
      && (!keepsAlive || SocketOptions.value(client, SOL_SOCKET, SO_KEEPALIVE) != 0)
      && (!limitsUnsent
        || SocketOptions.value(client, Int32(IPPROTO_TCP), TCP_NOTSENT_LOWAT) == SocketOptions.notSentLowWater)
    if hasAll { return }
    try? SocketOptions.applyStream(to: client, keepalive: keepsAlive, limitsUnsent: limitsUnsent)
  }

  /// Duplicates an inherited socket and sets all options that clients inherit: an earlier route may have changed them.
  private func adopt(_ inherited: InheritedSockets.Socket) throws(SystemError) -> Descriptor {
    let socket = try inherited.duplicate()
    // Clients inherit SO_REUSEADDR: without it a closing client would block the port if the socket must listen again.
    try SocketOptions.set(socket.raw, SOL_SOCKET, SO_REUSEADDR, 1)
    try listenAgain(socket.raw)
    try SocketOptions.applyStream(to: socket.raw, keepalive: false, limitsUnsent: limitsUnsent)
    if !limitsUnsent { try SocketOptions.set(socket.raw, Int32(IPPROTO_TCP), TCP_NOTSENT_LOWAT, 0) }
    try setKeepalive(of: socket.raw)
    return socket
  }

  /// Another process that shares the socket may have shut it down. If it still listens, this changes only its queue
  /// length.
  private func listenAgain(_ socket: Int32) throws(SystemError) {
    guard Glibc.listen(socket, Self.queue) == 0 else { throw SystemError("listen") }
    // A port that the kernel had chosen was lost in the shutdown, and the kernel has now chosen another.
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
    // Accepted sockets inherit these.
    try SocketOptions.applyStream(to: socket.raw, keepalive: keepsAlive, limitsUnsent: limitsUnsent)
    guard address.withSockaddr({ Glibc.bind(socket.raw, $0, $1) }) == 0 else { throw SystemError("bind") }
    let chosen = port == 0 ? try SocketAddress.local(of: socket.raw)?.port : nil
    ownConnections.willListen(on: chosen ?? port)
    guard Glibc.listen(socket.raw, Self.queue) == 0 else { throw SystemError("listen") }
    return socket
  }
}
