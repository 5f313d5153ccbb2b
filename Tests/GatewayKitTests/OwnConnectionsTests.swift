// Which accepted connections are links of the gateway's own routes. Uses real sockets: what counts is what the kernel
// says of their ends.

import ByteStreams
import Glibc
import StreamConformanceKit
import Testing

@testable import GatewayKit
@testable import StreamBrokerCore

@Suite("The search for loops")
struct OwnConnectionsTests {
  private let connections = OwnConnections()
  private let loopback = SocketAddress(ipv4: [127, 0, 0, 1], port: 0)

  /// Noncopyable, as a tuple of it can't be.
  private struct End: ~Copyable {
    let socket: Descriptor
    let address: SocketAddress
  }

  private func listen(isOurs: Bool = true) throws -> End {
    let socket = try Descriptor.socket(.ipv4)
    try #require(loopback.withSockaddr { bind(socket.raw, $0, $1) } == 0 && Glibc.listen(socket.raw, 8) == 0)
    let address = try #require(try SocketAddress.local(of: socket.raw))
    if isOurs { connections.willListen(on: address.port) }
    return End(socket: socket, address: address)
  }

  /// Connects from `source`, or from any port.
  private func connect(to target: SocketAddress, from source: SocketAddress? = nil) throws -> Descriptor {
    let socket = try Descriptor.socket(.ipv4)
    var yes: Int32 = 1
    setsockopt(socket.raw, SOL_SOCKET, SO_REUSEADDR, &yes, 4)
    try #require((source ?? loopback).withSockaddr { bind(socket.raw, $0, $1) } == 0)
    let answer = target.withSockaddr { Glibc.connect(socket.raw, $0, $1) }
    try #require(answer == 0 || errno == EINPROGRESS)
    return socket
  }

  /// With the address of the other side.
  private func accept(_ listener: borrowing End) throws -> End {
    var ready = pollfd(fd: listener.socket.raw, events: Int16(POLLIN), revents: 0)
    try #require(poll(&ready, 1, 60_000) == 1)
    let raw = Glibc.accept(listener.socket.raw, nil, nil)
    try #require(raw >= 0)
    return End(socket: Descriptor(owning: raw), address: try #require(try SocketAddress.peer(of: raw)))
  }

  private func isLoop(_ accepted: borrowing End, to route: String) -> Bool? {
    let (raw, peer) = (accepted.socket.raw, accepted.address)
    return switch connections.isLoop(raw, from: peer, to: route, "tcp://here", waitingFor: nil) {
    case .loop: true
    case .noLoop: false
    case .notYet: nil
    }
  }

  private func makeDial(from route: String, to endpoint: EndpointURL) -> OwnConnections.Dial {
    OwnConnections.Dial(from: OwnConnections.Origin(route, endpoint, in: connections))
  }

  /// Returns whether the ends were asked for.
  @discardableResult
  private func tell(
    _ dial: OwnConnections.Dial, _ number: UInt64, of connected: borrowing Descriptor, to target: SocketAddress
  ) throws -> Bool {
    let own = try SocketAddress.local(of: connected.raw)
    let raw = connected.raw
    var wereAsked = false
    dial.connects(number, to: target.port) {
      wereAsked = true
      return ConnectionEnds(dialled: raw, own, to: target)
    }
    return wereAsked
  }

  @Test("knows a link by both its ends: a client may come from the same address and port")
  func bothEnds() throws {
    let near = try listen()
    let other = try listen()
    let dial = makeDial(from: "r", to: try EndpointURL("tcp://\(near.address)"))
    let number = dial.willConnect(to: near.address.port)
    let link = try connect(to: near.address)
    try tell(dial, number, of: link, to: near.address)
    // Linux lets two sockets share an address as long as they lead to different ones.
    let client = try connect(to: other.address, from: try SocketAddress.local(of: link.raw))
    let stranger = try accept(other)
    let own = try accept(near)
    #expect(stranger.address == own.address)
    #expect(isLoop(stranger, to: "r") == false)
    #expect(dial.loop == nil)
    #expect(isLoop(own, to: "r") == true)
    #expect(dial.loop?.listener == "tcp://here")
    withExtendedLifetime(client) {}
  }

  @Test("waits while a link connects, and forgets it with its dial")
  func forgets() throws {
    let near = try listen()
    let endpoint = try EndpointURL("tcp://\(near.address)")
    let other = try listen()
    let client = try connect(to: other.address)
    let stranger = try accept(other)
    var dial: OwnConnections.Dial? = makeDial(from: "r", to: endpoint)
    let number = try #require(dial?.willConnect(to: near.address.port))
    let link = try connect(to: near.address)
    let own = try accept(near)
    #expect(isLoop(own, to: "r") == nil)
    #expect(isLoop(stranger, to: "r") == false)  // the link connects to another port
    try tell(#require(dial), number, of: link, to: near.address)
    #expect(isLoop(own, to: "another") == false)
    #expect(isLoop(own, to: "r") == true)
    dial = nil
    #expect(isLoop(own, to: "r") == false)
    withExtendedLifetime(client) {}
  }

  @Test("keeps no link to a port of another program, and asks nothing of it")
  func elsewhere() throws {
    let far = try listen(isOurs: false)
    let dial = makeDial(from: "r", to: try EndpointURL("tcp://\(far.address)"))
    let number = dial.willConnect(to: far.address.port)
    let link = try connect(to: far.address)
    let accepted = try accept(far)
    #expect(isLoop(accepted, to: "r") == false)  // no client waits for it
    #expect(try !tell(dial, number, of: link, to: far.address))
    #expect(isLoop(accepted, to: "r") == false)
  }

  @Test("knows a link to a listener that begins while it connects")
  func begins() throws {
    let near = try listen(isOurs: false)
    let dial = makeDial(from: "r", to: try EndpointURL("tcp://\(near.address)"))
    let number = dial.willConnect(to: near.address.port)
    connections.willListen(on: near.address.port)
    let link = try connect(to: near.address)
    let own = try accept(near)
    #expect(isLoop(own, to: "r") == nil)
    try tell(dial, number, of: link, to: near.address)
    #expect(isLoop(own, to: "r") == true)
  }

  @Test("finds the listener that 0.0.0.0 leads to, and a way by other routes")
  func others() throws {
    let near = try listen()
    let wanted = try #require(SocketAddress(numeric: "0.0.0.0", port: near.address.port))
    let endpoint = try EndpointURL("tcp://0.0.0.0:\(near.address.port)")
    for route in ["a", "b"] { connections.route(route, leadsTo: endpoint) }
    let first = makeDial(from: "a", to: endpoint)
    let second = makeDial(from: "b", to: endpoint)
    for (dial, route, loops) in [(first, "b", false), (second, "a", true)] {
      let number = dial.willConnect(to: wanted.port)
      let link = try connect(to: wanted)
      try tell(dial, number, of: link, to: wanted)
      let own = try accept(near)
      #expect(isLoop(own, to: route) == loops)
    }
    #expect(first.loop == nil)
    #expect(second.loop?.description.contains("by way of") == true)
  }
}
