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
  /// All that connect(2), ip(7) and tcp(7) name, except what says enough itself: a refusal, and no answer in time.
  static let advice: [(Int32, String)] = [
    (EINVAL, "[fe80::1%eth0]"), (ENETUNREACH, "no route to that network"), (EHOSTUNREACH, "nobody answers"),
    (EHOSTDOWN, "nobody answers"), (ENETDOWN, "interface to that network is down"), (EADDRNOTAVAIL, "free port"),
    (EADDRINUSE, "free port"), (EACCES, "address of a single host"), (EPERM, "firewall rule"),
    (EAFNOSUPPORT, "no IPv6"), (ENODEV, "no such interface"), (ENXIO, "no such interface"),
    (EMFILE, "LimitNOFILE"), (ENFILE, "fs.file-max"), (ENOBUFS, "no memory left"), (ENOMEM, "no memory left"),
  ]

  @Test("says what to do about each error that the system or the configuration causes", arguments: advice)
  func adviceOnFailure(number: Int32, words: String) {
    #expect(TCPOpening.advice(SystemError("connect", number))?.contains(words) == true)
  }

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

  private let hosts: @Sendable (TemporaryFolder) throws -> String = { folder in
    try folder.write(
      "hosts", "# comment\n10.0.0.9 other box # meter\n\n10.0.0.7\tMeter_Box\tbox\r\nfe80::1 v6\nnonsense box\n")
    return folder / "hosts"
  }

  @Test("answers numbers, localhost and the hosts file while all threads hang in the resolver, and the rest in turn")
  func deadServer() async throws {
    let folder = try TemporaryFolder()
    let hosts = try hosts(folder)
    let mayEnd = DispatchSemaphore(value: 0)
    let asked = Mutex<[String]>([])
    let hangs: @Sendable (String) -> NameLookup.Answer = { name in
      asked.withLock { $0.append(name) }
      mayEnd.wait()
      return .success([])
    }
    let most = NameLookup.mostOutstanding
    try await onLane { lane in
      var tokens: [NameLookup.Token] = []
      var answers = 0
      let all = Gate()
      for number in 0..<most + 8 {
        tokens.append(
          NameLookup.start("dead\(number).test", on: lane.poller, hosts: hosts, resolve: hangs) { _ in
            answers += 1
            if answers == most + 16 { all.open() }
          })
      }
      #expect(await eventually { asked.withLock { $0.count } == most })
      for name in ["localhost", "LOCALHOST.", "a.localhost", "meter_box", "other", "10.1.2.3", "::1"] {
        let gate = Gate()
        NameLookup.start(name, on: lane.poller, hosts: hosts, resolve: hangs) { answer in
          if case .success(let found) = answer { #expect(!found.isEmpty) } else { Issue.record("\(name): \(answer)") }
          gate.open()
        }
        await gate.wait(on: lane)
      }
      #expect(asked.withLock { $0.count } == most)
      // Those that wait may give up and come back.
      for token in tokens[most...] { NameLookup.cancel(token) }
      for number in most..<most + 8 {
        NameLookup.start("dead\(number).test", on: lane.poller, hosts: hosts, resolve: hangs) { _ in
          answers += 1
          if answers == most + 16 { all.open() }
        }
      }
      for _ in 0..<most + 8 { mayEnd.signal() }
      await all.wait(on: lane)
    }
    #expect(asked.withLock { Set($0).count } == most + 8)
    #expect(asked.withLock { $0.count } == most + 8)
  }

  /// A resolver that hangs at each name until that is let go.
  private final class Hanging: Sendable {
    private let state = Mutex((asked: [String](), ends: [String: DispatchSemaphore]()))

    func end(of name: String) -> DispatchSemaphore {
      state.withLock { state in
        let end = state.ends[name] ?? DispatchSemaphore(value: 0)
        state.ends[name] = end
        return end
      }
    }
    var asked: [String] { state.withLock { $0.asked } }

    func resolve(_ name: String) -> NameLookup.Answer {
      state.withLock { $0.asked.append(name) }
      end(of: name).wait()
      return .success([])
    }
  }

  @Test("asks first for the name that was not asked for the longest time, whoever waits longer")
  func fair() async throws {
    let hanging = Hanging()
    let most = NameLookup.mostOutstanding
    try await onLane { lane in
      let start = { (name: String, done: @escaping () -> Void) in
        _ = NameLookup.start(
          name, on: lane.poller, hosts: "/nowhere", resolve: { hanging.resolve($0) }, then: { _ in done() })
      }
      for number in 0..<most - 1 { start("busy\(number).test") {} }
      let isOver = Gate()
      start("old.test") { isOver.open() }
      #expect(await eventually { hanging.asked.count == most })
      start("filler.test") {}
      hanging.end(of: "old.test").signal()
      await isOver.wait(on: lane)
      #expect(await eventually { hanging.asked.last == "filler.test" })
      // The other one has had its turn.
      start("old.test") {}
      start("new.test") {}
      // Both wait once another look-up on the queue of local names is over.
      let areWaiting = Gate()
      NameLookup.start("127.0.0.1", on: lane.poller) { _ in areWaiting.open() }
      await areWaiting.wait(on: lane)
      hanging.end(of: "busy0.test").signal()
      #expect(await eventually { hanging.asked.count == most + 2 })
      #expect(hanging.asked.last == "new.test")
      hanging.end(of: "busy1.test").signal()
      #expect(await eventually { hanging.asked.last == "old.test" })
      for name in Set(hanging.asked) { hanging.end(of: name).signal() }
    }
  }

  @Test("takes from the hosts file every address of a name, in any case, and nothing from comments")
  func hostsFile() throws {
    let folder = try TemporaryFolder()
    let file = try hosts(folder)
    let found = { (name: String) in LocalNames.addresses(of: name, hosts: file)?.map(\.host).sorted() }
    #expect(found("BOX") == ["10.0.0.7", "10.0.0.9"] && found("meter_box") == ["10.0.0.7"])
    #expect(
      found("meter") == nil && found("comment") == nil && found("nonsense") == nil && found("10.0.0.8") == ["10.0.0.8"])
    #expect(LocalNames.addresses(of: "localhost", hosts: "/nowhere")?.allSatisfy(\.isLoopback) == true)
    #expect(LocalNames.addresses(of: "nolocalhost", hosts: "/nowhere") == nil)
    #expect(LocalNames.interfaces().contains { $0.isLoopback })
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
