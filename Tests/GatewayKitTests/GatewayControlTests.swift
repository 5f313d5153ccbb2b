// A gateway started from a file: requests at its control socket and reloads while it runs.

import Dispatch
import Glibc
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A running gateway", .timeLimit(.minutes(5)))
struct GatewayControlTests {
  /// A gateway, its file in a temporary folder, and its control socket.
  private final class Rig: Sendable {
    private let temporary: TemporaryFolder
    let story = Story()
    let board = StatusBoard()
    let gateway: Gateway
    var folder: String { temporary.path }
    var path: String { folder + "/config.yaml" }
    var control: ControlAddress { .path(folder + "/control.sock") }

    init(_ text: String, file: String? = nil) throws {
      temporary = try TemporaryFolder()
      gateway = try Gateway(status: StatusSink([board.observe] + story.sink.observers), board: board)
      try write(text)
    }

    func start() throws {
      let source = ConfigSource(path: path, environment: ["RUNTIME_DIRECTORY": folder])
      gateway.start(try source.load().config, from: source)
    }

    func write(_ text: String) throws { try writeText(text, to: path) }

    /// Blocks.
    func ask(_ request: String, _ address: ControlAddress? = nil) throws -> JSONValue {
      try JSONReader.read(askWhenThere(request, at: address ?? control))
    }

    func reloads() -> [ReloadReport] {
      story.all.compactMap { if case .reloaded(let report) = $0 { report } else { nil } }
    }
  }

  /// Runs a gateway on `text` while `body` sends requests; `body` may block.
  private func withGateway(_ text: String, _ body: @escaping @Sendable (Rig) throws -> Void) async throws {
    let rig = try Rig(text)
    try rig.start()
    var result: Result<Void, any Error> = .success(())
    do { try await onOwnThread { try body(rig) } } catch { result = .failure(error) }
    await withCheckedContinuation { over in rig.gateway.stop { over.resume() } }
    try result.get()
    #expect(access(rig.folder + "/control.sock", F_OK) != 0)
  }

  private static func echo(_ name: String, _ more: String = "") -> String {
    "  \(name): { listen: 'tcp://127.0.0.1:0', endpoint: 'sim://echo'\(more) }\n"
  }

  private static func config(_ routes: String...) -> String { "routes:\n" + routes.joined() }

  @Test("reports its routes and clients at the control socket")
  func status() async throws {
    try await withGateway(Self.config(Self.echo("b"), Self.echo("a"))) { rig in
      _ = try rig.story.address(of: "b")
      let client = try connectTCP(rig.story.address(of: "a"))
      try client.send([1, 2, 3])
      _ = try client.receive(exactly: 3)
      let snapshot = try #require(Snapshot(try rig.ask("status")))
      #expect(snapshot.routes.map(\.name) == ["a", "b"] && snapshot.isHealthy)
      #expect(snapshot.routes[0].clients.map(\.up) == [3] && snapshot.routes[0].state?.word == "open")
      client.close()
    }
  }

  @Test("answers a health request only when every listener has been tried", .timed)
  func healthWaits() async throws {
    // On a machine that is busy for a second, it gives up as it should; so the test tries several times.
    for _ in 0..<5 {
      let (isHealthy, time) = try await health(lanesHangFor: .milliseconds(300))
      #expect(time > .milliseconds(250))
      if isHealthy { return }
      #expect(time >= .seconds(1))
    }
    Issue.record("never healthy, though all listeners are bound")
  }

  @Test("answers a health request without waiting for a lane that hangs")
  func healthOfHangingLanes() async throws {
    #expect(try await health(lanesHangFor: nil).isHealthy == false)
  }

  /// The answer of a new gateway while its lanes hang, and the time it took. nil: the lanes hang until it answers.
  private func health(lanesHangFor pause: Duration?) async throws -> (isHealthy: Bool, time: Duration) {
    let rig = try Rig(Self.config(Self.echo("a"), Self.echo("b")))
    let free = DispatchSemaphore(value: 0)
    let lanes = rig.gateway.lanes.dropLast(2)  // not the gateway's own, and not the one for handshakes
    for lane in lanes { lane.post { _ in free.wait() } }
    try rig.start()
    let answer = Answer<JSONValue>()
    let before = monotonicNanoseconds()
    DispatchQueue(label: "asks").async { answer.give((try? rig.ask("health")) ?? .null) }
    let letGo: @Sendable () -> Void = { for _ in lanes { free.signal() } }
    let healthy = try await onOwnThread { () throws -> JSONValue in
      if let pause {
        usleep(UInt32(pause.nanoseconds / 1000))
        letGo()
      }
      return try answer.wait()
    }
    let time = Duration.nanoseconds(Int64(monotonicNanoseconds() - before))
    if pause == nil { letGo() }
    await withCheckedContinuation { over in rig.gateway.stop { over.resume() } }
    guard let isHealthy = healthy["healthy"]?.flag else { throw SystemError("waiting for an answer", ETIMEDOUT) }
    return (isHealthy, time)
  }

  @Test("tells probes and metrics of lanes that hang")
  func probesOfHangingLanes() async throws {
    let admin = "admin: { listen: 'http://127.0.0.1:0' }\n"
    try await withGateway(admin + Self.config(Self.echo("a"))) { rig in
      func get(_ path: String) throws -> String {
        let client = try connectTCP(rig.story.address(of: AdminServer.owner))
        try client.send(Array("GET \(path) HTTP/1.1\r\nHost: localhost\r\n\r\n".utf8))
        return String(decoding: try client.receiveToEnd(), as: UTF8.self)
      }
      _ = try rig.story.address(of: "a")
      #expect(try get("/healthz").hasPrefix("HTTP/1.1 200 "))
      let (route, lane) = ("\nbaudway_route_up{route=\"a\"} ", "\nbaudway_lane_up{lane=\"lane-0\"} ")
      let before = try get("/metrics")
      #expect(before.contains("\(route)1\n") && before.contains("\(lane)1\n"))
      let free = DispatchSemaphore(value: 0)
      let lanes = rig.gateway.lanes.dropLast(2)  // not the gateway's own, and not the one for handshakes
      for lane in lanes { lane.post { _ in free.wait() } }
      defer { for _ in lanes { free.signal() } }
      let health = try get("/healthz")
      #expect(health.hasPrefix("HTTP/1.1 503 ") && health.hasSuffix("not answer\n"), "\(health)")
      #expect(try get("/readyz?route=a").hasSuffix("\r\n\r\nnot ready: the route does not answer\n"))
      let now = try get("/metrics")
      #expect(now.contains("\(route)0\n") && now.contains("\(lane)0\n"))
    }
  }

  @Test("ends clients that are kicked, lists them, and ignores unknown session numbers")
  func kick() async throws {
    try await withGateway(Self.config(Self.echo("a"), Self.echo("b", ", link: per-client"))) { rig in
      let clients = try ["a", "a", "b", "b", "b"].map { try connectTCP(rig.story.address(of: $0)) }
      for client in clients {
        try client.send([1])
        _ = try client.receive(exactly: 1)
      }
      let numbers = try #require(Snapshot(try rig.ask("status"))).routes.map { $0.clients.map(\.number) }
      #expect(try rig.ask("kick a \(numbers[0][0]) 999999") == .object(["kicked": .array([.integer(numbers[0][0])])]))
      _ = try clients[0].receiveToEnd()  // a shared echo sends every client's bytes to all clients
      try clients[1].send([2])
      while true {
        let received = try clients[1].receive(exactly: 1)
        try #require(!received.isEmpty)
        if received == [2] { break }
      }
      #expect(try rig.ask("kick b --all") == .object(["kicked": .array(numbers[1].map { .integer($0) })]))
      for client in clients[2...] { #expect(try client.receiveToEnd().isEmpty) }
      #expect(try rig.ask("kick c --all")["error"]?.text == "there is no route 'c'")
      #expect(try rig.story.reports(atLeast: 4).map(\.ending.word) == [.kicked, .kicked, .kicked, .kicked])
      let totals = try #require(Snapshot(try rig.ask("status"))).routes.map(\.totals.ended)
      #expect(totals == [[.kicked: 1], [.kicked: 3]])
      for client in clients { client.close() }
    }
  }

  @Test("reads its file again on request, and answers when the reload is done")
  func reload() async throws {
    try await withGateway(Self.config(Self.echo("a"), Self.echo("b"))) { rig in
      _ = try rig.story.address(of: "b")
      try rig.write("log: { level: debug }\n" + Self.config(Self.echo("a", ", clients: { max: 2 }"), Self.echo("c")))
      let answer = try rig.ask("reload")
      #expect(
        ReloadAnswer(Array(answer.description.utf8))
          == .carriedOut([
            "added    c", "removed  b", "changed  a: clients.max", "changed  log.level", "0 routes untouched",
          ]))
      let states = rig.board.listeners(of: "c").map(\.state)
      #expect(states.count == 1 && states[0] != .starting)
      let reported = ReloadAnswer(Array(try rig.ask("reload").description.utf8))
      #expect(reported == .carriedOut(["nothing changed, 2 routes"]))
    }
  }

  @Test("logs the warnings of its file at a reload, with their places")
  func warnings() async throws {
    try await withGateway(Self.config(Self.echo("a"))) { rig in
      try rig.write("routes:\n  a: { listen: 'tcp://127.0.0.1:0', endpoint: 'tcp://127.0.0.1:1/foo' }\n")
      _ = try rig.ask("reload")
      let warnings = rig.story.all.compactMap {
        if case .configurationDoubtful(let warning) = $0 { warning.description } else { nil }
      }
      #expect(
        warnings == [
          "\(rig.path):2:65: routes.a.endpoint: warning: tcp takes no path: '/foo' is ignored; write tcp://127.0.0.1:1"
        ])
      #expect(rig.reloads().count == 1)
    }
  }

  @Test("keeps its configuration when the file has mistakes, and reports all of them with their places")
  func broken() async throws {
    try await withGateway(Self.config(Self.echo("a"))) { rig in
      let client = try connectTCP(rig.story.address(of: "a"))
      try rig.write("routes:\n  a: { lisen: x }\n  b: { endpoint: 'tyy:///x', listen: 'tcp://:1' }\n")
      guard case .refused(let problems) = ReloadAnswer(Array(try rig.ask("reload").description.utf8)) else {
        Issue.record("taken")
        return
      }
      #expect(problems.count >= 3 && problems[0].hasPrefix("\(rig.path):2:"), "\(problems)")
      try client.send([1])
      #expect(try client.receive(exactly: 1) == [1])
      client.close()
      let failures = rig.story.all.compactMap { if case .reloadFailed(let problems) = $0 { problems } else { nil } }
      #expect(failures == [problems])
    }
  }

  @Test("moves its control socket, and answers pending requests at the old one")
  func moves() async throws {
    try await withGateway(Self.config(Self.echo("a"))) { rig in
      let other = ControlAddress.path(rig.folder + "/other.sock")
      _ = try rig.ask("health")
      try rig.write("control: { socket: '\(rig.folder)/other.sock' }\n" + Self.config(Self.echo("a")))
      #expect(try rig.ask("reload")["settings"]?.array == [.text("control.socket")])
      #expect(try rig.ask("health", other)["healthy"] == .bool(true))
      let limit = monotonicNanoseconds() + Patience.nanoseconds
      while access(rig.folder + "/control.sock", F_OK) == 0, monotonicNanoseconds() < limit { usleep(5000) }
      #expect(access(rig.folder + "/control.sock", F_OK) != 0)
      try rig.write("control: { socket: off }\n" + Self.config(Self.echo("a")))
      #expect(try rig.ask("reload", other)["reloaded"] == .bool(true))
      while access(rig.folder + "/other.sock", F_OK) == 0, monotonicNanoseconds() < limit { usleep(5000) }
      #expect(access(rig.folder + "/other.sock", F_OK) != 0)
    }
  }

  @Test("watches its file: written in place, replaced, or reached by links that are swapped", arguments: 0..<3)
  func watches(kind: Int) async throws {
    let (first, second) = (Self.config(Self.echo("a")), Self.config(Self.echo("a"), Self.echo("b")))
    let rig = try Rig(first)
    if kind == 2 {  // as Kubernetes mounts a ConfigMap
      for (name, text) in [("1", first), ("2", second)] {
        try #require(mkdir(rig.folder + "/" + name, 0o755) == 0)
        try writeText(text, to: rig.folder + "/\(name)/config.yaml")
      }
      unlink(rig.path)
      try #require(symlink("1", rig.folder + "/..data") == 0 && symlink("..data/config.yaml", rig.path) == 0)
    }
    try rig.start()
    rig.gateway.watchSource()
    var result: Result<Void, any Error> = .success(())
    do {
      try await onOwnThread {
        _ = try rig.story.address(of: "a")
        _ = try rig.ask("health")
        // The watch is set up on another queue, no event reports it, and a change before that is missed: repeat it.
        let limit = monotonicNanoseconds() + Patience.nanoseconds
        while rig.board.listeners(of: "b").isEmpty, monotonicNanoseconds() < limit {
          switch kind {
          case 0: try rig.write(second)
          case 1:
            try writeText(second, to: rig.folder + "/other.yaml")
            rename(rig.folder + "/other.yaml", rig.path)
          default:
            symlink("2", rig.folder + "/..tmp")
            rename(rig.folder + "/..tmp", rig.folder + "/..data")
          }
          // Longer than the quiet period after a change.
          for _ in 0..<50 where rig.board.listeners(of: "b").isEmpty { usleep(10_000) }
        }
        _ = try rig.story.address(of: "b")
        // Several steps of an editor are one change, unless this thread was delayed for longer than the quiet period.
        var longest: UInt64 = 0
        for index in 0..<5 {
          let began = monotonicNanoseconds()
          try writeText(index < 4 ? "broken: [" : second, to: rig.path)
          usleep(20_000)
          longest = max(longest, monotonicNanoseconds() - began)
        }
        try writeText(first, to: rig.path)
        _ = try rig.story.wait { _ in rig.reloads().contains { $0.removed == ["b"] } ? true : nil }
        let failures = rig.story.all.count { if case .reloadFailed = $0 { true } else { false } }
        #expect(failures == 0 || longest > 100_000_000)
      }
    } catch { result = .failure(error) }
    await withCheckedContinuation { over in rig.gateway.stop { over.resume() } }
    try result.get()
    _ = try await onOwnThread { system("rm -r '\(rig.folder)'") }
  }

  @Test("leaves no descriptor and no lane behind when it stops")
  func leak() async throws {
    try await expectNoDescriptorLeak {
      for _ in 0..<3 {
        try await withGateway(Self.config(Self.echo("a"), Self.echo("b", ", link: per-client"))) { rig in
          rig.gateway.watchSource()
          let client = try connectTCP(rig.story.address(of: "b"))
          try client.send([1])
          _ = try client.receive(exactly: 1)
          _ = try rig.ask("status")
          client.close()
        }
      }
    }
  }
}
