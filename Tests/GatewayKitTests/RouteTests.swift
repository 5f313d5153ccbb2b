// A route with real clients over TCP: which ones it admits, how sessions end, and how its stop ends them.

import CLinux
import Glibc
import StreamBroker
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A route", .timeLimit(.minutes(5)))
struct RouteTests {
  @Test("refuses a client for which it has no place, with the reason, and reports it")
  func full() async throws {
    try await withRoute(routeConfig("clients: { max: 1 }", endpoint: "sim://echo")) { story, _ in
      let address = try story.address()
      let first = try connectTCP(address)
      try first.send([1])
      #expect(try first.receive(exactly: 1) == [1])
      let second = try connectTCP(address)
      try second.send([2, 2, 2])  // unread input must not destroy the reason
      let notice = String(decoding: try second.receiveToEnd(), as: UTF8.self)
      #expect(notice == "baudway: x is full (1 of 1 clients)\r\n")
      let report = try story.reports(atLeast: 1)[0]
      #expect(report.ending.word == .full && report.up == 0 && report.down == 0)
      #expect(story.opened == 1)
      first.close()
    }
  }

  @Test("sends a refused client no text with 'notices: off'")
  func silent() async throws {
    try await withRoute(routeConfig("clients: { max: 1, notices: off }", endpoint: "sim://echo")) { story, _ in
      let address = try story.address()
      let first = try connectTCP(address)
      let second = try connectTCP(address)
      #expect(try second.receiveToEnd().isEmpty)
      first.close()
    }
  }

  @Test("never refuses a client because of its own closed connection on a shared link", arguments: [true, false])
  func ghosts(reset: Bool) async throws {
    try await withRoute(routeConfig("clients: { max: 1 }", endpoint: "sim://echo")) { story, _ in
      let address = try story.address()
      for round in 0..<100 {
        let client = try connectTCP(address)
        try client.send([UInt8(round)])
        #expect(try client.receive(exactly: 1) == [UInt8(round)])
        try leave(client, byReset: reset)
      }
      let words = try story.reports(atLeast: 99).map(\.ending.word)
      #expect(!words.contains(.full) && words.allSatisfy { $0 == (reset ? .clientLost : .clientLeft) })
    }
  }

  @Test("never refuses a client because of its own closed connection on another lane")
  func ghostsElsewhere() async throws {
    let server = try LoopbackListener()
    let config = try routeConfig("clients: { max: 1 }", endpoint: "tcp://\(server.address)")
    try await withRoute(config) { story, _ in
      let address = try story.address()
      for round in 0..<100 {
        // The server sends its byte and closes; then only the client's end is missing.
        let client = try connectTCP(address)
        let endpoint = try server.accept()
        try endpoint.send([UInt8(round)])
        try leave(endpoint, byReset: false)
        #expect(try client.receiveToEnd() == [UInt8(round)])
        try leave(client, byReset: false)
      }
      let words = try story.reports(atLeast: 100).map(\.ending.word)
      #expect(words.allSatisfy { $0 == .endpointLeft })
    }
    server.close()
  }

  @Test("gives the place of a client that has finished sending to a new one when it is full")
  func halfClosedGivesWay() async throws {
    try await withRoute(routeConfig("clients: { max: 1 }", endpoint: "sim://echo")) { story, _ in
      let address = try story.address()
      let first = try connectTCP(address)
      try first.send([1])
      first.finishWriting()
      #expect(try first.receive(exactly: 1) == [1])
      let second = try connectTCP(address)
      try second.send([2])
      #expect(try second.receive(exactly: 1) == [2])
      #expect(try first.receiveToEnd().isEmpty)
      #expect(try story.reports(atLeast: 1)[0].ending.word == .clientLeft)
      second.close()
    }
  }

  @Test("forwards half-closes both ways between a client and its per-client endpoint")
  func halfClose() async throws {
    let server = try LoopbackListener()
    try await withRoute(routeConfig(endpoint: "tcp://\(server.address)")) { story, _ in
      let address = try story.address()
      for clientFirst in [true, false, true] {
        let client = try connectTCP(address)
        let endpoint = try server.accept()
        let (first, second) = clientFirst ? (client, endpoint) : (endpoint, client)
        try first.send([1, 2, 3])
        first.finishWriting()
        #expect(try second.receiveToEnd() == [1, 2, 3])
        try second.send([4, 5])
        second.finishWriting()
        #expect(try first.receiveToEnd() == [4, 5])
      }
      let reports = try story.reports(atLeast: 3)
      #expect(reports.map(\.ending.word) == [.clientLeft, .endpointLeft, .clientLeft])
      #expect(reports.map(\.up) == [3, 2, 3] && reports.map(\.down) == [2, 3, 2])
      #expect(reports.allSatisfy { $0.dropped == 0 && $0.ending.cause == nil })
    }
    server.close()
  }

  @Test("ends a client whose endpoint can't be reached, or fails, and reports the reason")
  func endpointFaults() async throws {
    let server = try LoopbackListener()
    try await withRoute(routeConfig(endpoint: "tcp://\(server.address)")) { story, _ in
      let address = try story.address()
      let client = try connectTCP(address)
      let endpoint = try server.accept()
      try endpoint.send([7])
      #expect(try client.receive(exactly: 1) == [7])
      endpoint.reset()
      #expect(try client.receiveToEnd().isEmpty)
      server.close()
      let late = try connectTCP(address)
      #expect(try late.receiveToEnd().isEmpty)
      let reports = try story.reports(atLeast: 2)
      #expect(reports.map(\.ending.word) == [.deviceLost, .openFailed])
      #expect((reports[0].ending.cause as? SystemError)?.name == "ECONNRESET")
      #expect((reports[1].ending.cause as? OpenFailure)?.cause?.name == "ECONNREFUSED")
    }
  }

  @Test("resets a client that is too slow, and delays no other")
  func tooSlow() async throws {
    try await withRoute(routeConfig("clients: { slow: disconnect, buffer: 4KiB }", endpoint: "sim://flood")) {
      story, _ in
      let address = try story.address()
      let stuck = try connectTCP(address)
      let healthy = try connectTCP(address)
      let limit = monotonicNanoseconds() + Patience.nanoseconds
      while story.reports.isEmpty, monotonicNanoseconds() < limit { _ = try healthy.receive() }
      #expect(story.reports.map(\.ending.word) == [.tooSlow] && story.reports[0].dropped > 0)
      #expect(throws: SystemError("receive", ECONNRESET)) { while try !stuck.receive().isEmpty {} }
      #expect(try !healthy.receive().isEmpty)
      healthy.close()
    }
  }

  @Test("delivers kept output when it stops, and ends all sessions with the same word")
  func stops() async throws {
    let story = Mutex<Story?>(nil)
    let clients = Mutex<[FarEnd]>([])
    try await withRoute(routeConfig(endpoint: "sim://echo")) { reported, _ in
      story.withLock { $0 = reported }
      let address = try reported.address()
      for number in 0..<5 as Range<UInt8> {
        let client = try connectTCP(address)
        try client.send([number])
        _ = try client.receive(upTo: 1)
        clients.withLock { $0.append(client) }
      }
    }
    let reports = story.withLock { $0?.reports } ?? []
    #expect(reports.count == 5 && reports.allSatisfy { $0.ending.word == .shutdown && $0.up == 1 })
    for client in clients.withLock(\.self) {
      try await onOwnThread { _ = try client.receiveToEnd() }  // in order: no reset
      client.close()
    }
  }

  @Test("stops within its time limit though a client takes nothing")
  func stopsStuck() async throws {
    let before = monotonicNanoseconds()
    try await withRoute(routeConfig("clients: { slow: block }", endpoint: "sim://flood")) { story, _ in
      let client = try connectTCP(try story.address())
      _ = try client.receive(upTo: 1)
      _ = try client.take()  // and never reads; the descriptor closes with the test
    }
    #expect(monotonicNanoseconds() - before < 10_000_000_000)
  }

  @Test("leaves no descriptor behind", arguments: ["sim://echo", "tcp"])
  func leaks(endpoint: String) async throws {
    try await expectNoDescriptorLeak {
      let server = try LoopbackListener()
      let url = endpoint == "tcp" ? "tcp://\(server.address)" : endpoint
      try await withRoute(routeConfig(endpoint: url)) { story, _ in
        let address = try story.address()
        for round in 0..<20 {
          let client = try connectTCP(address)
          if endpoint == "tcp" { try server.accept().close() }
          if round % 2 == 0 { client.reset() } else { client.close() }
        }
        _ = try story.reports(atLeast: 10)
      }
      server.close()
    }
  }
}

/// Ends a TCP connection now. close(2) alone would not while another test is starting a process, which has copies of
/// all descriptors until it runs its program.
private func leave(_ end: FarEnd, byReset: Bool) throws {
  let descriptor = try end.take()
  if byReset {
    var nobody = sockaddr()
    nobody.sa_family = sa_family_t(AF_UNSPEC)  // connect(2): dissolves the association, by RST
    guard connect(descriptor.raw, &nobody, socklen_t(MemoryLayout<sockaddr>.size)) == 0 else {
      throw SystemError("connect")
    }
  } else {
    shutdown(descriptor.raw, Int32(SHUT_WR))
  }
}
