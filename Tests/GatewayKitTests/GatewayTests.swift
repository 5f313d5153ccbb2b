// A gateway in this process: start, reload and stop, observed through its events and through TCP clients.

import Dispatch
import Glibc
import Logging
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A gateway", .timeLimit(.minutes(5)))
struct GatewayTests {
  private func config(_ routes: String...) throws -> Config {
    try ConfigFile.read(Array("routes:\n\(routes.map { "  \($0)\n" }.joined())".utf8))
  }

  /// Starts a gateway, runs `body`, which may block, and stops the gateway. Returns the time that the stop took. Time
  /// by `clock` passes only during the stop.
  @discardableResult
  private func withGateway(
    _ config: Config, control: ControlAddress? = nil, clock: ManualClock? = nil,
    _ body: @escaping @Sendable (Gateway, Story, StatusBoard) throws -> Void
  ) async throws -> Duration {
    let story = Story()
    let board = StatusBoard()
    // the board is up to date when the story reports an event
    let sink = StatusSink([board.observe] + story.sink.observers)
    let gateway = try Gateway(status: sink, board: board, clock: clock?.clock ?? .monotonic)
    for lane in gateway.lanes { clock?.drives(lane) }
    gateway.start(config, control: control)
    let result: Result<Void, any Error>
    do {
      try await onOwnThread {
        // Its routes run on other lanes, and may report events before `.started`.
        _ = try story.wait { events in events.first { if case .started = $0 { true } else { false } } }
        try body(gateway, story, board)
      }
      result = .success(())
    } catch {
      result = .failure(error)
    }
    let now = clock.map(\.clock.now) ?? monotonicNanoseconds
    let before = now()
    let passing = clock?.passes()
    await withCheckedContinuation { over in gateway.stop { over.resume() } }
    passing?.cancel()
    let length = now() - before
    #expect(!board.isHealthy)
    try result.get()
    return .nanoseconds(Int64(length))
  }

  private static let echo = "listen: 'tcp://127.0.0.1:0', endpoint: 'sim://echo'"

  @Test("serves every route, is healthy then, and stops in order")
  func serves() async throws {
    let control = ControlAddress.abstract("baudway-gateway-\(getpid())")
    let config = try config("a: { \(Self.echo) }", "b: { \(Self.echo) }")
    let length = try await withGateway(config, control: control) { _, story, board in
      for route in ["a", "b"] {
        let client = try connectTCP(story.address(of: route))
        try client.send([7])
        #expect(try client.receive(exactly: 1) == [7])
        client.close()
      }
      #expect(board.isHealthy)
      let answer = try askWhenThere("health", at: control)
      #expect(String(decoding: answer, as: UTF8.self) == #"{"healthy":true,"routes":2,"listeners-waiting":0}"#)
    }
    expectQuick(length.nanoseconds, 3_000_000_000)
    #expect(throws: SystemError.self) { try ControlClient.ask("health", at: control) }
  }

  @Test("ends a session with an internal fault as internal, names route and place, and serves all others")
  func internalFault() async throws {
    try await withGateway(try config("a: { \(Self.echo) }", "b: { \(Self.echo) }")) { gateway, story, _ in
      let clients = try ["a", "a", "b"].map { try connectTCP(story.address(of: $0)) }
      _ = try story.sessions(atLeast: 3)
      try clients[0].send([7])  // two share a device
      try clients[2].send([7])
      for client in clients { #expect(try client.receive(exactly: 1) == [7]) }
      let route = try ask(gateway.core) { $0.running["a"]?.route }
      let damaged = try ask(try #require(route)) { route in
        let session = route.group.sessions.min { $0.number < $1.number }
        session?.startOutput(at: .max - 7)
        return session?.number
      }
      try clients[1].send([8])
      #expect(try clients[1].receive(exactly: 1) == [8])
      #expect(try clients[0].receiveToEnd().isEmpty)
      let (ended, line) = try story.wait { events in
        for event in events { if case .sessionEnded("a", let number, _, _) = event { return (number, LogLine(event)) } }
        return nil
      }
      #expect(ended == damaged && line.level == .error)
      let fields = line.fields.map { "\($0.key)=\($0.value)" }.joined(separator: " ")
      #expect(fields.contains("route=a ") && fields.contains("place=session.take "), "\(fields)")
      for client in clients[1...] + [try connectTCP(story.address(of: "a"))] {
        try client.send([9])
        #expect(try client.receive(exactly: 1) == [9])
        client.close()
      }
    }
  }

  @Test("lists its routes in the order of their names, also after one was stopped")
  func order() async throws {
    try await withGateway(try config("b: { \(Self.echo) }", "c: { \(Self.echo) }", "a: { \(Self.echo) }")) {
      gateway, _, _ in
      func names() throws -> [String] { try ask(gateway.core) { $0.runningInOrder.map(\.config.name) } }
      #expect(try names() == ["a", "b", "c"] && names() == ["a", "b", "c"])
      try ask(gateway.core) { $0.stopRoute("b", .routeRemoved) }
      #expect(try names() == ["a", "c"])
    }
  }

  @Test("is healthy with listeners whose URLs have settings")
  func settings() async throws {
    let folder = try TemporaryFolder()
    let (unix, pty) = ("unix://\(folder / "x")?mode=0600", "pty://\(folder / "y")?mode=0600")
    let listen = "['tcp://127.0.0.1:0?role=monitor', '\(unix)', '\(pty)']"
    let config = try config("a: { listen: \(listen), endpoint: 'sim://echo' }")
    try await withGateway(config) { _, story, board in
      _ = try story.bound(of: "a", 2)
      #expect(board.isHealthy)
    }
  }

  @Test("is unhealthy while an address can't be bound")
  func unhealthy() async throws {
    let other = try LoopbackListener()
    let config = try config("a: { listen: 'tcp://\(other.address)', endpoint: 'sim://echo' }")
    try await withGateway(config) { _, story, board in
      _ = try story.wait { events in
        events.contains { if case .listenerWaits = $0 { true } else { false } } ? true : nil
      }
      #expect(!board.isHealthy)
      other.close()
      _ = try story.address(of: "a")
      #expect(board.isHealthy)
    }
  }

  @Test("on reload adds, removes, changes and replaces routes; only clients of removed and replaced routes are closed")
  func reloads() async throws {
    let before = try config(
      "same: { \(Self.echo) }", "gone: { \(Self.echo) }", "changed: { \(Self.echo) }", "other: { \(Self.echo) }")
    var after = try config(
      "same: { \(Self.echo) }", "changed: { \(Self.echo), clients: { max: 3 } }",
      "other: { \(Self.echo), link: per-client }", "new: { \(Self.echo) }")
    after.log.format = .json
    let reloaded = after
    try await withGateway(before) { gateway, story, board in
      let clients = try ["same", "changed", "gone", "other"].map { try connectTCP(story.address(of: $0)) }
      for client in clients {
        try client.send([1])
        _ = try client.receive(exactly: 1)
      }
      let report = try reload(gateway, to: reloaded)
      #expect(report.added == ["new"] && report.removed == ["gone"] && report.untouched == 1)
      #expect(report.changed.map(\.route) == ["changed", "other"])
      #expect(report.changed[0].keys.contains("clients.max") && report.changed[1].keys.contains("link"))
      #expect(report.settings == ["log.format"] && report.log == reloaded.log)
      // The reload is complete: everything listens.
      #expect(board.isHealthy)
      for client in clients[2...] {
        #expect(try client.receiveToEnd().isEmpty)
        client.close()
      }
      #expect(try story.reports(atLeast: 2).map(\.ending.word) == [.routeRemoved, .routeRemoved])
      for place in [("new", 0), ("other", 1)] {
        let client = try connectTCP(story.address(of: place.0, place.1))
        try client.send([2])
        #expect(try client.receive(exactly: 1) == [2])
        client.close()
      }
      for client in clients[..<2] {
        try client.send([3])
        #expect(try client.receive(exactly: 1) == [3])
      }
      // Both links opened once and stayed open.
      for name in ["same", "changed"] {
        let links = story.all.count { event in if case .link(name, _, .open, _) = event { true } else { false } }
        #expect(links == 1)
      }
      for client in clients[..<2] { client.close() }
    }
  }

  /// Blocks until the reload is complete.
  private func reload(_ gateway: Gateway, to config: Config) throws -> ReloadReport {
    let outcome = Answer<ReloadOutcome>()
    gateway.reload(config) { outcome.give($0) }
    guard case .carriedOut(let report) = try outcome.wait() else { throw SystemError("reload", EINVAL) }
    return report
  }

  @Test("moves addresses from one route to another at once: added, changed, exchanged", arguments: 0..<3)
  func takenOver(kind: Int) async throws {
    func route(_ name: String, _ port: UInt16) -> String {
      "\(name): { listen: 'tcp://127.0.0.1:\(port)', endpoint: 'sim://echo' }"
    }
    let (one, two) = (try freePort(), try freePort())
    let (before, after) =
      switch kind {
      case 0: (try config(route("a", one)), try config(route("b", one)))
      case 1: (try config(route("a", one), route("b", two)), try config(route("b", one)))
      default: (try config(route("a", one), route("b", two)), try config(route("a", two), route("b", one)))
      }
    try await withGateway(before) { gateway, story, board in
      _ = try story.address(of: "a")
      _ = try reload(gateway, to: after)
      #expect(board.isHealthy)
      let waited = story.all.contains { if case .listenerWaits = $0 { true } else { false } }
      #expect(!waited)
      #expect(board.listeners(of: "b").map(\.state) == [.listening("tcp://127.0.0.1:\(one)")])
    }
  }

  @Test(
    "gives each client the socket options of its own route, whichever route has opened the port that they share",
    arguments: [true, false])
  func socketOptions(sharedFirst: Bool) async throws {
    let port = try freePort()
    func route(_ isShared: Bool) -> String {
      let name = isShared ? "shared" : "own"
      let link = isShared ? "shared, clients: { keepalive: on }" : "per-client, clients: { keepalive: off }"
      return "\(name): { listen: 'ws://127.0.0.1:\(port)/\(name)', endpoint: 'sim://echo', link: \(link) }"
    }
    let before = try config(route(sharedFirst))
    let after = try config(route(sharedFirst), route(!sharedFirst))
    try await withGateway(before) { gateway, story, _ in
      _ = try reload(gateway, to: after)
      for (index, name) in ["shared", "own"].enumerated() {
        let client = try WebSocketClient(over: connectTCP(story.address(of: name)), path: "/\(name)")
        _ = try story.sessions(atLeast: index + 1)
        let address = try #require(story.labels[index].address)
        let raw = try #require(acceptedSocket(of: address, at: port))
        #expect(option(raw, SOL_SOCKET, SO_KEEPALIVE) == (name == "shared" ? 1 : 0))
        let lowWater = name == "shared" ? SocketOptions.notSentLowWater : 0
        #expect(option(raw, Int32(IPPROTO_TCP), TCP_NOTSENT_LOWAT) == lowWater)
        client.close()
      }
    }
  }

  /// The gateway's socket of a client: the gateway runs in this process.
  private func acceptedSocket(of client: SocketAddress, at port: UInt16) -> Int32? {
    (Int32(0)..<65_536).first { raw in
      (try? SocketAddress.local(of: raw))?.port == port && (try? SocketAddress.peer(of: raw)) == client
    }
  }

  private func freePort() throws -> UInt16 {
    let listener = try LoopbackListener()
    defer { listener.close() }
    return listener.address.port
  }

  @Test("stops within five seconds though a client reads nothing")
  func stuckClient() async throws {
    let config = try config("a: { listen: 'tcp://127.0.0.1:0', endpoint: 'sim://flood', clients: { slow: block } }")
    let client = Kept()
    let length = try await withGateway(config, clock: ManualClock()) { _, story, _ in
      let stuck = try connectTCP(story.address(of: "a"))
      _ = try stuck.receive(upTo: 1)
      client.keep(stuck)
    }
    #expect(length > .seconds(4) && length < .seconds(6))
    client.close()
  }

  @Test("may be reloaded while a route is stopping, and stopped right after that")
  func overlapping() async throws {
    let first = try config("a: { \(Self.echo) }")
    let second = try config("a: { \(Self.echo), link: per-client }")
    try await withGateway(first) { gateway, story, _ in
      let client = try connectTCP(story.address(of: "a"))
      try client.send([1])
      _ = try client.receive(exactly: 1)  // the client is accepted; one still in the kernel's queue would be reset
      for _ in 0..<10 {
        gateway.reload(second)
        gateway.reload(first)
      }
      gateway.reload(second)
      #expect(try client.receiveToEnd().isEmpty)
      client.close()
    }
  }
}

/// The result of a callback on another queue, for a thread that may block.
final class Answer<Value: Sendable>: Sendable {
  private let value = Mutex<Value?>(nil)
  private let given = DispatchSemaphore(value: 0)

  func give(_ new: Value) {
    value.withLock { $0 = new }
    given.signal()
  }

  func wait() throws -> Value {
    guard given.wait(timeout: .now() + .seconds(Patience.seconds)) == .success, let value = value.withLock(\.self)
    else {
      throw SystemError("waiting for an answer", ETIMEDOUT)
    }
    return value
  }
}

/// A client that outlives the body of its test.
private final class Kept: Sendable {
  private let end = DispatchQueue(label: "kept")
  nonisolated(unsafe) private var client: FarEnd?  // touched on the queue only
  func keep(_ client: FarEnd) { end.sync { self.client = client } }
  func close() { end.sync { client?.close() } }
}
