// The suite for every kind of listener. A rig defines its URLs and how a client connects. A new kind needs one rig in
// `rigs`.

import CLinux
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
  /// A URL whose address is free. Called once per test.
  let freeURL: @Sendable () throws -> String
  /// Connects a client to the listener that reported `bound`.
  let connect: @Sendable (_ bound: String) throws -> any FarParty
  /// A URL whose address is in use, the error that this causes, and a closure that frees the address.
  let occupy: @Sendable () throws -> (url: String, error: Int32, free: @Sendable () -> Void)
  /// The error of connecting when no socket listens any more.
  let refusal: SystemError
  /// More keys of its route, as in the file.
  var more = ""
  /// Clients at a time.
  var most = 5
  /// Whether log and status can distinguish its clients.
  var knowsClients = true
  var testDescription: String { name }

  static let rigs = [
    tcp("tcp on IPv4", "127.0.0.1"), tcp("tcp on IPv6", "[::1]"), tcp("tcp on all addresses", "*"),
    tcp("tcp by the name localhost", "localhost"), unix, pty,
    network("tls", "tls", more: certificate.text) { try shakeHands($0) },
    network("telnet", "telnet") { try negotiate($0) },
    network("telnets", "telnets", more: certificate.text) { try negotiate(try shakeHands($0)) },
    network("ws", "ws", path: "/gps") { try WebSocketClient(over: $0, path: "/gps") },
    network("wss", "wss", path: "/gps", more: certificate.text) {
      try WebSocketClient(over: try shakeHands($0), path: "/gps")
    },
  ]

  /// Takes the listener's questions about seven options, and answers none.
  private static func negotiate(_ client: any FarParty) throws -> any FarParty {
    var count = 0
    while count < 21 {
      let bytes = try client.receive()
      guard !bytes.isEmpty else { break }
      count += bytes.count
    }
    return client
  }

  private static func tcp(_ name: String, _ host: String) -> ListenerRig { network(name, "tcp", host) { $0 } }

  /// `greet` turns a connection into a client.
  private static func network(
    _ name: String, _ scheme: String, _ host: String = "127.0.0.1", path: String = "", more: String = "",
    greet: @escaping @Sendable (FarEnd) throws -> any FarParty
  ) -> ListenerRig {
    let digits = host == "[::1]" ? "::1" : "127.0.0.1"
    return ListenerRig(
      name: name, freeURL: { "\(scheme)://\(host):0\(path)" },
      connect: { bound in
        let port = try #require(bound.dropLast(path.utf8.count).split(separator: ":").last.flatMap { UInt16($0) })
        return try greet(try connectTCP(try #require(SocketAddress(numeric: digits, port: port))))
      },
      occupy: {
        let other = try LoopbackListener.atUnusedPort(digits)
        return ("\(scheme)://\(host):\(other.address.port)\(path)", EADDRINUSE, { other.close() })
      }, refusal: SystemError("connect", ECONNREFUSED), more: more)
  }

  /// The TLS keys of a route, with a certificate.
  static let certificate: (folder: TemporaryFolder, text: String) = {
    let folder = try! TemporaryFolder()  // a test can do nothing without one
    let files = try! TestAuthority().write("server", .init("gw.test", names: "DNS:gw.test"), to: folder)
    return (folder, "tls: { certificate: '\(files.certificate)', key: '\(files.key)' }")
  }()

  /// Paths in a temporary folder.
  private static func paths() -> @Sendable () -> String {
    let folder = try! TemporaryFolder()  // a test can do nothing without one
    let last = Atomic<Int>(0)
    return { folder / "\(last.add(1, ordering: .relaxed).newValue)" }
  }

  private static let unix: ListenerRig = {
    let path = paths()
    return ListenerRig(
      name: "unix", freeURL: { "unix://\(path())" },
      connect: { try connectUnix(String($0.dropFirst("unix://".count))) },
      occupy: {
        let path = path()
        let other = try UnixSocketFile.open(path, NodeOwnership(), queue: 1)
        return (
          "unix://\(path)", EADDRINUSE,
          {
            other.removeFile()
            _ = other.socket.take()
          }
        )
      }, refusal: SystemError("connect", ENOENT))
  }()

  private static let pty: ListenerRig = {
    let path = paths()
    return ListenerRig(
      name: "pty", freeURL: { "pty://\(path())" }, connect: { try openPort(String($0.dropFirst("pty://".count))) },
      occupy: {
        let path = path()
        Glibc.close(creat(path, 0o600))
        return ("pty://\(path)", EEXIST, { unlink(path) })
      }, refusal: SystemError("open", ENOENT), most: 1, knowsClients: false)
  }()
}

/// A TLS client that accepts any certificate. Blocks.
func shakeHands(_ connection: FarEnd, askingFor name: String? = nil) throws -> TLSFarEnd {
  var manner = TLSFarEnd.Manner()
  manner.serverName = name
  let client = try TLSFarEnd(try connection.take(), manner)
  try client.handshake()
  return client
}

/// A connected client. Blocks.
func connectUnix(_ path: String) throws -> FarEnd {
  let raw = socket(AF_UNIX, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
  guard raw >= 0 else { throw SystemError("socket") }
  let socket = Descriptor(owning: raw)
  guard try UnixAddress.path(path).withSockaddr({ connect(raw, $0, $1) }) == 0 else { throw SystemError("connect") }
  _ = fcntl(raw, F_SETFL, O_NONBLOCK)
  return FarEnd(socket, isSocket: true)
}

/// A program that has a serial port open.
func openPort(_ path: String) throws -> FarEnd {
  let raw = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)
  guard raw >= 0 else { throw SystemError("open") }
  return FarEnd(Descriptor(owning: raw), isSocket: false)
}

@Suite("A listener", .timeLimit(.minutes(5)))
struct ListenerConformanceTests {
  @Test("reports its bound address and accepts clients there", arguments: ListenerRig.rigs)
  func accepts(rig: ListenerRig) async throws {
    try await withRoute(routeConfig(rig.more, listen: rig.freeURL(), endpoint: "sim://echo")) { story, _ in
      let bound = try story.bound()
      #expect(!bound.hasSuffix(":0") && !bound.contains("?"))
      let clients = try (0..<rig.most).map { _ in try rig.connect(bound) }
      for client in clients { try client.send([1]) }
      for client in clients { #expect(try client.receive().first == 1) }
      let labels = try story.wait { events in
        let labels = events.compactMap { event in
          if case .sessionOpened(_, _, let label) = event { label } else { nil }
        }
        return labels.count == rig.most ? labels : nil
      }
      #expect(labels.allSatisfy { $0.listener == bound && ($0.client != nil) == rig.knowsClients })
      for client in clients { client.close() }
    }
  }

  // All kinds at once, because each waits for more than a second.
  @Test("waits for an address in use, reports it once, and serves as soon as the address is free", .waits)
  func occupied() async throws {
    try await withThrowingTaskGroup(of: Void.self) { group in
      for rig in ListenerRig.rigs { group.addTask { try await Self.occupied(rig) } }
      try await group.waitForAll()
    }
  }

  private static func occupied(_ rig: ListenerRig) async throws {
    let taken = try rig.occupy()
    try await withRoute(routeConfig(rig.more, listen: taken.url, endpoint: "sim://echo")) { story, _ in
      let failure = try story.wait { events in
        events.compactMap { event in if case .listenerWaits(_, _, let error, _) = event { error } else { nil } }.first
      }
      #expect(failure.cause?.errno == taken.error, "\(rig.name)")
      usleep(1_200_000)  // another try, which is not reported
      taken.free()
      let client = try rig.connect(try story.bound())
      try client.send([1])
      #expect(try client.receive().first == 1, "\(rig.name)")
      #expect(
        story.all.count { event in if case .listenerWaits = event { true } else { false } } == 1, "\(rig.name)")
      client.close()
    }
  }

  @Test("accepts no more clients once it is stopped, and frees its address", arguments: ListenerRig.rigs)
  func stops(rig: ListenerRig) async throws {
    let reported = Mutex("")
    try await withRoute(routeConfig(rig.more, listen: rig.freeURL(), endpoint: "sim://echo")) { story, _ in
      let bound = try story.bound()
      reported.withLock { $0 = bound }
      try rig.connect(bound).close()
    }
    let bound = reported.withLock(\.self)
    await #expect(throws: rig.refusal) { try await onOwnThread { try rig.connect(bound).close() } }
  }
}

@Suite("A TLS listener", .timeLimit(.minutes(5)))
struct TLSListenerTests {
  @Test("is reported with its server name (SNI), since other listeners may share its port")
  func serverName() async throws {
    let url = "tls://127.0.0.1:0?role=monitor&server-name=gw.test"
    let config = try routeConfig(ListenerRig.certificate.text, listen: url, endpoint: "sim://nmea")
    try await withRoute(config) { story, _ in
      let bound = try story.bound()
      #expect(bound.hasPrefix("tls://127.0.0.1:") && bound.hasSuffix("?server-name=gw.test"))
      let port = try #require(bound.split { ":?".contains($0) }.compactMap { UInt16($0) }.first)
      let address = try #require(SocketAddress(numeric: "127.0.0.1", port: port))
      let client = try shakeHands(connectTCP(address), askingFor: "gw.test")
      #expect(try !client.receive().isEmpty)
      #expect(story.labels.map(\.listener) == [bound])
      let reported = story.all.compactMap { event in
        if case .listening(_, let listener, _) = event { listener } else { nil }
      }
      #expect(reported == ["tls://127.0.0.1:0?server-name=gw.test"])
      client.close()
    }
  }
}

@Suite("A TCP listener", .timeLimit(.minutes(5)))
struct TCPListenerTests {
  @Test("for all addresses is reached by IPv4 and IPv6, and reports IPv4 clients by their IPv4 address")
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

  @Test("may be one of several of a route, all connected to the same endpoint")
  func several() async throws {
    let config = try ConfigFile.read(
      Array("routes: { x: { listen: ['tcp://127.0.0.1:0', 'tcp://[::1]:0'], endpoint: 'sim://echo' } }\n".utf8))
    try await withRoute(#require(config.routes.first)) { story, _ in
      let clients = [try connectTCP(story.address(of: "x", 0)), try connectTCP(story.address(of: "x", 1))]
      for client in clients { try client.send([1]) }
      // A shared echo sends all bytes to every client.
      for client in clients { #expect(try client.receive(exactly: 1) == [1]) }
      for client in clients { client.close() }
    }
  }

  @Test("waits for an address that this machine does not have")
  func foreignAddress() async throws {
    try await withRoute(routeConfig(listen: "tcp://192.0.2.1:0", endpoint: "sim://echo")) { story, _ in
      let error = try story.wait { events in
        events.compactMap { event in if case .listenerWaits(_, _, let error, _) = event { error } else { nil } }.first
      }
      #expect(error.cause == SystemError("bind", EADDRNOTAVAIL))
    }
  }
}
