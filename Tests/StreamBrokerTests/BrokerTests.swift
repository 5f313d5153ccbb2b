// From a URL to a stream, and the async face of it.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

@testable import StreamBroker

@Suite("A broker", .timeLimit(.minutes(1)))
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

  @Test("says nothing more after an opening was cancelled")
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

  @Test("does not cut short an opening of several steps, which has the time for connecting")
  func stepped() async throws {
    try await onLane { lane in
      var results: [Result<any ByteStream, OpenFailure>] = []
      let opening = Broker([]).open(SlowSteps(), named: "x", on: lane.poller, timeout: .milliseconds(1)) {
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

  @Test("gives loops what they want: chunks to iterate, and sending that waits for space")
  func asyncFace() async throws {
    var random = SeededRandom()
    let bytes = random.bytes(1_000_000)
    let (near, far) = try FarEnd.pair()
    async let echo: Void = onOwnThread { try far.play(.answerAfterTheEnd) }
    let heard = try await onLane { lane in
      let stream = try near.stream(on: lane.poller)
      defer { stream.close() }
      try await stream.send(bytes)
      stream.finishWriting()
      var heard: [UInt8] = []
      for try await chunk in stream.bytes { heard += chunk }
      return heard
    }
    #expect(heard == bytes)
    try await echo
  }

  @Test("lets a loop be given up by cancelling its task")
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

  @Test(
    "ends a loop, and lets a send fail, when somebody else closes the stream they wait for", arguments: [true, false])
  func closedUnderIt(isLoop: Bool) async throws {
    let (near, far) = try FarEnd.pair()
    let chunks = try await onLane { lane in
      let stream = try near.stream(on: lane.poller)
      lane.poller.timers.after(.milliseconds(20)) { stream.close() }
      var chunks = 0
      if isLoop {
        for try await _ in stream.bytes { chunks += 1 }
      } else {
        // Nobody reads at the far end, so it waits for space.
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

/// Fails after a while, and says what time it was given.
private struct SlowSteps: SteppedConnector {
  static let scheme = "slow"
  static let isLine = false
  var connectPatience = Duration.zero

  init() {}
  init(_ url: EndpointURL) {}

  var otherSteps: Duration { .zero }

  func open(
    on poller: Poller, discardingInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    poller.timers.after(.milliseconds(20)) {
      done(.failure(OpenFailure("open", nil, advice: "given \(connectPatience)")))
    }
    return DoneAtOnce()
  }
}
