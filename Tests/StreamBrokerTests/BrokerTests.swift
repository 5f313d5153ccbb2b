// From a URL to an open stream, and the broker's async interface.

import ByteStreams
import Glibc
import StreamTestKit
import Synchronization
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("A broker", .timeLimit(.minutes(5)))
struct BrokerTests {
  @Test("knows the schemes it was given and no others")
  func schemes() throws {
    #expect(Broker(Schemes.standard).schemes == Set(Schemes.standard.map { $0.scheme }))
    let broker = Broker([SimConnector.self])
    #expect(broker.kind(of: "sim") == SimConnector.self && broker.kind(of: "tcp") == nil)
    #expect(throws: URLProblem.self) { try broker.connector("tcp://127.0.0.1:1") }
    #expect(throws: URLProblem.self) { try broker.connector("simm://echo") }
    #expect(throws: URLProblem.self) { try broker.connector("sim://echoes") }
  }

  @Test("reports nothing after an opening was cancelled")
  func cancelled() async throws {
    let listener = try LoopbackListener()
    try await onLane { lane in
      var results = 0
      let broker = Broker(Schemes.standard)
      let connector = try broker.connector("tcp://localhost:\(listener.address.port)")
      broker.open(connector, named: "x", on: lane.poller, timeout: .milliseconds(10)) { _ in results += 1 }.cancel()
      let gate = Gate()
      lane.poller.timers.after(.milliseconds(50)) { gate.open() }
      await gate.wait(on: lane)
      #expect(results == 0)
    }
  }

  @Test("leaves an opening of several steps its own time limits, if no timeout is given")
  func stepped() async throws {
    try await onLane { lane in
      var results: [Result<any ByteStream, OpenFailure>] = []
      var request = OpenRequest()
      request.connectTimeout = .milliseconds(1)
      let opening = Broker([]).open(SlowSteps(), named: "x", request, on: lane.poller, timeout: nil) {
        results.append($0)
      }
      let gate = Gate()
      lane.poller.timers.after(.milliseconds(50)) { gate.open() }
      await gate.wait(on: lane)
      guard case .failure(let failure)? = results.first else {
        Issue.record("nothing, or a stream")
        return
      }
      #expect(failure.advice == "given 0.001 seconds" && results.count == 1)
      opening.cancel()
    }
  }

  @Test("offers chunks to iterate over, and sending that waits for space")
  func asyncFace() async throws {
    var random = SeededRandom()
    let bytes = random.bytes(1_000_000)
    let (near, far) = try FarEnd.pair()
    async let echo: Void = onOwnThread { try far.play(.answerAfterTheEnd) }
    let received = try await onLane { lane in
      let stream = try near.stream(on: lane.poller)
      defer { stream.close() }
      try await stream.send(bytes)
      stream.finishWriting()
      var received: [UInt8] = []
      for try await chunk in stream.bytes { received += chunk }
      return received
    }
    #expect(received == bytes)
    try await echo
  }

  @Test("leaves time for deadlines beside a loop that never has to wait, and its chunks are as large as their bytes")
  func sharesLane() async throws {
    let broker = Broker(CoreSchemes.all)
    let lane = try Lane("shared")
    defer { lane.stop() }
    try await Self.flood(broker, on: lane)
  }

  private static func flood(_ broker: Broker, on lane: isolated Lane) async throws {
    let flood = try await broker.open("sim://flood", on: lane)
    defer { flood.close() }
    let isOver = Atomic(false)
    lane.poller.timers.after(.milliseconds(1)) { isOver.store(true, ordering: .relaxed) }
    let chunks = flood.bytes.makeAsyncIterator()
    let end = monotonicNanoseconds() + Patience.nanoseconds
    while !isOver.load(ordering: .relaxed), monotonicNanoseconds() < end { _ = try await chunks.next(isolation: lane) }
    let wasInTime = isOver.load(ordering: .relaxed)
    #expect(wasInTime)
    let echo = try await broker.open("sim://echo", on: lane)
    defer { echo.close() }
    try await echo.send([1, 2, 3])
    let chunk = try await echo.bytes.makeAsyncIterator().next(isolation: lane)
    #expect(chunk == [1, 2, 3] && chunk!.capacity < 1024)
  }

  @Test("ends a loop when its task is cancelled")
  func cancelledLoop() async throws {
    let (near, far) = try FarEnd.pair()
    let task = Task {
      try await onLane { lane in
        let stream = try near.stream(on: lane.poller)
        defer { stream.close() }
        for try await chunk in stream.bytes { try await stream.send(chunk) }
      }
    }
    try far.send([1])
    #expect(try await onOwnThread { try far.receive(exactly: 1) } == [1])
    task.cancel()
    await #expect(throws: CancellationError.self) { try await task.value }
    #expect(try await onOwnThread { try far.receiveToEnd() } == [])
  }

  @Test("sends the bytes of each call together, though several tasks of the lane send at a time")
  func manySenders() async throws {
    let (near, far) = try FarEnd.pair()
    let (senders, size) = (8, 300_000)
    async let received = onOwnThread { try far.receive(exactly: senders * size) }
    let lane = try Lane("senders")
    let stream = try await onLane(lane) { OnLane(value: try near.stream(on: $0.poller)) }
    try await withThrowingTaskGroup(of: Void.self) { group in
      for sender in 0..<senders {
        group.addTask {
          try await onLane(lane) { _ in try await stream.value.send([UInt8](repeating: UInt8(sender), count: size)) }
        }
      }
      try await group.waitForAll()
    }
    let bytes = try await received
    let pieces = (0..<senders).map { Set(bytes[$0 * size..<($0 + 1) * size]) }
    #expect(pieces.allSatisfy { $0.count == 1 } && Set(pieces).count == senders)
    await onLane(lane) { _ in stream.value.close() }
    lane.stop()
  }

  @Test("gives a loop the bytes that arrived before the stream broke")
  func brokenWithBytes() async throws {
    try await onLane { lane in
      let stream = ScriptedStream()
      let chunks = stream.bytes.makeAsyncIterator()
      lane.poller.timers.after(.zero) {
        stream.willRead(.moved(3))
        stream.delegate?.stream(stream, handle: .errorOccurred(SystemError("read", ECONNRESET)))
      }
      let first = try await chunks.next(isolation: lane)
      #expect(first == ScriptedStream.pattern(0..<3))
      do {
        _ = try await chunks.next(isolation: lane)
        Issue.record("it has no error")
      } catch {
        #expect(error as? SystemError == SystemError("read", ECONNRESET))
      }
      stream.close()
    }
  }

  // The compiler refuses such code in Swift 6 mode. In Swift 5 mode it takes the top level of a main.swift.
  @Test("opens no stream for code off the lane, and names the rule", arguments: [false, true])
  func offLane(isMain: Bool) async throws {
    try await onLane("x") { lane in
      do {
        let caller: (any Actor)? = isMain ? MainActor.shared : nil
        try await Broker(Schemes.standard).open("sim://echo", on: lane, caller: caller).close()
        Issue.record("it opened")
      } catch let error as OffLaneError {
        #expect(error.lane == "x" && "\(error)".hasPrefix("open(_:on:) was called outside of lane 'x'"))
      }
    }
  }

  @Test(
    "ends a loop, and fails a send, when other code closes the stream", arguments: [true, false])
  func closedUnderIt(isLoop: Bool) async throws {
    let (near, far) = try FarEnd.pair()
    let chunks = try await onLane { lane in
      let stream = try near.stream(on: lane.poller)
      lane.poller.timers.after(.milliseconds(20)) { stream.close() }
      var chunks = 0
      if isLoop {
        for try await _ in stream.bytes { chunks += 1 }
      } else {
        // The far end does not read, so the call waits for space.
        // Not in a closure of #expect, which would run off the lane.
        do {
          try await stream.send([UInt8](repeating: 0, count: 64 << 20))
          Issue.record("it was sent")
        } catch {
          #expect(error as? SystemError == SystemError("write", EPIPE))
        }
      }
      return chunks
    }
    #expect(chunks == 0)
    far.close()
  }
}

/// Fails after 20 ms, and reports the timeout it was given.
private struct SlowSteps: Connector {
  static let grammar = SchemeGrammar("slow", example: "slow:///x", authority: .none, path: .file)

  init() {}
  init(_ url: EndpointURL) {}

  func longestOpening(connectTimeout: Duration) -> Duration? { connectTimeout }

  func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    poller.timers.after(.milliseconds(20)) {
      done(.failure(OpenFailure("open", nil, advice: "given \(request.connectTimeout)")))
    }
    return CompletedOpening()
  }
}
