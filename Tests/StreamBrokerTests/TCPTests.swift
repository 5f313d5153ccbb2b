// The order of attempts without sockets, and connecting with them.

import ByteStreams
import Dispatch
import Glibc
import StreamTestKit
import Synchronization
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("Attempts on many addresses", .timeLimit(.minutes(5)))
struct HappyEyeballsTests {
  private func addresses(_ hosts: String...) -> [SocketAddress] {
    hosts.compactMap { SocketAddress(numeric: $0, port: 80) }
  }

  @Test("alternate between both families, starting with the resolver's first")
  func interleaving() {
    let order = HappyEyeballs(addresses("::1", "::2", "::3", "10.0.0.1", "10.0.0.2", "::1"))
    #expect(order.addresses.map(\.host) == ["::1", "10.0.0.1", "::2", "10.0.0.2", "::3"])
  }

  @Test("begin the next after the delay, or at once when one failed")
  func delay() {
    var order = HappyEyeballs(addresses("::1", "::2", "::3"))
    #expect(order.handle(.started) == [.waitDelay, .attempt(0)])
    #expect(order.handle(.delayPassed) == [.waitDelay, .attempt(1)])
    #expect(order.handle(.failed(1)) == [.attempt(2)])
    #expect(order.handle(.delayPassed) == [])
    #expect(order.handle(.failed(2)) == [])
    #expect(order.handle(.failed(0)) == [.giveUp])
    #expect(order.handle(.connected(0)) == [])
  }

  @Test("end with the first that connects, whichever that is")
  func winning() {
    var order = HappyEyeballs(addresses("::1", "::2"))
    _ = order.handle(.started)
    _ = order.handle(.delayPassed)
    #expect(order.handle(.connected(0)) == [.win(0)])
    #expect(order.handle(.failed(1)) == [] && order.handle(.delayPassed) == [])
  }

  @Test("give up at once without any address, and stay bounded with thousands")
  func extremes() {
    var none = HappyEyeballs([])
    #expect(none.handle(.started) == [.giveUp])
    let many = HappyEyeballs((1...5000).compactMap { SocketAddress(numeric: "10.0.\($0 / 256).\($0 % 256)", port: 1) })
    #expect(many.addresses.count == HappyEyeballs.mostAddresses)
  }
}

@Suite("A TCP connector", .timeLimit(.minutes(5)))
struct TCPConnectorTests {
  @Test("connects to an address in digits, and the stream is set up for bytes")
  func numeric() async throws {
    let listener = try LoopbackListener()
    try await onLane { lane in
      let stream = try await Broker(Schemes.standard).open("tcp://\(listener.address)", on: lane)
      defer { stream.close() }
      let far = try listener.accept()  // the kernel has accepted already
      try far.send([1, 2, 3])
      #expect(try await stream.read(exactly: 3, on: lane) == [1, 2, 3])
    }
  }

  @Test("looks up a name, tries all addresses, and lists them when none accepts")
  func name() async throws {
    let listener = try LoopbackListener()
    try await onLane { lane in
      try await Broker(Schemes.standard).open("tcp://localhost:\(listener.address.port)", on: lane).close()
    }
    listener.close()
    let deaf = try LoopbackListener(listens: false)
    defer { deaf.close() }
    let port = deaf.address.port
    await #expect {
      try await onLane { lane in
        try await Broker(Schemes.standard).open("tcp://localhost:\(port)", on: lane).close()
      }
    } throws: {
      "\($0)".contains("connect ") && "\($0)".contains("127.0.0.1:\(port)")
        && "\($0)".contains("Connection refused (ECONNREFUSED)")
    }
  }

  @Test("reports in one line that no server listens")
  func refused() async throws {
    let listener = try LoopbackListener(listens: false)
    defer { listener.close() }
    await #expect {
      try await onLane { lane in
        try await Broker(Schemes.standard).open("tcp://\(listener.address)", on: lane).close()
      }
    } throws: {
      "\($0)" == "connect \(listener.address): Connection refused (ECONNREFUSED)"
    }
  }

  @Test("tries the next address when one fails, and leaves no descriptor open")
  func nextAddress() async throws {
    try await expectNoDescriptorLeak {
      let listener = try LoopbackListener("::1")
      defer { listener.close() }
      let port = listener.address.port
      try await onLane { lane in
        let gate = Gate()
        var opened: (any ByteStream)?
        let opening = TCPOpening(on: lane.poller) { result in
          opened = try? result.get()
          gate.open()
        }
        opening.start(["127.0.0.1", "::1", "127.0.0.2"].compactMap { SocketAddress(numeric: $0, port: port) })
        await gate.wait(on: lane)
        #expect(opened != nil)
        opened?.close()
      }
    }
  }

  @Test("closes every attempt when it is cancelled, and reports nothing")
  func cancelling() async throws {
    try await expectNoDescriptorLeak {
      // No accept, and the backlog is full: an attempt stays in progress.
      let listener = try LoopbackListener(backlog: 0)
      defer { listener.close() }
      try await onLane { lane in
        var fillers: [any Opening] = []
        var results = 0
        for _ in 0..<8 {
          fillers.append(
            TCPConnector(host: "127.0.0.1", port: listener.address.port).open(
              OpenRequest(discardsInput: false), on: lane.poller
            ) {
              results += 1
              (try? $0.get())?.close()
            })
        }
        let gate = Gate()
        lane.poller.timers.after(.milliseconds(300)) { gate.open() }
        await gate.wait(on: lane)
        #expect(results < 8)
        for filler in fillers { filler.cancel() }
        let before = results
        let later = Gate()
        lane.poller.timers.after(.milliseconds(50)) { later.open() }
        await later.wait(on: lane)
        #expect(results == before)
      }
    }
  }

  @Test("ends an unanswered attempt at its timeout")
  func timeout() async throws {
    let listener = try LoopbackListener(backlog: 0)
    defer { listener.close() }
    try await onLane { lane in
      let broker = Broker(Schemes.standard)
      var streams: [any ByteStream] = []
      var failure: OpenFailure?
      let name = "tcp://\(listener.address)"
      for _ in 0..<8 where failure == nil {
        do {
          streams.append(try await broker.open(name, on: lane, timeout: .milliseconds(200)))
        } catch let thrown as OpenFailure { failure = thrown }
      }
      #expect(failure?.cause?.name == "ETIMEDOUT" && failure?.attempt == "open \(name)")
      for stream in streams { stream.close() }
    }
  }
}

@Suite("Looking up a name", .timeLimit(.minutes(5)))
struct NameLookupTests {
  @Test("is done once for all callers at a time, and a dead name server stops no other name")
  func joining() async throws {
    let mayEnd = DispatchSemaphore(value: 0)
    let calls = Atomic<Int>(0)
    let address = try #require(SocketAddress(numeric: "10.0.0.1", port: 0))
    try await onLane { lane in
      let gate = Gate()
      let other = Gate()
      var answers: [NameLookup.Answer] = []
      for _ in 0..<5 {
        NameLookup.start(
          "slow.test", on: lane.poller,
          resolve: { _ in
            calls.add(1, ordering: .relaxed)
            mayEnd.wait()
            return .success([address])
          },
          then: {
            answers.append($0)
            if answers.count == 5 { gate.open() }
          })
      }
      NameLookup.start("quick.test", on: lane.poller, resolve: { _ in .success([]) }, then: { _ in other.open() })
      await other.wait(on: lane)
      #expect(answers.isEmpty)
      mayEnd.signal()
      await gate.wait(on: lane)
      #expect(answers == Array(repeating: .success([address]), count: 5))
      #expect(calls.load(ordering: .relaxed) == 1)
    }
  }

  @Test("is refused at once if too many callers wait for a name")
  func bounded() async throws {
    let mayEnd = DispatchSemaphore(value: 0)
    try await onLane { lane in
      let refused = Gate()
      let all = Gate()
      var answers = 0
      var refusals = 0
      for _ in 0..<NameLookup.mostWaiting + 3 {
        NameLookup.start(
          "crowded.test", on: lane.poller,
          resolve: { _ in
            mayEnd.wait()
            return .success([])
          },
          then: {
            if case .failure(let failure) = $0, failure.advice?.contains("others wait") ?? false { refusals += 1 }
            answers += 1
            if answers == 3 { refused.open() }
            if answers == NameLookup.mostWaiting + 3 { all.open() }
          })
      }
      await refused.wait(on: lane)
      #expect(refusals == 3 && answers == 3)
      mayEnd.signal()
      await all.wait(on: lane)
      #expect(refusals == 3)
    }
  }

  @Test("reports the resolver's error, and what to do")
  func failing() async throws {
    await #expect {
      try await onLane { lane in
        try await Broker(Schemes.standard).open("tcp://no-such-host.invalid:4001", on: lane).close()
      }
    } throws: {
      "\($0)".hasPrefix("look up no-such-host.invalid: ") && "\($0)".contains("; ")
    }
  }
}
