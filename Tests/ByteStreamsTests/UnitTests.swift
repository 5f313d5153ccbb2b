// Streams of units, such as TLS and WebSocket: bytes taken but not yet sent, hidden bytes, and who waits for what.

import ByteStreams
import StreamTestKit
import Testing

@Suite("A stream of units", .timeLimit(.minutes(5)))
struct UnitTests {
  @Test("holds one unit that the stream below has not taken, and takes no second one")
  func oneUnit() throws {
    let below = ScriptedStream(writes: [.moved(4)])
    let stream = FramingStream(over: below)
    let recorder = EventRecorder()
    stream.delegate = recorder
    #expect(try stream.write([1, 2, 3, 4, 5]) == .moved(5))  // taken, though only four bytes of it have been written
    #expect(stream.hasPendingOutput && below.written == [0, 5, 1, 2])
    #expect(below.writerWaits == .writable)  // the stream asked for this itself: nothing above it waits
    #expect(try stream.write([6]) == .blocked(until: .writable))
    below.willWrite(.moved(100))
    below.delegate?.stream(below, handle: .hasSpaceAvailable)
    #expect(!stream.hasPendingOutput && below.written == [0, 5, 1, 2, 3, 4, 5])
    #expect(below.writerWaits == [] && recorder.events.isEmpty)
  }

  @Test("reports space only when the held unit is written")
  func heldFirst() throws {
    let below = ScriptedStream(writes: [.moved(1)])
    let stream = FramingStream(over: below)
    let recorder = EventRecorder()
    stream.delegate = recorder
    _ = try stream.write([1])
    stream.writerWaits = .writable
    below.willWrite(.moved(1), .blocked(until: .writable))
    below.delegate?.stream(below, handle: .hasSpaceAvailable)
    #expect(recorder.events.isEmpty && stream.hasPendingOutput)
    below.willWrite(.moved(1))
    below.delegate?.stream(below, handle: .hasSpaceAvailable)
    #expect(recorder.events == [.hasSpaceAvailable])
  }

  @Test("may have to write before it can continue reading")
  func crossedRead() throws {
    let below = ScriptedStream(reads: [.bytes([0, 1, 65, 0, 1, 66])])
    let stream = FramingStream(over: below, acknowledges: true)
    #expect(try stream.read() == .moved(0))  // the unit arrived and is hidden
    #expect(stream.hasBufferedInput)
    #expect(try stream.read() == .moved(0))  // the header; its acknowledgement is held
    #expect(try stream.readSome() == [65])
    #expect(try stream.read() == .blocked(until: .writable))
    below.willWrite(.moved(2), .moved(2))
    #expect(try stream.read() == .moved(0))
    #expect(try stream.readSome() == [66])
    #expect(below.written == [0, 0, 0, 0])
  }

  @Test("is an error when it ends inside a unit")
  func truncated() throws {
    let stream = FramingStream(over: ScriptedStream(reads: [.bytes([0, 2, 65]), .ended]))
    #expect(throws: SystemError.self) { for _ in 0..<9 where try stream.read() != .ended {} }
  }

  @Test(
    "carries everything both ways between relays, and each end only after the last unit",
    arguments: [1, 3, 4096, 65_536], [false, true])
  func relays(capacity: Int, acknowledges: Bool) async throws {
    var random = SeededRandom()
    let length = capacity < 16 ? 4_000 : 500_000
    let (upBytes, downBytes) = (random.bytes(length), random.bytes(length))
    let (left, nearLeft) = try FarEnd.pair()
    let (innerLeft, innerRight) = try FarEnd.pair()
    let (nearRight, right) = try FarEnd.pair()
    async let atRight = onOwnThread {
      let received = try acknowledges ? right.receive(exactly: length) : right.receiveToEnd()
      try right.send(downBytes)
      if acknowledges { _ = try right.receiveToEnd() } else { right.finishWriting() }
      right.close()
      return received
    }
    async let atLeft = onOwnThread {
      try left.send(upBytes)
      guard acknowledges else {
        left.finishWriting()
        return try left.receiveToEnd()
      }
      defer { left.close() }
      return try left.receive(exactly: length)
    }
    try await onLane { lane in
      let poller = lane.poller
      let one = Relay(
        try nearLeft.stream(on: poller),
        FramingStream(over: try innerLeft.stream(on: poller), acknowledges: acknowledges), capacity: capacity,
        on: poller)
      let other = Relay(
        FramingStream(over: try innerRight.stream(on: poller), readAhead: 37, acknowledges: acknowledges),
        try nearRight.stream(on: poller), capacity: capacity, on: poller)
      one.start()
      other.start()
      await one.isOver.wait(on: lane)
      await other.isOver.wait(on: lane)
      #expect(one.fault == nil && other.fault == nil)
    }
    #expect(try await atRight == upBytes, "\(random)")
    #expect(try await atLeft == downBytes, "\(random)")
  }
}
