// A survey of running routes: the lanes' figures, pages of clients, and lanes that hang.

import Dispatch
import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A status survey", .timeLimit(.minutes(5)))
struct StatusReportTests {
  private static let head = Snapshot(version: "test", process: 1, nanoseconds: 0, isHealthy: true)

  /// Routes of `configs`, each on two lanes of its own or on `lanes`; `body` may block.
  private func withRoutes(
    _ configs: [Config.Route], connector: (any Connector)? = nil, _ body: @escaping @Sendable (Rig) throws -> Void
  ) async throws {
    let rig = try Rig(configs, connector)
    var result: Result<Void, any Error> = .success(())
    do { try await onOwnThread { try body(rig) } } catch { result = .failure(error) }
    await rig.stop()
    try result.get()
  }

  private final class Rig: Sendable {
    let story = Story()
    let board = StatusBoard()
    let lanes: [Lane]
    let home: Lane
    let routes: [GatewayCore.Running]

    init(_ configs: [Config.Route], _ connector: (any Connector)? = nil) throws {
      let (story, board) = (story, board)
      let sink = StatusSink([board.observe] + story.sink.observers)
      let lanes = try (0..<2).map { try Lane("survey \($0)") }
      self.lanes = lanes
      home = try Lane("survey home")
      routes = try configs.enumerated().map { index, config in
        let connector = try connector ?? Gateway.broker.connector(config.endpoint)
        let (own, other) = (lanes[index % 2], lanes[(index + 1) % 2])
        let route = LaneRef(on: own) { lane in
          Route(config, connector: connector, on: lane, others: [other], status: sink)
        }
        return GatewayCore.Running(config: config, route: route)
      }
    }

    /// The whole answer, and its number of pieces. Blocks.
    func survey() throws -> (text: String, pieces: Int) {
      let answer = Answer<(String, Int)>()
      let (routes, board, lanes, home) = (routes, board, lanes, home)
      home.post { lane in
        let query = LaneQuery(on: home, lane.poller)
        let survey = StatusReport(head, routes: routes, board: board, lanes: lanes, query: query)
        Self.collect(survey, "", 0) { answer.give(($0, $1)) }
      }
      return try answer.wait()
    }

    private static func collect(
      _ survey: StatusReport, _ text: String, _ pieces: Int, _ done: @escaping (String, Int) -> Void
    ) {
      survey.next { piece in
        guard let piece else { return done(text, pieces) }
        collect(survey, text + String(decoding: piece, as: UTF8.self), pieces + 1, done)
      }
    }

    func snapshot() throws -> Snapshot {
      try #require(Snapshot.read(Array(try survey().text.utf8)))
    }

    func stop() async {
      for running in routes { await stop(running.route) }
      stopLanes()
    }

    func stop(_ route: LaneRef<Route>) async {
      await withCheckedContinuation { over in
        route.post { _, route in route.stop(Ending(.shutdown), within: .milliseconds(100)) { over.resume() } }
      }
      route.evict()
    }

    func stopLanes() { for lane in lanes + [home] { lane.stop() } }
  }

  /// Opens a device whose signal strength differs each time it is read.
  private struct Radio: Connector {
    static let grammar = EndpointSchemes.sim
    init(_ url: EndpointURL) {}
    init() {}

    func open(
      _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
    ) -> any Opening {
      let (stream, metadata) = (ScriptedStream(), StreamMetadata())
      metadata.update { $0.name = "gps" }
      metadata.refresh = { [weak metadata] answered in
        poller.timers.after(.milliseconds(20)) {
          metadata?.note { $0.signalStrength = ($0.signalStrength ?? -50) - 1 }
          answered()
        }
      }
      stream.metadata = metadata
      done(.success(stream))
      return CompletedOpening()
    }
  }

  @Test("shows the present signal strength, not the one of the last survey")
  func signal() async throws {
    let config = try routeConfig("link: shared, device: { open: always }", endpoint: "sim://echo")
    try await withRoutes([config], connector: Radio()) { rig in
      var strengths: [Int] = []
      for _ in 0..<10_000 where strengths.count < 3 {
        guard let state = try rig.snapshot().routes.first?.state, state.word == "open" else { continue }
        strengths.append(try #require(state.device?.signalStrength))
        #expect(state.device?.name == "gps")
      }
      #expect(strengths.count == 3 && strengths.first ?? 0 < -50)
      #expect(zip(strengths, strengths.dropFirst()).allSatisfy { $0 > $1 })
    }
  }

  @Test("shows each client's bytes in both directions, during its session and in the totals after it")
  func bytes() async throws {
    let config = try routeConfig("link: per-client", endpoint: "sim://echo")
    try await withRoutes([config]) { rig in
      let address = try rig.story.address()
      let clients = try (0..<4).map { _ in try connectTCP(address) }
      for (index, client) in clients.enumerated() {
        try client.send([UInt8](repeating: 1, count: index + 1))
        _ = try client.receive(exactly: index + 1)
      }
      let route = try #require(try rig.snapshot().routes.first)
      #expect(route.clients.map(\.up).sorted() == [1, 2, 3, 4] && route.clients.map(\.down).sorted() == [1, 2, 3, 4])
      #expect(route.clients.map(\.number) == route.clients.map(\.number).sorted())
      #expect(route.clients.allSatisfy { $0.address?.hasPrefix("127.0.0.1:") ?? false })
      #expect(route.totals == Snapshot.Totals(ended: [:], up: 10, down: 10, dropped: 0))
      #expect(route.links == ["open": 4] && route.state == nil)
      for client in clients { client.close() }
      _ = try rig.story.reports(atLeast: 4)
      let after = try #require(try rig.snapshot().routes.first)
      #expect(after.clients.isEmpty)
      #expect(after.totals == Snapshot.Totals(ended: [.clientLeft: 4], up: 10, down: 10, dropped: 0))
    }
  }

  @Test("shows the output kept for a client that does not read, and the holder of the writer role")
  func queued() async throws {
    let config = try routeConfig("clients: { writers: one, slow: block }", endpoint: "sim://flood")
    try await withRoutes([config]) { rig in
      let client = try connectTCP(rig.story.address())
      defer { client.close() }
      let limit = monotonicNanoseconds() + Patience.nanoseconds
      var seen: Snapshot.Client?
      while seen?.queuedDown ?? 0 < 32768, monotonicNanoseconds() < limit {
        usleep(20_000)
        seen = try rig.snapshot().routes.first?.clients.first
      }
      #expect(seen?.queuedDown ?? 0 >= 32768)
      #expect(seen?.isWriter == true && seen?.phase == .open)
    }
  }

  @Test("shows a link's state and its duration, why it waits, and when it retries")
  func link() async throws {
    let config = try routeConfig(
      "device: { open: always, retry: 100ms..200ms }", endpoint: "tty:///dev/baudway-none")
    try await withRoutes([config]) { rig in
      var states: [Snapshot.LinkState] = []
      let limit = monotonicNanoseconds() + Patience.nanoseconds
      while states.last?.nanoseconds ?? 0 < 1_000_000_000, monotonicNanoseconds() < limit {
        usleep(50_000)
        if let state = try rig.snapshot().routes.first?.state, state.word == "waiting" { states.append(state) }
      }
      // Ten tries later it still counts from the first.
      let last = try #require(states.last)
      #expect(last.nanoseconds >= 1_000_000_000)
      #expect(last.reason?.contains("ENOENT") ?? false)
      #expect(try #require(last.retry) <= .milliseconds(200))
    }
  }

  @Test("shows the line settings of an open port as the driver reports them: a pty has no parity")
  func line() async throws {
    let pty = try makePty()
    let config = try routeConfig(
      "device: { open: always }", endpoint: "tty://\(pty.path)?baud=31250&parity=even&stop=2")
    try await withRoutes([config]) { rig in
      var state: Snapshot.LinkState?
      let limit = monotonicNanoseconds() + Patience.nanoseconds
      while state?.word != "open", monotonicNanoseconds() < limit {
        usleep(20_000)
        state = try rig.snapshot().routes.first?.state
      }
      #expect(state?.line == "31250 8N2")
      pty.unplug()
      while state?.word == "open", monotonicNanoseconds() < limit {
        usleep(20_000)
        state = try rig.snapshot().routes.first?.state
      }
      #expect(state?.line == nil)
    }
  }

  @Test("is made in pages, and has every client once")
  func pages() async throws {
    let config = try routeConfig("link: per-client", endpoint: "sim://sink")
    let count = 3 * StatusReport.page
    try await withRoutes([config]) { rig in
      let address = try rig.story.address()
      let clients = try (0..<count).map { _ in try connectTCP(address) }
      _ = try rig.story.sessions(atLeast: count)
      let (text, pieces) = try rig.survey()
      let snapshot = try #require(Snapshot.read(Array(text.utf8)))
      let numbers = try #require(snapshot.routes.first).clients.map(\.number)
      #expect(numbers.count == count && Set(numbers).count == count)
      #expect(pieces >= 4)  // opening, two pages of two lanes, closing
      for client in clients { client.close() }
    }
  }

  @Test("shows a lane that hangs as such after a second, and all the others")
  func stuck() async throws {
    let configs = try ["a", "b", "c", "d"].map { try routeConfig(endpoint: "sim://echo", name: $0) }
    try await withRoutes(configs) { rig in
      for name in ["a", "b", "c", "d"] { _ = try rig.story.address(of: name) }
      let free = DispatchSemaphore(value: 0)
      rig.lanes[1].post { _ in free.wait() }
      let before = monotonicNanoseconds()
      let routes = try rig.snapshot().routes
      let time = monotonicNanoseconds() - before
      free.signal()
      #expect(routes.map(\.isStuck) == [false, true, false, true])
      #expect(routes.map(\.listeners.count) == [1, 1, 1, 1])
      // Once for all of its routes; the rest is due to a busy machine.
      #expect(time >= 1_000_000_000 && time < 10_000_000_000)
      let after = try rig.snapshot().routes
      #expect(after.allSatisfy { !$0.isStuck })
    }
  }

  @Test("skips a route that stops meanwhile")
  func gone() async throws {
    let configs = try ["a", "b"].map { try routeConfig(endpoint: "sim://echo", name: $0) }
    let rig = try Rig(configs)
    await rig.stop(rig.routes[0].route)
    let snapshot = try await onOwnThread { try rig.snapshot() }
    #expect(snapshot.routes.map(\.name) == ["b"])
    await rig.stop(rig.routes[1].route)
    rig.stopLanes()
  }
}
