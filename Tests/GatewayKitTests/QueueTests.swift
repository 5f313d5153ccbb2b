// A full route whose clients wait in the queue, over TCP.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A queue of clients", .timeLimit(.minutes(5)))
struct QueueTests {
  private static let one = "clients: { max: 1, when-full: queue }"

  @Test("gives places in the order of arrival, and sends each client its position and every change")
  func order() async throws {
    try await withRoute(routeConfig(Self.one, endpoint: "sim://echo")) { story, _ in
      let address = try story.address()
      var clients = [try connectTCP(address)]
      try echo(clients[0], 9)
      for place in 1...3 {
        clients.append(try connectTCP(address))
        #expect(try line(of: clients[place]) == "baudway: x is full; you are number \(place) in the queue")
      }
      #expect(story.opened == 1 && story.reports.isEmpty)
      for turn in 1...3 {
        clients[turn - 1].reset()
        try echo(clients[turn], UInt8(turn))
        for later in clients.indices where later > turn {
          #expect(try line(of: clients[later]) == "baudway: x is full; you are number \(later - turn) in the queue")
        }
      }
      #expect(try story.reports(atLeast: 3).allSatisfy { $0.ending.word == .clientLost && $0.wasOpened })
      clients[3].close()
    }
  }

  @Test("loses no input sent while waiting, and limits how much a client can send")
  func keepsInput() async throws {
    let config = try routeConfig("link: per-client, " + Self.one, endpoint: "sim://sink")
    try await withRoute(config) { story, _ in
      let address = try story.address()
      let first = try connectTCP(address)
      _ = try story.sessions(atLeast: 1)
      let second = try connectTCP(address)
      _ = try line(of: second)
      let sent = try second.sendUntilFull(7)
      #expect(sent < 32 << 20)
      first.reset()
      try second.send([UInt8](repeating: 7, count: 1 << 20))
      second.finishWriting()
      let reports = try story.reports(atLeast: 2)
      #expect(reports[1].up == UInt64(sent + 1 << 20) && reports[1].dropped == 0)
    }
  }

  @Test("removes a client that leaves, counts its input, and moves up those after it", arguments: [true, false])
  func leaving(byReset: Bool) async throws {
    try await withRoute(routeConfig(Self.one, endpoint: "sim://echo")) { story, _ in
      let address = try story.address()
      let first = try connectTCP(address)
      try echo(first, 1)
      let (second, third) = (try connectTCP(address), try connectTCP(address))
      _ = try line(of: second)
      _ = try line(of: third)
      try second.send([1, 2, 3])
      if byReset { second.reset() } else { second.finishWriting() }
      let report = try story.reports(atLeast: 1)[0]
      #expect(report.ending.word == .queueLeft && !report.wasOpened && report.dropped == 3 && report.up == 0)
      #expect(byReset == ((report.ending.cause as? SystemError)?.name == "ECONNRESET"))
      #expect(try line(of: third) == "baudway: x is full; you are number 1 in the queue")
      if !byReset { #expect(try second.receiveToEnd().isEmpty) }
      first.reset()
      try echo(third, 3)
      third.close()
    }
  }

  @Test("is bounded, and refuses clients beyond that")
  func bounded() async throws {
    try await withRoute(routeConfig(Self.one, endpoint: "sim://echo")) { story, _ in
      let address = try story.address()
      let crowd = try (0..<17).map { _ in try connectTCP(address) }
      _ = try story.wait { events in events.waiting == 16 ? true : nil }
      let last = try connectTCP(address)
      let notice = try String(decoding: last.receiveToEnd(), as: UTF8.self)
      #expect(notice == "baudway: x is full (1 of 1 clients, 16 in the queue)\r\n")
      #expect(try story.reports(atLeast: 1).map(\.ending.word) == [.full])
      for client in crowd { client.close() }
    }
  }

  @Test("sends no text with 'notices: off'")
  func silent() async throws {
    let config = try routeConfig("clients: { max: 1, when-full: queue, notices: off }", endpoint: "sim://echo")
    try await withRoute(config) { story, _ in
      let address = try story.address()
      let first = try connectTCP(address)
      try echo(first, 1)
      let second = try connectTCP(address)
      try second.send([2])
      _ = try story.wait { events in events.waiting == 1 ? true : nil }
      first.reset()
      #expect(try second.receive(exactly: 1) == [2])
      second.close()
    }
  }

  @Test("immediately takes the place of a client that has finished sending")
  func halfClosed() async throws {
    try await withRoute(routeConfig(Self.one, endpoint: "sim://echo")) { story, route in
      let address = try story.address()
      let first = try connectTCP(address)
      try echo(first, 1)
      let second = try connectTCP(address)
      _ = try line(of: second)
      let before = monotonicNanoseconds()
      first.finishWriting()
      try echo(second, 2)
      #expect(monotonicNanoseconds() - before < 20_000_000_000, "a listener would have 30 s")
      #expect(try first.receiveToEnd().isEmpty)
      #expect(try story.reports(atLeast: 1).map(\.ending.word) == [.clientLeft])
      // No client waits any more, so a client that only receives may stay.
      second.finishWriting()
      try until { try ask(route) { $0.group.sessions.contains { $0.isHalfClosed } } }
      #expect(try ask(route) { $0.present.count } == 1)
      second.close()
    }
  }

  @Test("is overtaken by no new client, not even while the lanes check for closed connections")
  func overtaking() async throws {
    try await withRoute(routeConfig(Self.one, endpoint: "sim://echo")) { story, route in
      let address = try story.address()
      let first = try connectTCP(address)
      let number = try story.sessions(atLeast: 1)[0]
      let newcomers = try ask(route) { route in
        let second = try? connectTCP(address)
        route.poller.sweep()  // the check for closed connections begins
        let isUndecided = route.answersAwaited > 0
        route.end(number, Ending(.kicked))
        let third = try? connectTCP(address)
        route.poller.sweep()
        return isUndecided ? [second, third].compactMap(\.self) : []
      }
      try #require(newcomers.count == 2)
      try echo(newcomers[0], 2)
      #expect(try line(of: newcomers[1]) == "baudway: x is full; you are number 1 in the queue")
      for client in newcomers + [first] { client.close() }
    }
  }

  @Test("finishes the line that it has begun, before any other output", arguments: [true, false])
  func wholeLines(getsIn: Bool) async throws {
    try await withRoute(routeConfig(Self.one, endpoint: "sim://echo")) { story, route in
      let first = try connectTCP(try story.address())
      let number = try story.sessions(atLeast: 1)[0]
      // Lives on the lane; the kernel offers no socket that takes only part of a line.
      nonisolated(unsafe) let slow = ScriptedStream(
        reads: [.bytes([7])], writes: [.moved(10), .blocked(until: .writable), .moved(1000), .moved(1000)])
      let written = try ask(route) { route in
        route.queue.append(slow, AcceptedConnection.Label(address: nil, listener: "x"), waitingFor: .turn)
        let begun = slow.written
        if getsIn { route.end(number, Ending(.kicked)) } else { route.stop(Ending(.shutdown), within: .zero) {} }
        return (begun, slow.written)
      }
      let line = "baudway: x is full; you are number 1 in the queue\r\n"
      #expect(written.0 == Array(line.utf8.prefix(10)))
      #expect(String(decoding: written.1, as: UTF8.self) == line + (getsIn ? "" : "baudway: shutting down\r\n"))
      try ask(route) { _ in slow.close() }
      first.close()
    }
  }

  @Test("serves per-client links on every lane")
  func lanes() async throws {
    let server = try LoopbackListener()
    let config = try routeConfig("clients: { max: 1, when-full: queue }", endpoint: "tcp://\(server.address)")
    try await withRoute(config) { story, route in
      let address = try story.address()
      var lanes: Set<Int> = []
      let clients = try (0..<6).map { _ in try connectTCP(address) }
      _ = try story.wait { events in events.waiting == 5 ? true : nil }
      for (number, client) in clients.enumerated() {
        let endpoint = try server.accept()
        try endpoint.send([UInt8(number)])
        var received: [UInt8] = []  // after the lines with its position
        while received.last != UInt8(number), case let more = try client.receive(exactly: 1), !more.isEmpty {
          received += more
        }
        try client.send([UInt8(number)])
        #expect(try endpoint.receive(exactly: 1) == [UInt8(number)])
        lanes.formUnion(try ask(route) { Array($0.present.values) })
        client.reset()
      }
      #expect(lanes == [0, 1])
      #expect(try story.reports(atLeast: 6).allSatisfy { $0.ending.word == .clientLost })
    }
    server.close()
  }

  @Test("sends its clients the reason when the route stops", arguments: [Ending.Word.shutdown, .routeRemoved])
  func stops(word: Ending.Word) async throws {
    try await withRoute(routeConfig(Self.one, endpoint: "sim://echo")) { story, route in
      let address = try story.address()
      let first = try connectTCP(address)
      try echo(first, 1)
      let second = try connectTCP(address)
      _ = try line(of: second)
      try second.send([1, 2])
      try ask(route) { $0.stop(Ending(word), within: .seconds(10)) {} }
      let reported = word == .shutdown ? "baudway: shutting down\r\n" : "baudway: route x was removed\r\n"
      #expect(try String(decoding: second.receiveToEnd(), as: UTF8.self) == reported)
      #expect(try story.reports(atLeast: 2).allSatisfy { $0.ending.word == word })
      #expect(story.reports.count { $0.wasOpened } == 1)
      first.close()
    }
  }

  @Test("moves up when a reload makes room, and ends the clients that it denies")
  func reload() async throws {
    try await withRoute(routeConfig(Self.one, listen: "tcp://*:0", endpoint: "sim://echo")) { story, route in
      let address = try story.address()
      let v6 = try #require(SocketAddress(numeric: "::1", port: address.port))
      let first = try connectTCP(v6)
      try echo(first, 1)
      let (second, third) = (try connectTCP(address), try connectTCP(v6))
      _ = try line(of: second)
      _ = try line(of: third)
      let text = "clients: { max: 2, when-full: queue, deny: [127.0.0.1] }"
      let config = try routeConfig(text, listen: "tcp://*:0", endpoint: "sim://echo")
      let connector = try Gateway.broker.connector(config.endpoint)
      try ask(route) { $0.update(config, connector: connector) }
      #expect(try String(decoding: second.receiveToEnd(), as: UTF8.self) == "baudway: x is not open to 127.0.0.1\r\n")
      try echo(third, 3)
      #expect(story.reports.map(\.ending.word) == [.denied])
      for client in [first, third] { client.close() }
    }
  }
}

private func echo(_ client: FarEnd, _ byte: UInt8) throws {
  try client.send([byte])
  #expect(try client.receive(exactly: 1) == [byte])
}

/// The next line of text, without its end.
private func line(of client: FarEnd) throws -> String {
  var text: [UInt8] = []
  while !text.ends(with: "\r\n".utf8) {
    let byte = try client.receive(exactly: 1)
    guard !byte.isEmpty else { break }
    text += byte
  }
  return String(decoding: text.dropLast(2), as: UTF8.self)
}

extension [UInt8] {
  fileprivate func ends(with end: String.UTF8View) -> Bool { suffix(end.count).elementsEqual(end) }
}

extension [StatusEvent] {
  /// The queue's length as last reported.
  fileprivate var waiting: Int {
    reduce(0) { before, event in if case .queue(_, let waiting) = event { waiting } else { before } }
  }
}
