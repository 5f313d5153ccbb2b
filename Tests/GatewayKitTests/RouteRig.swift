// A route on real lanes with real TCP clients. The endpoint is a server of the test, or a stream of a scripted
// connector. Clients block, so tests use them in `onOwnThread`.

import CLinux
import Dispatch
import Glibc
import StreamBroker
import StreamBrokerBluetooth
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

/// All events that a gateway reported, for tests to wait on. Any thread.
final class Story: Sendable {
  private let events = Mutex<[StatusEvent]>([])
  private let news = DispatchSemaphore(value: 0)

  var sink: StatusSink { StatusSink([{ [self] in observe($0) }]) }

  private func observe(_ event: StatusEvent) {
    events.withLock { $0.append(event) }
    news.signal()
  }

  var all: [StatusEvent] { events.withLock { $0 } }

  /// Waits until `find` returns a value, at most for `Patience`. Blocks.
  func wait<Found>(
    sourceLocation: SourceLocation = #_sourceLocation, _ find: ([StatusEvent]) -> Found?
  ) throws -> Found {
    let limit = DispatchTime.now() + .seconds(Patience.seconds)
    while true {
      if let found = find(all) { return found }
      guard news.wait(timeout: limit) == .success else { throw SystemError("waiting for an event", ETIMEDOUT) }
    }
  }

  /// The bound address of a listener of `name`: the `number`th reported. Blocks.
  func address(of name: String = "x", _ number: Int = 0) throws -> SocketAddress {
    try wait { events in
      let bound = events.compactMap { event in
        if case .listening(name, _, let bound) = event { bound } else { nil }
      }
      guard bound.count > number,
        let port = bound[number].split(separator: ":").last.flatMap({ UInt16($0.prefix { $0.isNumber }) })
      else { return nil }
      return SocketAddress(numeric: bound[number].contains("[") ? "::1" : "127.0.0.1", port: port)
    }
  }

  /// The bound URL of a listener of `name`: the `number`th reported. Blocks.
  func bound(of name: String = "x", _ number: Int = 0) throws -> String {
    try wait { events in
      let bound = events.compactMap { event in if case .listening(name, _, let bound) = event { bound } else { nil } }
      return bound.count > number ? bound[number] : nil
    }
  }

  /// Reports of ended sessions, in order.
  var reports: [SessionReport] {
    all.compactMap { event in if case .sessionEnded(_, _, _, let report) = event { report } else { nil } }
  }

  func reports(atLeast count: Int) throws -> [SessionReport] {
    try wait { [self] _ in
      let reports = reports
      return reports.count >= count ? reports : nil
    }
  }

  var opened: Int { labels.count }

  /// Labels of opened sessions, in order.
  var labels: [AcceptedConnection.Label] {
    all.compactMap { event in if case .sessionOpened(_, _, let label) = event { label } else { nil } }
  }

  /// Numbers of opened sessions, in order.
  func sessions(atLeast count: Int) throws -> [UInt64] {
    try wait { events in
      let numbers = events.compactMap { event in
        if case .sessionOpened(_, let number, _) = event { number } else { nil }
      }
      return numbers.count >= count ? numbers : nil
    }
  }

  var links: [LinkStatus] {
    all.compactMap { event in if case .link(_, _, let status, _) = event { status } else { nil } }
  }
}

/// Runs `body` on the lane of the referenced object and waits for its result. Blocks.
@discardableResult
func ask<Host, Answer: Sendable>(_ route: LaneRef<Host>, _ body: @escaping @Sendable (Host) -> Answer) throws -> Answer
{
  let answer = Mutex<Answer?>(nil)
  let done = DispatchSemaphore(value: 0)
  route.post { _, route in
    let given = body(route)
    answer.withLock { $0 = given }
    done.signal()
  }
  guard done.wait(timeout: .now() + .seconds(Patience.seconds)) == .success, let answer = answer.withLock(\.self) else {
    throw SystemError("waiting for a lane", ETIMEDOUT)
  }
  return answer
}

/// A connected client. Blocks.
func connectTCP(_ address: SocketAddress) throws -> FarEnd {
  let raw = socket(address.family.domain, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
  guard raw >= 0 else { throw SystemError("socket") }
  let socket = Descriptor(owning: raw)
  guard address.withSockaddr({ connect(raw, $0, $1) }) == 0 else { throw SystemError("connect") }
  _ = fcntl(raw, F_SETFL, O_NONBLOCK)
  return FarEnd(socket, isSocket: true)
}

/// Sends a request to a control socket once it exists: the gateway binds it while it starts other parts. Blocks.
func askWhenThere(_ request: String, at address: ControlAddress) throws -> [UInt8] {
  let limit = monotonicNanoseconds() + Patience.nanoseconds
  while true {
    do {
      return try ControlClient.ask(request, at: address, within: .seconds(Patience.seconds))
    } catch {
      guard [ENOENT, ECONNREFUSED].contains(error.errno), monotonicNanoseconds() < limit else { throw error }
      usleep(5000)  // not bound yet, or bound and not listening yet
    }
  }
}

/// The configuration of one route, as read from a file.
func routeConfig(
  _ text: String = "", listen: String = "tcp://127.0.0.1:0", endpoint: String, name: String = "x"
) throws -> Config.Route {
  let file =
    "proxies: [127.0.0.1]\nroutes: { \(name): { listen: '\(listen)', endpoint: '\(endpoint)'\(text.isEmpty ? "" : ", " + text) } }\n"
  return try #require(try ConfigFile.read(Array(file.utf8), broker: Gateway.broker).routes.first)
}

/// Runs a route on two lanes, its home and another; it is stopped and gone after `body`, which may block. With
/// `isFast` time passes a hundred times faster.
func withRoute(
  _ config: Config.Route, connector: (any Connector)? = nil, inherited: InheritedSockets = InheritedSockets(),
  rates: ConnectRates = ConnectRates(), rules: HandshakeServer.Rules = HandshakeServer.Rules(),
  timeout: Duration = .seconds(10),
  bluetooth: (@Sendable (Poller) -> BluetoothHost)? = nil, isFast: Bool = false,
  _ body: @escaping @Sendable (Story, LaneRef<Route>) throws -> Void
) async throws {
  try await withHandshakeServer(
    config, connector: connector, inherited: inherited, rates: rates, rules: rules, timeout: timeout,
    bluetooth: bluetooth, isFast: isFast
  ) { story, route, _ in try body(story, route) }
}

/// The same, with the handshake server. `passwords` replaces crypt(3).
func withHandshakeServer(
  _ config: Config.Route, connector: (any Connector)? = nil, inherited: InheritedSockets = InheritedSockets(),
  rates: ConnectRates = ConnectRates(), rules: HandshakeServer.Rules = HandshakeServer.Rules(),
  timeout: Duration = .seconds(10),
  passwords: @escaping @Sendable (Poller) -> Passwords = { Passwords(on: $0) },
  bluetooth: (@Sendable (Poller) -> BluetoothHost)? = nil, wallTime: @escaping @Sendable () -> Int = { time(nil) },
  isFast: Bool = false,
  _ body: @escaping @Sendable (Story, LaneRef<Route>, LaneRef<HandshakeServer>) throws -> Void
) async throws {
  let story = Story()
  let clock = isFast ? ManualClock() : nil
  let passing = clock?.passes()
  let lanes = try (0..<2).map { try clock?.lane("route \($0)") ?? Lane("route \($0)") }
  let handshakeLane = try clock?.lane("handshakes") ?? Lane("handshakes")
  let handshakeServer = LaneRef(on: handshakeLane) { lane in
    let handshakeServer = HandshakeServer(
      on: lane.poller, status: story.sink, rates: rates, handshakeTimeout: timeout, passwords: passwords(lane.poller),
      wallTime: wallTime)
    handshakeServer.follow(rules)
    return handshakeServer
  }
  let host = bluetooth.map { make in LaneRef(on: handshakeLane) { make($0.poller) } }
  let environment = RouteEnvironment(
    inherited: inherited, handshakeServer: handshakeServer, bluetooth: host, rates: rates)
  let connector = try connector ?? Gateway.broker.connector(config.endpoint)
  let route = LaneRef(on: lanes[0]) { lane in
    Route(config, connector: connector, on: lane, others: [lanes[1]], status: story.sink, environment: environment)
  }
  let result: Result<Void, any Error>
  do {
    try await onOwnThread { try body(story, route, handshakeServer) }
    result = .success(())
  } catch {
    result = .failure(error)
  }
  await withCheckedContinuation { over in
    route.post { _, route in route.stop(Ending(.shutdown), within: .milliseconds(100)) { over.resume() } }
  }
  passing?.cancel()
  route.evict()
  handshakeServer.evict()
  host?.evict()
  for lane in lanes + [handshakeLane] { lane.stop() }
  try result.get()
}

/// Makes the route's listeners check their names in the file system. Blocks until that is done, at most for `Patience`.
func checkSocketFiles(of route: LaneRef<Route>, sourceLocation: SourceLocation = #_sourceLocation) {
  let isOver = DispatchSemaphore(value: 0)
  route.post { _, route in route.checkSocketFiles { isOver.signal() } }
  #expect(isOver.wait(timeout: .now() + .seconds(Patience.seconds)) == .success, sourceLocation: sourceLocation)
}
