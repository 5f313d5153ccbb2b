// What every kind of listener promises, on every kind: a rig says how its URLs look and how a client comes. A new kind
// is one rig in `rigs`.

import Glibc
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

/// How to use one kind of listener.
struct ListenerRig: Sendable, CustomTestStringConvertible {
  let name: String
  /// The URL that lets the system choose an address.
  let freeURL: String
  /// The URL for the address that a listener told.
  let url: @Sendable (SocketAddress) -> String
  let connect: @Sendable (SocketAddress) throws -> FarEnd
  let occupy: @Sendable () throws -> (LoopbackListener, SocketAddress)
  var testDescription: String { name }

  static let rigs = [
    tcp("tcp on IPv4", "tcp://127.0.0.1:0", "127.0.0.1"), tcp("tcp on IPv6", "tcp://[::1]:0", "::1"),
    tcp("tcp on all addresses", "tcp://*:0", "127.0.0.1"),
    tcp("tcp by the name localhost", "tcp://localhost:0", "127.0.0.1"),
  ]

  private static func tcp(_ name: String, _ freeURL: String, _ host: String) -> ListenerRig {
    ListenerRig(
      name: name, freeURL: freeURL, url: { String(freeURL.dropLast()) + "\($0.port)" }, connect: { try connectTCP($0) },
      occupy: {
        let other = try LoopbackListener(host)
        return (other, other.address)
      })
  }
}

@Suite("A listener", .timeLimit(.minutes(1)))
struct ListenerConformanceTests {
  @Test("reports the address it got and hands over clients from it", arguments: ListenerRig.rigs)
  func accepts(rig: ListenerRig) async throws {
    try await withRoute(routeConfig(listen: rig.freeURL, endpoint: "sim://echo")) { story, _ in
      let address = try story.address()
      #expect(address.port != 0)
      let clients = try (0..<5).map { _ in try rig.connect(address) }
      for client in clients { try client.send([1]) }
      for client in clients { #expect(try client.receive(exactly: 1) == [1]) }
      let label = try story.wait { events in
        events.compactMap { event in if case .sessionOpened(_, _, let label) = event { label } else { nil } }.first
      }
      #expect(label.address?.isLoopback == true && label.listener.hasSuffix(":\(address.port)"))
      for client in clients { client.close() }
    }
  }

  @Test(
    "waits for an address that somebody holds, says so once, and serves as soon as it is free",
    arguments: ListenerRig.rigs)
  func occupied(rig: ListenerRig) async throws {
    let (other, taken) = try rig.occupy()
    try await withRoute(routeConfig(listen: rig.url(taken), endpoint: "sim://echo")) { story, _ in
      let error = try story.wait { events in
        events.compactMap { event in if case .listenerWaits(_, _, let error, _) = event { error } else { nil } }.first
      }
      #expect(error.name == "EADDRINUSE")
      other.close()
      let address = try story.address()
      let client = try rig.connect(address)
      try client.send([1])
      #expect(try client.receive(exactly: 1) == [1])
      #expect(story.all.count { event in if case .listenerWaits = event { true } else { false } } == 1)
      client.close()
    }
  }

  @Test("takes no more clients once it is stopped, and frees its address", arguments: ListenerRig.rigs)
  func stops(rig: ListenerRig) async throws {
    let told = Mutex<SocketAddress?>(nil)
    try await withRoute(routeConfig(listen: rig.freeURL, endpoint: "sim://echo")) { story, _ in
      let address = try story.address()
      told.withLock { $0 = address }
      try rig.connect(address).close()
    }
    let kept = told.withLock(\.self)
    let address = try #require(kept)
    await #expect(throws: SystemError("connect", ECONNREFUSED)) {
      try await onOwnThread { try rig.connect(address).close() }
    }
  }
}

@Suite("A TCP listener", .timeLimit(.minutes(1)))
struct TCPListenerTests {
  @Test("for all addresses is reached by IPv4 and IPv6, and tells IPv4 clients by their own address")
  func both() async throws {
    try await withRoute(routeConfig(listen: "tcp://*:0", endpoint: "sim://echo")) { story, _ in
      let v4 = try story.address()
      let v6 = try #require(SocketAddress(numeric: "::1", port: v4.port))
      let clients = [try connectTCP(v4), try connectTCP(v6)]
      let hosts = try story.wait { events in
        let hosts = events.compactMap { event in
          if case .sessionOpened(_, _, let label) = event { label.address?.host } else { nil }
        }
        return hosts.count == 2 ? hosts : nil
      }
      #expect(hosts == ["127.0.0.1", "::1"])
      for client in clients { client.close() }
    }
  }

  @Test("may be one of several of a route, all leading to the same endpoint")
  func several() async throws {
    let config = try ConfigFile.read(
      Array("routes: { x: { listen: ['tcp://127.0.0.1:0', 'tcp://[::1]:0'], endpoint: 'sim://echo' } }\n".utf8))
    try await withRoute(#require(config.routes.first)) { story, _ in
      let clients = [try connectTCP(story.address(of: "x", 0)), try connectTCP(story.address(of: "x", 1))]
      for client in clients { try client.send([1]) }
      // A shared echo says everything to everybody.
      for client in clients { #expect(try client.receive(exactly: 1) == [1]) }
      for client in clients { client.close() }
    }
  }

  @Test("waits for an address this machine does not have")
  func foreignAddress() async throws {
    try await withRoute(routeConfig(listen: "tcp://192.0.2.1:0", endpoint: "sim://echo")) { story, _ in
      let error = try story.wait { events in
        events.compactMap { event in if case .listenerWaits(_, _, let error, _) = event { error } else { nil } }.first
      }
      #expect(error == SystemError("bind", EADDRNOTAVAIL))
    }
  }
}
