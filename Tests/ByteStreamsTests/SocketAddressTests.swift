// Addresses as values, and socket options.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

@Suite("A socket's address", .timeLimit(.minutes(5)))
struct SocketAddressTests {
  @Test(
    "prints as it was read",
    arguments: [
      ("127.0.0.1", "127.0.0.1:4001"), ("0.0.0.0", "0.0.0.0:4001"), ("::1", "[::1]:4001"), ("::", "[::]:4001"),
      ("2001:db8::ff00:42:8329", "[2001:db8::ff00:42:8329]:4001"), ("::ffff:10.0.0.1", "[::ffff:10.0.0.1]:4001"),
      ("fe80::1%lo", "[fe80::1%lo]:4001"),
    ])
  func printing(host: String, text: String) throws {
    let address = try #require(SocketAddress(numeric: host, port: 4001))
    #expect(address.description == text && address.host == host)
    #expect(address.withSockaddr { SocketAddress($0, length: $1) } == address)
  }

  @Test(
    "is not read from a name",
    arguments: ["localhost", "", "1.2.3", "1.2.3.4.5", "::1%", "::1%nosuch0", "[::1]", "1.2.3.4 ", "1.2.3.4\0.5"])
  func names(host: String) { #expect(SocketAddress(numeric: host, port: 1) == nil) }

  @Test("recognises an IPv4-mapped peer, and the loopback")
  func mapped() throws {
    let mapped = try #require(SocketAddress(numeric: "::ffff:127.0.0.1", port: 7))
    #expect(mapped.unmapped.description == "127.0.0.1:7" && mapped.isLoopback)
    #expect(SocketAddress(numeric: "::1", port: 0)?.isLoopback == true)
    for (address, reached) in [
      ("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("::ffff:0.0.0.0", "127.0.0.1"), ("::ffff:192.0.2.1", "192.0.2.1"),
      ("2001:db8::1", "2001:db8::1"),
    ] {
      #expect(
        SocketAddress(numeric: address, port: 7)?.connected == SocketAddress(numeric: reached, port: 7), "\(address)")
    }
    #expect(SocketAddress(numeric: "128.0.0.1", port: 0)?.isLoopback == false)
    #expect(SocketAddress.any(.ipv6, port: 3).description == "[::]:3")
  }

  @Test(
    "detects a socket that has connected to itself, by any address",
    arguments: [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "0.0.0.0"), ("::1", "::1"), ("::1", "::")])
  func ownPeer(host: String, dialled: String) throws {
    let wanted = try #require(SocketAddress(numeric: host, port: 0))
    let socket = try Descriptor.socket(wanted.family)
    try #require(wanted.withSockaddr { bind(socket.raw, $0, $1) } == 0)
    let own = try SocketAddress.local(of: socket.raw)
    let port = own?.port ?? 0
    #expect(!SocketAddress.isOwnPeer(socket.raw, at: own, dialled: port))
    let itself = try #require(SocketAddress(numeric: dialled, port: port))
    _ = itself.withSockaddr { connect(socket.raw, $0, $1) }  // EINPROGRESS, then done
    #expect(SocketAddress.isOwnPeer(socket.raw, at: own, dialled: port))
    let (near, far) = try FarEnd.tcpPair()
    defer { far.close() }
    let connected = try near.take()
    let peer = try #require(try SocketAddress.peer(of: connected.raw))
    let local = try SocketAddress.local(of: connected.raw)
    #expect(!SocketAddress.isOwnPeer(connected.raw, at: local, dialled: peer.port))
  }

  @Test("comes from both ends of a connection, and a listener's options with it", arguments: ["127.0.0.1", "::1"])
  func ends(host: String) throws {
    let wanted = try #require(SocketAddress(numeric: host, port: 0))
    let listener = try Descriptor.socket(wanted.family)
    #expect(wanted.withSockaddr { bind(listener.raw, $0, $1) } == 0 && listen(listener.raw, 1) == 0)
    try SocketOptions.applyStream(to: listener.raw, keepalive: true, limitsUnsent: true)
    let address = try #require(try SocketAddress.local(of: listener.raw))
    let client = try Descriptor.socket(address.family)
    _ = address.withSockaddr { connect(client.raw, $0, $1) }
    let raw = accept(listener.raw, nil, nil)
    try #require(raw >= 0)
    let accepted = Descriptor(owning: raw)
    #expect(try SocketAddress.peer(of: accepted.raw) == SocketAddress.local(of: client.raw))
    #expect(try SocketAddress.peer(of: client.raw) == address)
    for (level, option, value) in [
      (Int32(IPPROTO_TCP), TCP_NODELAY, 1), (SOL_SOCKET, SO_KEEPALIVE, 1), (Int32(IPPROTO_TCP), TCP_KEEPIDLE, 10),
      (Int32(IPPROTO_TCP), TCP_KEEPINTVL, 5), (Int32(IPPROTO_TCP), TCP_KEEPCNT, 3),
      (Int32(IPPROTO_TCP), TCP_NOTSENT_LOWAT, 131_072),
    ] as [(Int32, Int32, Int32)] {
      var found: Int32 = -1
      var length = socklen_t(4)
      #expect(getsockopt(accepted.raw, level, option, &found, &length) == 0)
      #expect(found == value)
    }
  }

  @Test("is nil where there is none")
  func none() throws {
    let socket = try Descriptor.socket(.ipv4)
    #expect(throws: SystemError("getpeername", ENOTCONN)) { try SocketAddress.peer(of: socket.raw) }
    #expect(SocketOptions.takeError(of: socket.raw, "connect") == nil)
  }
}
