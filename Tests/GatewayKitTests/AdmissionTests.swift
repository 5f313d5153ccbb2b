// Which clients a route admits: networks, kicks, and clients that connect while the route stops.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("Admission", .timeLimit(.minutes(5)))
struct AdmissionTests {
  @Test(
    "refuses clients outside the allowed networks, with a line that gives the reason",
    arguments: ["allow: [10.0.0.0/8]", "deny: ['127.0.0.0/8']"])
  func denied(list: String) async throws {
    try await withRoute(routeConfig("clients: { \(list) }", endpoint: "sim://echo")) { story, _ in
      let client = try connectTCP(try story.address())
      try client.send([1, 2, 3])  // unread input must not destroy the reason
      #expect(try String(decoding: client.receiveToEnd(), as: UTF8.self) == "baudway: x is not open to 127.0.0.1\r\n")
      #expect(try story.reports(atLeast: 1).map(\.ending.word) == [.denied])
      #expect(story.opened == 0)
    }
  }

  @Test("admits a client in an allowed network unless it is in a denied one as well")
  func networks() throws {
    let config = try routeConfig(
      "clients: { allow: ['10.0.0.0/8', '::ffff:192.0.2.0/120'], deny: ['10.1.0.0/16'] }", endpoint: "sim://echo")
    let admits = { (host: String) in config.clients.admits(SocketAddress(numeric: host, port: 1)) }
    #expect(admits("10.2.0.1") && admits("::ffff:10.2.0.1") && admits("192.0.2.9"))
    #expect(!admits("10.1.0.1") && !admits("127.0.0.1") && !admits("::1"))
    #expect(config.clients.admits(nil), "local clients have no address")
  }

  @Test("gives no place to a client that it denies")
  func deniedTakeNoPlace() async throws {
    let config = try routeConfig(
      "clients: { max: 1, deny: ['127.0.0.1'] }", listen: "tcp://*:0", endpoint: "sim://echo")
    try await withRoute(config) { story, _ in
      let address = try story.address()
      for _ in 0..<3 { #expect(try !connectTCP(address).receiveToEnd().isEmpty) }
      let welcome = try connectTCP(try #require(SocketAddress(numeric: "::1", port: address.port)))
      try welcome.send([1])
      #expect(try welcome.receive(exactly: 1) == [1])
      welcome.close()
    }
  }

  @Test("kicks one client or all, drops what was kept for them and returns their numbers", arguments: [true, false])
  func kicks(one: Bool) async throws {
    try await withRoute(routeConfig(endpoint: "sim://echo")) { story, route in
      let address = try story.address()
      let clients = try (0..<3).map { _ in try connectTCP(address) }
      let numbers = try story.sessions(atLeast: 3)
      #expect(try ask(route) { $0.kick([999_999_999]) } == [])
      #expect(try ask(route) { $0.kick(one ? [numbers[1]] : numbers).count } == (one ? 1 : 3))
      let ended = try story.reports(atLeast: one ? 1 : 3)
      #expect(ended.allSatisfy { $0.ending.word == .kicked } && ended.count == (one ? 1 : 3))
      for client in one ? [clients[1]] : clients { #expect(try client.receiveToEnd().isEmpty) }  // in order
      if one {
        try clients[2].send([1])
        #expect(try clients[2].receive(exactly: 1) == [1])
      }
      for client in clients { client.close() }
    }
  }

  @Test("kicks clients of per-client links on every lane, and closes their endpoints")
  func kicksElsewhere() async throws {
    let server = try LoopbackListener()
    try await withRoute(routeConfig(endpoint: "tcp://\(server.address)")) { story, route in
      let address = try story.address()
      let clients = try (0..<4).map { _ in try connectTCP(address) }
      let endpoints = try clients.map { _ in try server.accept() }
      _ = try story.sessions(atLeast: 4)
      #expect(try ask(route) { $0.kick(Array($0.present.keys)).count } == 4)
      for end in clients + endpoints { #expect(try end.receiveToEnd().isEmpty) }
      #expect(try story.reports(atLeast: 4).allSatisfy { $0.ending.word == .kicked })
    }
    server.close()
  }

  @Test("drops and counts the input of a kicked client that the endpoint has not taken")
  func kickDrops() async throws {
    let stuck = ScriptedConnector()
    try await withRoute(routeConfig(endpoint: "sim://echo"), connector: stuck) { story, route in
      let client = try connectTCP(try story.address())
      try client.send([UInt8](repeating: 7, count: 100))
      let number = try story.sessions(atLeast: 1)[0]
      try until { try ask(route) { $0.kept(of: number) } == 100 }
      try ask(route) { _ = $0.kick([number]) }
      #expect(try client.receiveToEnd().isEmpty)
      #expect(try story.reports(atLeast: 1)[0].dropped == 100)
    }
  }

  @Test(
    "sends clients in the kernel's backlog the reason when the route stops, and resets none",
    arguments: [Ending.Word.shutdown, .routeRemoved])
  func stopping(word: Ending.Word) async throws {
    try await withRoute(routeConfig(endpoint: "sim://echo")) { story, route in
      let address = try story.address()
      let late = try ask(route) { route in  // the lane is busy with this, so they wait in the kernel
        let late = (0..<100).compactMap { _ in try? connectTCP(address) }
        for client in late { try? client.send([1]) }
        route.stop(Ending(word), within: .seconds(10)) {}
        return late
      }
      #expect(late.count == 100)
      let line = word == .shutdown ? "baudway: shutting down\r\n" : "baudway: route x was removed\r\n"
      for client in late { #expect(try String(decoding: client.receiveToEnd(), as: UTF8.self) == line) }
      #expect(story.reports.count == 100 && story.reports.allSatisfy { $0.ending.word == word })
    }
  }

  @Test("sends clients whose admission is undecided the reason when the route stops")
  func stoppingWhileLooking() async throws {
    try await withRoute(routeConfig("clients: { max: 1 }", endpoint: "sim://echo")) { story, route in
      let address = try story.address()
      let first = try connectTCP(address)
      _ = try story.sessions(atLeast: 1)
      let second = try ask(route) { route in
        // The client arrives, and the check for closed connections begins as on the lane. Then the stop comes before
        // its answer.
        let second = try? connectTCP(address)
        route.poller.sweep()
        let isUndecided = route.answersAwaited > 0
        route.stop(Ending(.routeRemoved), within: .seconds(10)) {}
        return isUndecided ? second : nil
      }
      let reported = try String(decoding: #require(second).receiveToEnd(), as: UTF8.self)
      #expect(reported == "baudway: route x was removed\r\n")
      #expect(try story.reports(atLeast: 2).allSatisfy { $0.ending.word == .routeRemoved })
      first.close()
    }
  }

  @Test(
    "refuses clients whose admission is undecided when a reload denies them, and no others",
    arguments: [true, false])
  func reloadWhileLooking(forbids: Bool) async throws {
    let config = try routeConfig("clients: { max: 1 }", listen: "tcp://*:0", endpoint: "sim://echo")
    let changed = try routeConfig(
      "clients: { max: 3\(forbids ? ", deny: ['127.0.0.1']" : "") }", listen: "tcp://*:0", endpoint: "sim://echo")
    let connector = try Gateway.broker.connector(changed.endpoint)
    try await withRoute(config) { story, route in
      let port = try story.address().port
      let four = try #require(SocketAddress(numeric: "127.0.0.1", port: port))
      let six = try #require(SocketAddress(numeric: "::1", port: port))
      let first = try connectTCP(six)
      _ = try story.sessions(atLeast: 1)
      let (second, third, waiting) = try ask(route) { route in
        // The check for closed connections runs for the second; the third arrives too late for it. The reload comes
        // before its answer.
        let second = try? connectTCP(four)
        route.poller.sweep()
        let third = try? connectTCP(four)
        route.poller.sweep()
        let waiting = [route.candidates.count, route.lateCandidates.count]
        route.update(changed, connector: connector)
        return (second, third, waiting)
      }
      #expect(waiting == [1, 1])
      let clients = [try #require(second), try #require(third)]
      if forbids {
        for client in clients {
          let reported = try String(decoding: client.receiveToEnd(), as: UTF8.self)
          #expect(reported == "baudway: x is not open to 127.0.0.1\r\n")
        }
        #expect(try story.reports(atLeast: 2).map(\.ending.word) == [.denied, .denied])
      } else {
        #expect(try story.sessions(atLeast: 3).count == 3 && story.reports.isEmpty)
      }
      for client in clients + [first] { client.close() }
    }
  }
}

extension Route {
  /// Bytes of a session's input that the endpoint has not taken.
  fileprivate func kept(of number: UInt64) -> Int {
    group.sessions.first { $0.number == number }?.pump.count ?? 0
  }
}
