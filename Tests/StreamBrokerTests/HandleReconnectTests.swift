// Handles that open their endpoint again: the policies, what happens to bytes around a loss, and a serial port that is
// pulled and put back.

import ByteStreams
import Dispatch
import Glibc
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBrokerCore

/// An endpoint of socket pairs: each opening makes one, and the test gets the other end.
private final class Replugged: Sendable {
  let endpoint: TestEndpoint
  private let ends: AsyncStream<FarEnd>
  private let state: State

  private final class State: Sendable {
    let isThere: Mutex<Bool>
    init(_ isThere: Bool) { self.isThere = Mutex(isThere) }
  }

  init(isThere: Bool = true) {
    let (ends, feed) = AsyncStream.makeStream(of: FarEnd.self)
    self.ends = ends
    let state = State(isThere)
    self.state = state
    endpoint = TestEndpoint { poller in
      guard state.isThere.withLock({ $0 }) else { throw SystemError("open", ENOENT) }
      let (near, far) = try FarEnd.pair()
      feed.yield(far)
      return try near.stream(on: poller)
    }
  }

  func put(_ isThere: Bool) { state.isThere.withLock { $0 = isThere } }

  /// The far end of the next opening that succeeded.
  func next() async throws -> FarEnd {
    var iterator = ends.makeAsyncIterator()
    return try #require(await iterator.next())
  }
}

/// Reports that a device may be available when the test says so.
private final class ScriptedWatch: DeviceWatch {
  let changed: (DeviceNews) -> Void
  init(_ changed: @escaping (DeviceNews) -> Void) { self.changed = changed }
  func cancel() {}
}

/// Opens as another connector does, and has a watch.
private struct WatchedConnector: Connector {
  static let grammar = TestConnector.grammar
  private let connector: TestConnector
  private let watch: OnHandleLane<ScriptedWatch>

  init(_ connector: TestConnector, _ watch: OnHandleLane<ScriptedWatch>) {
    self.connector = connector
    self.watch = watch
  }

  init(_ url: EndpointURL) { fatalError("made by the test") }

  func watch(
    on poller: Poller, after cause: SystemError?, _ changed: @escaping (DeviceNews) -> Void
  ) -> (any DeviceWatch)? {
    let watch = ScriptedWatch(changed)
    self.watch.set(watch, on: poller)
    return watch
  }

  func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening { connector.open(request, on: poller, done) }
}

private let quick = Reconnect.whenLost.pausing(.milliseconds(1) ... .milliseconds(5))

@Suite("A handle that reconnects", .timeLimit(.minutes(5)))
struct HandleReconnectTests {
  @Test("continues with the next link: reads, writes and lines, none of which joins two links")
  func continues() async throws {
    let device = Replugged()
    let stream = try await testBroker.connect(device.endpoint.url, reconnect: quick)
    var lines = stream.lines.makeAsyncIterator()
    for round in 0..<10 {
      let far = try await device.next()
      try far.send([UInt8]("begin \(round)\nhalf"))
      try await stream.write([UInt8(round)])
      #expect(try await onOwnThread { try far.receive(exactly: 1) } == [UInt8(round)])
      far.close()
      #expect(try await lines.next() == "begin \(round)")
      #expect(try await lines.next() == "half")
    }
    stream.close()
  }

  @Test("gives all bytes that arrived before the loss, though no task read them, and then those of the next link")
  func unread() async throws {
    let device = Replugged()
    let stream = try await testBroker.connect(device.endpoint.url, reconnect: quick)
    let first = try await device.next()
    let sent = try await onOwnThread { try first.sendUntilFull(1, atMost: 150_000) }
    first.close()
    let reading = Task {
      var ones = 0
      while true {
        let chunk = try await stream.read()
        #expect(Set(chunk).count == 1)
        if chunk.first != 1 { return ones }
        ones += chunk.count
      }
    }
    let second = try await device.next()
    try second.send([2])
    #expect(try await reading.value == sent)
  }

  @Test("sends an unfinished write again, whole, on the next link")
  func writing() async throws {
    let device = Replugged()
    let stream = try await testBroker.connect(device.endpoint.url, reconnect: quick)
    let bytes = [UInt8](repeating: 5, count: 4 << 20)
    let writing = Task { try await stream.write(bytes) }
    let first = try await device.next()
    #expect(try await onOwnThread { try first.receive(exactly: 1000).count } == 1000)
    device.put(false)
    first.close()
    #expect(await eventually { stream.status.reason != nil })
    device.put(true)
    let second = try await device.next()
    #expect(try await onOwnThread { try second.receive(exactly: bytes.count) } == bytes)
    try await writing.value
  }

  @Test("holds writes while the link is lost, within their time, or drops them if that is chosen")
  func absent() async throws {
    for holds in [true, false] {
      let device = Replugged()
      let pauses = Duration.milliseconds(1) ... .milliseconds(2)
      let stream = try await testBroker.connect(
        device.endpoint.url, reconnect: .whenLost.pausing(pauses, holdingOutput: holds))
      device.put(false)
      try await device.next().close()
      #expect(await eventually { stream.status.reason != nil })
      await #expect(throws: SystemError("line", ENOTCONN)) { try await stream.line.settings }
      if holds {
        let error = await #expect(throws: SystemError.self) { try await stream.write([1], within: .milliseconds(20)) }
        #expect(error?.errno == ETIMEDOUT)
        let task = Task { try await stream.write([2]) }
        await Task.yield()
        task.cancel()
        await #expect(throws: CancellationError.self) { try await task.value }
      } else {
        try await stream.write([1])
      }
      async let written: Void = stream.write([3])
      if !holds { try await written }
      device.put(true)
      let far = try await device.next()
      if !holds { try await stream.write([4]) }
      #expect(try await onOwnThread { try far.receive(exactly: 1) } == [holds ? 3 : 4])
      if holds { try await written }
    }
  }

  @Test("reports by a flush that bytes may be lost, once")
  func flushing() async throws {
    let device = Replugged()
    let stream = try await testBroker.connect(device.endpoint.url, reconnect: quick)
    try await stream.write([1])
    try await stream.flush()
    try await stream.write([2])
    try await device.next().close()
    let far = try await device.next()
    await #expect(throws: SystemError.self) { try await stream.flush() }
    try await stream.flush()
    try await stream.write([3])
    try await stream.flush()
    #expect(try await onOwnThread { try far.receive(exactly: 1) } == [3])
  }

  @Test("reports by a flush that waits when the link is lost, and not again by the next")
  func flushingWhenLost() async throws {
    let isFirst = Atomic(true)
    let (stream, kernel) = try await scripted(quick) {
      let stream = ScriptedStream(takesAll: true)
      if isFirst.exchange(false, ordering: .relaxed) { stream.undelivered = .onItsWay(1) }
      return stream
    }
    try await stream.write([1])
    let flush = Task { try await stream.flush() }
    #expect(await kernel.reaches { $0.undeliveredCalls > 0 })
    await kernel.ask { $0.delegate?.stream($0, handle: .errorOccurred(SystemError("read", ECONNRESET))) }
    await #expect(throws: SystemError("read", ECONNRESET)) { try await flush.value }
    try await stream.write([2])
    try await stream.flush()
    stream.close()
  }

  @Test("reports each step to an observer, in order")
  func observed() async throws {
    let device = Replugged()
    let observer = StreamObserver()
    let stream = try await testBroker.connect(device.endpoint.url, reconnect: quick, observer: observer)
    var events = observer.events.makeAsyncIterator()
    let path = String(device.endpoint.url.dropFirst(7))
    #expect(await events.next() == .step(.open(path)))
    #expect(await events.next() == .open)
    device.put(false)
    try await device.next().close()
    #expect(await events.next() == .lost(.lost(nil)))
    guard case .waiting(.lost(nil), let pause)? = await events.next() else {
      Issue.record("no wait")
      return
    }
    #expect(pause <= .milliseconds(1))
    #expect(await events.next() == .step(.open(path)))
    guard case .waiting(.openFailed(let failure), _)? = await events.next() else {
      Issue.record("no failure")
      return
    }
    #expect(failure.cause == SystemError("open", ENOENT))
    device.put(true)
    while let event = await events.next(), event != .open {}
    stream.close()
    #expect(await events.next() == .closed)
  }

  @Test("fails at once if the first opening fails, with whenLost; ends with the link, with never")
  func policies() async throws {
    let device = Replugged(isThere: false)
    for policy in [Reconnect.never, .whenLost] {
      await #expect(throws: OpenFailure.self) {
        try await testBroker.connect(device.endpoint.url, reconnect: policy)
      }
    }
    device.put(true)
    let stream = try await testBroker.connect(device.endpoint.url)
    let far = try await device.next()
    try far.send([1])
    far.close()
    #expect(try await stream.read() == [1])
    #expect(try await stream.read().isEmpty)
    #expect(device.endpoint.openings.load(ordering: .relaxed) == 3)
  }

  @Test("waits for the first opening, with always, until its timeout, and then names the reason")
  func always() async throws {
    let device = Replugged(isThere: false)
    let always = Reconnect.always.pausing(.milliseconds(1) ... .milliseconds(2))
    let failure = await #expect(throws: OpenFailure.self) {
      try await testBroker.connect(device.endpoint.url, timeout: .milliseconds(100), reconnect: always)
    }
    #expect(failure?.cause?.errno == ETIMEDOUT && "\(failure!)".contains("ENOENT"), "\(failure!)")
    let tries = device.endpoint.openings.load(ordering: .relaxed)
    #expect(tries > 3)
    async let stream = testBroker.connect(device.endpoint.url, reconnect: always)
    #expect(await eventually { device.endpoint.openings.load(ordering: .relaxed) > tries + 2 })
    device.put(true)
    try await device.next().send([1])
    #expect(try await stream.read() == [1])
  }

  @Test("ends at once when its task is cancelled while it waits for the first opening")
  func cancelledAlways() async throws {
    let device = Replugged(isThere: false)
    let task = Task { try await testBroker.connect(device.endpoint.url, reconnect: .always) }
    #expect(await eventually { device.endpoint.openings.load(ordering: .relaxed) > 0 })
    let took = await time {
      task.cancel()
      await #expect(throws: CancellationError.self) { try await task.value }
    }
    #expect(took < soon)
  }

  @Test("pauses longer after each link that was open no longer than the longest pause, even if it carried bytes")
  func pauses() async throws {
    let endpoint = TestEndpoint { _ in
      let stream = ScriptedStream(reads: [.bytes([1]), .ended])
      stream.hasBufferedInput = true  // is read on after one byte
      return stream
    }
    let observer = StreamObserver()
    let policy = Reconnect.whenLost.pausing(.milliseconds(16) ... .seconds(64))
    let stream = try await testBroker.connect(endpoint.url, reconnect: policy, observer: observer)
    var events = observer.events.makeAsyncIterator()
    var pauses: [Duration] = []
    while pauses.count < 4, let event = await events.next() {
      if case .waiting(_, let pause) = event { pauses.append(pause) }
    }
    stream.close()
    #expect(pauses.count == 4)
    // Each of them is shortened by a quarter at most.
    for (pause, longest) in zip(pauses, [16, 32, 64, 128]) {
      #expect(pause <= .milliseconds(longest) && pause >= .milliseconds(longest) * 3 / 4, "\(pauses)")
    }
  }

  @Test("opens a device at once when it appears, however long the pause is")
  func appears() async throws {
    let device = Replugged()
    let watch = OnHandleLane<ScriptedWatch>()
    let connector = WatchedConnector(try TestConnector(testBroker.url(device.endpoint.url)), watch)
    let endpoint = TestEndpoint(connector)
    let long = Reconnect.whenLost.pausing(.seconds(300) ... .seconds(300))
    let stream = try await testBroker.connect(endpoint.url, reconnect: long)
    try await device.next().close()
    await watch.ask { $0.changed(.appeared) }
    try await device.next().send([1])
    #expect(try await stream.read() == [1])
  }

  @Test("ends with its link after the program has ended its output")
  func finished() async throws {
    let device = Replugged()
    let stream = try await testBroker.connect(device.endpoint.url, reconnect: quick)
    try await stream.finishWriting()
    let far = try await device.next()
    try far.send([1])
    far.close()
    #expect(try await stream.read(within: .seconds(10)) == [1])
    #expect(try await stream.read(within: .seconds(10)).isEmpty)
    #expect(device.endpoint.openings.load(ordering: .relaxed) == 1)
  }

  @Test("stops trying when it is closed or released while the link is lost")
  func closedWhileLost() async throws {
    for isReleased in [false, true] {
      let device = Replugged()
      weak var kept: StreamObserver?
      do {
        let observer = StreamObserver()
        kept = observer
        let stream = try await testBroker.connect(device.endpoint.url, reconnect: quick, observer: observer)
        let reading = Task { [weak stream] in try await stream?.read() }
        device.put(false)
        try await device.next().close()
        #expect(await eventually { device.endpoint.openings.load(ordering: .relaxed) > 3 })
        if !isReleased {
          stream.close()
          #expect(try await reading.value?.isEmpty == true)
          #expect(await eventually { stream.status == .closed })
        } else {
          reading.cancel()
          _ = try? await reading.value
        }
      }
      let isGone = await eventually { [weak kept] in kept == nil }
      #expect(isGone)
    }
  }

  @Test("has the line at the applied settings again before it writes")
  func settings() async throws {
    let lines = Mutex<[OnHandleLane<ScriptedStream>]>([])
    let endpoint = TestEndpoint { poller in
      let stream = ScriptedStream(takesAll: true)
      stream.serialLine = ScriptedLine()
      let kernel = OnHandleLane<ScriptedStream>()
      kernel.set(stream, on: poller)
      lines.withLock { $0.append(kernel) }
      return stream
    }
    let stream = try await testBroker.connect(endpoint.url, reconnect: quick)
    let first = try #require(lines.withLock { $0.first })
    let applying = Task { try await stream.line.apply(LineSettings(bitsPerSecond: 300)) }
    for _ in 0..<2 {
      #expect(await first.reaches { ($0.serialLine as? ScriptedLine)?.asked == 1 })
      await first.ask { ($0.serialLine as? ScriptedLine)?.answer() }
    }
    #expect(try await applying.value.bitsPerSecond == 300)
    await first.ask { $0.delegate?.stream($0, handle: .errorOccurred(SystemError("read", EIO))) }
    #expect(await eventually { lines.withLock { $0.count } == 2 })
    let second = try #require(lines.withLock { $0.last })
    #expect(await second.reaches { ($0.serialLine as? ScriptedLine)?.applied.first?.bitsPerSecond == 300 })
    let writing = Task { try await stream.write([1]) }
    let error = await #expect(throws: SystemError.self) { try await stream.flush(within: .milliseconds(20)) }
    #expect(error?.errno == ETIMEDOUT)
    #expect(await second.ask { $0.written.isEmpty })
    await second.ask { ($0.serialLine as? ScriptedLine)?.answer() }
    try await writing.value
    #expect(await second.ask { $0.written } == [1])
  }
}

@Suite("A logger on a serial port", .timeLimit(.minutes(5)), .serialized)
struct ReplugTests {
  /// A port under a path that leads to another pty after each replug.
  private final class Port: Sendable {
    let folder: TemporaryFolder
    var path: String { folder / "tty" }
    private let pty = Mutex<Pty?>(nil)

    init() throws { folder = try TemporaryFolder() }

    func appear() throws {
      let pty = try makePty()
      self.pty.withLock { $0 = pty }
      guard symlink(pty.node, path + ".new") == 0, rename(path + ".new", path) == 0 else { throw SystemError("rename") }
    }

    /// The device sends a line, which the program's kernel has then.
    func send(_ line: String) throws { try pty.withLock { $0 }?.master.send(Array((line + "\n").utf8)) }

    func vanish() {
      unlink(path)
      pty.withLock { $0.take() }?.unplug()
    }
  }

  @Test("loses no line that the device delivered, though the port is pulled ten times")
  func replug() async throws {
    try await expectNoDescriptorLeak {
      let port = try Port()
      try port.appear()
      let observer = StreamObserver()
      let stream = try await testBroker.connect("tty://\(port.path)", reconnect: .whenLost, observer: observer)
      let logged = Mutex<[String]>([])
      let logger = Task {
        for try await line in stream.lines { logged.withLock { $0.append(line) } }
      }
      var events = observer.events.makeAsyncIterator()
      var sent: [String] = []
      for round in 0..<10 {
        while let event = await events.next(), event != .open {}
        for number in 0..<20 {
          sent.append("round \(round), line \(number)")
          try port.send(sent.last!)
        }
        // A pty drops what its reader has not read when the master closes; a wire delivers a line or not.
        let count = sent.count
        #expect(await eventually { logged.withLock { $0.count } == count })
        port.vanish()
        while let event = await events.next() {
          if case .lost = event { break }
        }
        try port.appear()
      }
      while let event = await events.next(), event != .open {}
      try port.send("last")
      #expect(await eventually { logged.withLock { $0.last } == "last" })
      #expect(logged.withLock { $0 } == sent + ["last"])
      stream.close()
      try await logger.value
      port.vanish()
    }
  }
}
