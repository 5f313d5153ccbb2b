// How a reload changes a running route: its clients stay, unless the new configuration denies them.

import CLinux
import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A route that is reloaded", .timeLimit(.minutes(5)))
struct RouteReloadTests {
  @Test("keeps a listener that is still configured, and its clients")
  func keepsListener() async throws {
    try await withRoute(routeConfig(endpoint: "sim://echo")) { story, route in
      let address = try story.address()
      let client = try connectTCP(address)
      try echo(client)
      try update(route, routeConfig("clients: { max: 3 }", endpoint: "sim://echo"))
      try echo(client)
      let another = try connectTCP(address)  // port 0 would give another port after a new bind
      try echo(another)
      #expect(story.reports.isEmpty)
      for client in [client, another] { client.close() }
    }
  }

  @Test("opens a new listener and closes a removed one, and touches neither clients nor the link")
  func movesListener() async throws {
    try await withRoute(routeConfig(endpoint: "sim://echo")) { story, route in
      let before = try story.address()
      let client = try connectTCP(before)
      try echo(client)
      try update(route, routeConfig(listen: "tcp://[::1]:0", endpoint: "sim://echo"))
      let another = try connectTCP(try story.address(of: "x", 1))
      try echo(another)
      #expect(throws: SystemError("connect", ECONNREFUSED)) { try connectTCP(before) }
      try echo(client)
      #expect(story.links == [.opening, .open] && story.reports.isEmpty)
      for client in [client, another] { client.close() }
    }
  }

  @Test("takes a port over from its own former listener")
  func samePort() async throws {
    try await withRoute(routeConfig(endpoint: "sim://echo")) { story, route in
      let before = try story.address()
      try update(route, routeConfig(listen: "tcp://*:\(before.port)", endpoint: "sim://echo"))
      #expect(try story.address(of: "x", 1).port == before.port)
      try echo(connectTCP(before))
    }
  }

  @Test("accepts clients that were connected to a removed listener but not accepted yet")
  func handsOver() async throws {
    try await withRoute(routeConfig(endpoint: "sim://echo")) { story, route in
      let address = try story.address()
      let config = try routeConfig(listen: "tcp://[::1]:0", endpoint: "sim://echo")
      let connector = try Gateway.broker.connector(config.endpoint)
      let late = try ask(route) { route in
        let late = (0..<5).compactMap { _ in try? connectTCP(address) }
        route.update(config, connector: connector)
        return late
      }
      #expect(late.count == 5)
      for client in late { try echo(client) }
      #expect(story.reports.isEmpty)
    }
  }

  @Test("ends the clients that its networks now deny, and no others", arguments: ["sim://echo", "tcp"])
  func networks(endpoint: String) async throws {
    let server = try LoopbackListener()
    let url = endpoint == "tcp" ? "tcp://\(server.address)" : endpoint
    try await withRoute(routeConfig(listen: "tcp://*:0", endpoint: url)) { story, route in
      let v4 = try story.address()
      let v6 = try #require(SocketAddress(numeric: "::1", port: v4.port))
      let (forbidden, kept) = (try (0..<3).map { _ in try connectTCP(v4) }, try connectTCP(v6))
      _ = try story.sessions(atLeast: 4)
      try update(route, routeConfig("clients: { deny: [127.0.0.1] }", listen: "tcp://*:0", endpoint: url))
      for client in forbidden { #expect(try client.receiveToEnd().isEmpty) }
      #expect(try story.reports(atLeast: 3).allSatisfy { $0.ending.word == .denied })
      #expect(try !connectTCP(v4).receiveToEnd().isEmpty)
      try kept.send([1])
      if endpoint != "tcp" { #expect(try kept.receive(exactly: 1) == [1]) }
      #expect(try story.reports(atLeast: 4).count == 4)
      kept.close()
    }
    server.close()
  }

  @Test("ends no client for a smaller limit, and admits more for a larger one")
  func limits() async throws {
    try await withRoute(routeConfig("clients: { max: 2 }", endpoint: "sim://echo")) { story, route in
      let address = try story.address()
      let clients = try (0..<2).map { _ in try connectTCP(address) }
      _ = try story.sessions(atLeast: 2)
      try update(route, routeConfig("clients: { max: 1 }", endpoint: "sim://echo"))
      let notice = try String(decoding: connectTCP(address).receiveToEnd(), as: UTF8.self)
      #expect(notice == "baudway: x is full (2 of 1 clients)\r\n")
      try update(route, routeConfig("clients: { max: 3, notices: off }", endpoint: "sim://echo"))
      let third = try connectTCP(address)
      try third.send([3])
      #expect(try third.receive(exactly: 1) == [3])
      #expect(try connectTCP(address).receiveToEnd().isEmpty)  // notices are off now
      #expect(try story.reports(atLeast: 2).map(\.ending.word) == [.full, .full])
      for client in clients + [third] { client.close() }
    }
  }

  @Test("sets keepalive for new clients as configured")
  func keepalive() async throws {
    try await withRoute(routeConfig(endpoint: "sim://echo")) { story, route in
      let address = try story.address()
      var clients: [FarEnd] = []
      for (number, isOn) in [true, false, true].enumerated() {
        // Without the guard, the client's stream is the socket's.
        let text = "clients: { keepalive: \(isOn), refuse-http: no }"
        try update(route, routeConfig(text, endpoint: "sim://echo"))
        clients.append(try connectTCP(address))
        _ = try story.sessions(atLeast: number + 1)
        let options = try ask(route) { route in
          let newest = route.group.sessions.max { $0.number < $1.number }
          let raw = (newest?.client as? DescriptorStream)?.raw ?? -1
          return [option(raw, SOL_SOCKET, SO_KEEPALIVE), option(raw, Int32(IPPROTO_TCP), TCP_KEEPIDLE)]
        }
        #expect(options[0] == (isOn ? 1 : 0) && (!isOn || options[1] == 10))
      }
      for client in clients { client.close() }
    }
  }

  @Test("changes a listener's role in place, and ends the writers that came through it")
  func role() async throws {
    let two = "['tcp://127.0.0.1:0', 'tcp://[::1]:0%']"
    let config: @Sendable (String) throws -> Config.Route = { role in
      let text = "routes: { x: { listen: \(two.replacing("%", with: role)), endpoint: 'sim://echo' } }\n"
      return try #require(try ConfigFile.read(Array(text.utf8)).routes.first)
    }
    try await withRoute(config("")) { story, route in
      let open = try connectTCP(try story.address(of: "x", 0))
      let narrowed = try story.address(of: "x", 1)
      let writer = try connectTCP(narrowed)
      _ = try story.sessions(atLeast: 2)
      try update(route, config("?role=monitor"))
      #expect(try writer.receiveToEnd().isEmpty)
      #expect(try story.reports(atLeast: 1).map(\.ending.word) == [.denied])
      let monitor = try connectTCP(narrowed)
      _ = try story.sessions(atLeast: 3)
      #expect(story.labels.map(\.role) == [.writer, .writer, .monitor])
      try echo(open)
      try update(route, config(""))
      let again = try connectTCP(narrowed)
      _ = try story.sessions(atLeast: 4)
      #expect(story.labels.last?.role == .writer && story.reports.count == 1)
      for client in [open, monitor, again] { client.close() }
    }
  }
}

private func echo(_ client: FarEnd) throws {
  try client.send([1])
  #expect(try client.receive(exactly: 1) == [1])
}

/// A socket's option; -1 if it can't be read.
func option(_ descriptor: Int32, _ level: Int32, _ name: Int32) -> Int32 {
  var value: Int32 = -1
  var length = socklen_t(MemoryLayout<Int32>.size)
  getsockopt(descriptor, level, name, &value, &length)
  return value
}

func update(_ route: LaneRef<Route>, _ config: Config.Route) throws {
  let connector = try Gateway.broker.connector(config.endpoint)
  try ask(route) { $0.update(config, connector: connector) }
}
