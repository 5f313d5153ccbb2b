// A full route that ends its oldest session for a new client.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A route that replaces the oldest", .timeLimit(.minutes(5)))
struct ReplaceOldestTests {
  private static func clients(_ max: Int) -> String { "clients: { max: \(max), when-full: replace-oldest }" }

  @Test("ends the oldest session in order, and no other")
  func oldest() async throws {
    try await withRoute(routeConfig(Self.clients(2), endpoint: "sim://echo"), isFast: true) { story, _ in
      let address = try story.address()
      var clients: [FarEnd] = []
      for number in 0..<5 {
        clients.append(try connectTCP(address))
        let numbers = try story.sessions(atLeast: number + 1)
        guard number >= 2 else { continue }
        #expect(try clients[number - 2].receiveToEnd().isEmpty)
        _ = try story.reports(atLeast: number - 1)
        #expect(story.ended == Array(numbers[...(number - 2)]))
      }
      #expect(story.reports.allSatisfy { $0.ending.word == .replaced && $0.wasOpened })
      try clients[3].send([1])
      #expect(try clients[3].receive(exactly: 1) == [1])
      for client in clients { client.close() }
    }
  }

  @Test("replaces no client while another connection has already closed", arguments: [true, false])
  func ghosts(byReset: Bool) async throws {
    try await withRoute(routeConfig(Self.clients(2), endpoint: "sim://echo"), isFast: true) { story, route in
      let address = try story.address()
      let old = try connectTCP(address)
      _ = try story.sessions(atLeast: 1)
      var ghosts: [FarEnd] = []
      for round in 0..<50 {
        // While the lane is busy, the last client closes and the next one connects: the lane learns of both at once.
        let last = ghosts.last
        let client = try ask(route) { _ in
          if byReset { last?.reset() } else { last?.finishWriting() }
          usleep(2000)
          return try? connectTCP(address)
        }
        ghosts.append(try #require(client))
        _ = try story.sessions(atLeast: round + 2)
      }
      if byReset { ghosts.last?.reset() } else { ghosts.last?.finishWriting() }
      try old.send([1])
      #expect(try old.receive(exactly: 1) == [1])
      #expect(try story.reports(atLeast: 49).allSatisfy { $0.ending.word == (byReset ? .clientLost : .clientLeft) })
      old.close()
    }
  }

  @Test("drops and counts the old client's kept input, and takes over at once though its endpoint takes nothing")
  func drops() async throws {
    try await withRoute(
      routeConfig(Self.clients(1), endpoint: "sim://echo"), connector: ScriptedConnector(), isFast: true
    ) {
      story, route in
      let address = try story.address()
      let first = try connectTCP(address)
      try first.send([UInt8](repeating: 7, count: 100))
      try until { try ask(route) { $0.group.sessions.first?.pump.count ?? 0 } == 100 }
      let second = try connectTCP(address)
      _ = try story.sessions(atLeast: 2)
      #expect(try first.receiveToEnd().isEmpty)
      let report = try story.reports(atLeast: 1)[0]
      #expect(report.ending.word == .replaced && report.dropped == 100)
      second.close()
    }
  }

  @Test("admits every client of a crowd for a while, and keeps the last ones")
  func crowd() async throws {
    try await withRoute(routeConfig(Self.clients(2), endpoint: "sim://echo"), isFast: true) { story, route in
      let address = try story.address()
      let crowd = try ask(route) { _ in (0..<20).compactMap { _ in try? connectTCP(address) } }
      let numbers = try story.sessions(atLeast: 20)
      #expect(try story.reports(atLeast: 18).allSatisfy { $0.ending.word == .replaced })
      #expect(try ask(route) { Set($0.present.keys) } == Set(numbers.suffix(2)))
      for client in crowd { client.close() }
    }
  }

  @Test("works on every lane, and a new client that has already closed still has its bytes delivered")
  func lanes() async throws {
    let server = try LoopbackListener()
    try await withRoute(routeConfig(Self.clients(2), endpoint: "tcp://\(server.address)")) { story, route in
      let address = try story.address()
      var ends: [FarEnd] = []
      var endpoints: [FarEnd] = []
      for number in 0..<6 as Range<UInt8> {
        let client = try connectTCP(address)
        try client.send([number])
        if number == 5 { client.finishWriting() }
        let endpoint = try server.accept()
        #expect(try endpoint.receive(exactly: 1) == [number])
        if number >= 2 { #expect(try ends[Int(number) - 2].receiveToEnd().isEmpty) }
        ends.append(client)
        endpoints.append(endpoint)  // it does not end before its client
      }
      #expect(try story.reports(atLeast: 4).allSatisfy { $0.ending.word == .replaced })
      #expect(story.ended == Array(try story.sessions(atLeast: 6)[..<4]))
    }
    server.close()
  }

  @Test("comes down to a smaller limit with the next new client")
  func smaller() async throws {
    try await withRoute(routeConfig(Self.clients(4), endpoint: "sim://echo"), isFast: true) { story, route in
      let address = try story.address()
      let clients = try (0..<4).map { _ in try connectTCP(address) }
      let numbers = try story.sessions(atLeast: 4)
      let config = try routeConfig(Self.clients(2), endpoint: "sim://echo")
      let connector = try Gateway.broker.connector(config.endpoint)
      try ask(route) { $0.update(config, connector: connector) }
      #expect(story.reports.isEmpty)
      let fifth = try connectTCP(address)
      _ = try story.reports(atLeast: 3)
      #expect(story.ended == Array(numbers[..<3]))
      for client in clients + [fifth] { client.close() }
    }
  }
}

extension Story {
  /// Numbers of ended sessions, in order.
  fileprivate var ended: [UInt64] {
    all.compactMap { event in if case .sessionEnded(_, let number, _, _) = event { number } else { nil } }
  }
}
