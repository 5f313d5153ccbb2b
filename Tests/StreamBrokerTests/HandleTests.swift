// The calls of a handle, from many tasks: over socket pairs, where the kernel plays its part, and over scripted
// streams, where the test does.

import ByteStreams
import Dispatch
import Glibc
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBrokerCore

/// How long `body` takes, in nanoseconds.
func time(_ body: () async throws -> Void) async rethrows -> UInt64 {
  let began = monotonicNanoseconds()
  try await body()
  return monotonicNanoseconds() - began
}

/// Ten times the 50 ms that a cancelled call may take.
let soon: UInt64 = 500_000_000

extension Array where Element == UInt8 {
  init(_ text: String) { self = Array(text.utf8) }
}

@Suite("A handle reads", .timeLimit(.minutes(5)))
struct HandleReadTests {
  @Test("what has arrived, up to a number of bytes, and nothing at the end")
  func some() async throws {
    let (stream, far) = try await connectedPair()
    try far.send([1, 2, 3, 4, 5])
    #expect(try await stream.read(upTo: 1) == [1])
    var rest: [UInt8] = []
    while rest.count < 4 { rest += try await stream.read(upTo: 3) }
    #expect(rest == [2, 3, 4, 5])
    far.close()
    #expect(try await stream.read().isEmpty)
    #expect(try await stream.read().isEmpty)
    #expect(try await stream.read(upTo: 0).isEmpty)
  }

  @Test("within a time, and loses no byte when the time is over")
  func deadline() async throws {
    let (stream, far) = try await connectedPair()
    let took = await time {
      let error = await #expect(throws: SystemError.self) { try await stream.read(within: .milliseconds(30)) }
      #expect(error?.errno == ETIMEDOUT)
    }
    #expect(took >= 30_000_000 && took < 30_000_000 + soon)
    try far.send([7])
    #expect(try await stream.read(within: .seconds(10)) == [7])
    // A shorter deadline than one that was set before and is not over.
    async let first = stream.read(within: .seconds(20))
    try far.send([8])
    #expect(try await first == [8])
    let error = await #expect(throws: SystemError.self) { try await stream.read(within: .milliseconds(10)) }
    #expect(error?.errno == ETIMEDOUT)
  }

  @Test("until a delimiter, wherever the bytes are cut, and keeps a line that is not complete")
  func delimiter() async throws {
    let (stream, far) = try await connectedPair()
    try far.send([UInt8]("a;;b;"))
    #expect(try await stream.read(until: [UInt8](";;")) == [UInt8]("a;;"))
    let error = await #expect(throws: SystemError.self) {
      try await stream.read(until: [UInt8](";;"), within: .milliseconds(10))
    }
    #expect(error?.errno == ETIMEDOUT)
    async let next = stream.read(until: [UInt8](";;"))
    try far.send([UInt8](";c"))
    #expect(try await next == [UInt8]("b;;"))
    try far.send([UInt8]("defgh"))
    #expect(try await stream.read(until: [UInt8](";"), upTo: 4) == [UInt8]("cdef"))
    far.close()
    #expect(try await stream.read(until: [UInt8](";")) == [UInt8]("gh"))
    #expect(try await stream.read(until: [UInt8](";")).isEmpty)
  }

  @Test("lines with any line end, the last one without")
  func lines() async throws {
    let (stream, far) = try await connectedPair()
    try far.send([UInt8]("one\ntwo\r\n\nthr") + [0xFF] + [UInt8]("e"))
    far.close()
    var lines: [String] = []
    for try await line in stream.lines { lines.append(line) }
    #expect(lines == ["one", "two", "", "thr\u{FFFD}e"])
  }

  @Test("chunks until the end, complete and in order")
  func chunks() async throws {
    var random = SeededRandom()
    let sent = random.bytes(3_000_000)
    let (stream, far) = try await connectedPair()
    async let sending: Void = onOwnThread {
      try far.send(sent)
      far.close()
    }
    var received: [UInt8] = []
    for try await chunk in stream.bytes {
      #expect(!chunk.isEmpty && chunk.count <= 65_536)
      received += chunk
    }
    try await sending
    #expect(received == sent, "seed \(random.seed)")
  }

  @Test("for many tasks at once: each byte goes to one of them, and those that wait are served in order")
  func manyReaders() async throws {
    let (stream, far) = try await connectedPair()
    let total = 200_000
    async let sending: Void = onOwnThread {
      try far.send((0..<total).map { UInt8(truncatingIfNeeded: $0) })
      far.close()
    }
    let counts = try await withThrowingTaskGroup(of: [Int].self) { group in
      for task in 0..<20 {
        group.addTask {
          var counts = [Int](repeating: 0, count: 256)
          while true {
            // Some give up now and then, which must lose nothing.
            do {
              let bytes = try await stream.read(upTo: 97, within: task % 3 == 0 ? .microseconds(50) : nil)
              if bytes.isEmpty { return counts }
              for byte in bytes { counts[Int(byte)] += 1 }
            } catch let error as SystemError where error.errno == ETIMEDOUT {}
          }
        }
      }
      return try await group.reduce([Int](repeating: 0, count: 256)) { zip($0, $1).map(+) }
    }
    try await sending
    let expected = (0..<256).map { total / 256 + ($0 < total % 256 ? 1 : 0) }
    #expect(counts == expected)
  }

  @Test("for the tasks that wait in the order of their calls")
  func queued() async throws {
    let (stream, far) = try await connectedPair()
    let readers = (0..<10).map { _ in Task.immediate { try await stream.read(upTo: 1) } }
    try far.send(0..<10)
    for (number, reader) in readers.enumerated() { #expect(try await reader.value == [UInt8(number)]) }
  }

  @Test("until its task is cancelled, and the next read gets the bytes", arguments: 0..<20)
  func cancelled(round: Int) async throws {
    let (stream, far) = try await connectedPair()
    let waiting = Task { try await stream.read() }
    let queued = Task { try await stream.read(until: [10]) }
    if round % 2 == 0 { await Task.yield() }
    let took = await time {
      queued.cancel()
      waiting.cancel()
      await #expect(throws: CancellationError.self) { try await waiting.value }
      await #expect(throws: CancellationError.self) { try await queued.value }
    }
    #expect(took < soon)
    try far.send([9])
    #expect(try await stream.read() == [9])
  }

  @Test("for tasks that are cancelled at any moment, and every byte goes to one that is not")
  func cancelledOften() async throws {
    let (stream, far) = try await connectedPair()
    let sent = (0..<20_000).map { UInt8(truncatingIfNeeded: $0 / 10) }
    async let sending: Void = onOwnThread {
      for start in stride(from: 0, to: sent.count, by: 20) { try far.send(sent[start..<start + 20]) }
    }
    var received: [UInt8] = []
    var round = 0
    var random = SeededRandom()
    while received.count < sent.count {
      round += 1
      let task = Task { try await stream.read(upTo: 50) }
      for _ in 0..<Int.random(in: 0...3, using: &random) { await Task.yield() }
      if round % 4 != 0 { task.cancel() }
      if let bytes = try? await task.value { received += bytes }
    }
    try await sending
    #expect(received == sent)
  }

  @Test("what arrived before the stream broke, and then the error, each time")
  func broken() async throws {
    let (stream, kernel) = try await scripted { ScriptedStream(reads: [.moved(200_000)]) }
    // The handle reads ahead, up to its limit; then the connection breaks.
    #expect(await kernel.reaches { $0.readerWaits.isEmpty && $0.readCalls > 0 })
    await kernel.ask { $0.delegate?.stream($0, handle: .errorOccurred(SystemError("read", ECONNRESET))) }
    var received: [UInt8] = []
    let error = await #expect(throws: SystemError.self) {
      while true { received += try await stream.read() }
    }
    #expect(received == ScriptedStream.pattern(0..<200_000))
    #expect(error == SystemError("read", ECONNRESET))
    await #expect(throws: SystemError("read", ECONNRESET)) { try await stream.read() }
    await #expect(throws: SystemError("read", ECONNRESET)) { try await stream.write([1]) }
    #expect(await kernel.ask { $0.isClosed } && stream.status == .closed)
  }

  @Test("what arrived before a write failed")
  func brokenWriting() async throws {
    let (stream, kernel) = try await scripted {
      ScriptedStream(reads: [.blocked(until: .readable)], writes: [.failed(SystemError("write", EPIPE))])
    }
    await kernel.ask { $0.willRead(.moved(100_000)) }
    await #expect(throws: SystemError("write", EPIPE)) { try await stream.write([1]) }
    var received: [UInt8] = []
    await #expect(throws: SystemError("write", EPIPE)) {
      while true { received += try await stream.read() }
    }
    #expect(received == ScriptedStream.pattern(0..<100_000))
  }

  @Test("no more than its limit ahead, and goes on when a task has taken half of it")
  func limit() async throws {
    let (stream, kernel) = try await scripted { ScriptedStream(reads: [.moved(200_000)]) }
    #expect(await kernel.reaches { $0.readerWaits.isEmpty && $0.readCalls > 0 })
    var received: [UInt8] = []
    while received.count < 200_000 { received += try await stream.read(upTo: 1000) }
    #expect(received == ScriptedStream.pattern(0..<200_000))
  }

  @Test("units of any size, even while a line is under way")
  func largeUnits() async throws {
    let (stream, kernel) = try await scripted {
      let stream = ScriptedStream(reads: [.bytes([1, 2, 3])])
      stream.largestUnit = 65_535
      return stream
    }
    async let line = stream.read(until: [10])
    #expect(await kernel.reaches { $0.readCalls > 0 })
    await kernel.ask {
      $0.willRead(.bytes([4, 10]))
      $0.delegate?.stream($0, handle: .hasBytesAvailable)
    }
    #expect(try await line == [1, 2, 3, 4, 10])
  }
}

@Suite("A handle cuts packets", .timeLimit(.minutes(5)))
struct HandlePacketTests {
  @Test("at a delimiter, at the longest length and at the end")
  func delimited() async throws {
    let (stream, far) = try await connectedPair()
    try far.send([UInt8]("ab\ncdefgh\ni"))
    far.close()
    var packets: [String] = []
    for try await packet in stream.packets(max: 4, delimiter: [10]) {
      packets.append(String(decoding: packet, as: UTF8.self))
    }
    #expect(packets == ["ab\n", "cdef", "gh\n", "i"])
  }

  @Test("at a silence, while a task waits")
  func silent() async throws {
    let (stream, far) = try await connectedPair()
    var packets = stream.packets(idle: .milliseconds(20)).makeAsyncIterator()
    for round in 0..<5 {
      try far.send([UInt8](repeating: UInt8(round), count: round + 1))
      #expect(try await packets.next() == [UInt8](repeating: UInt8(round), count: round + 1))
    }
  }

  @Test("at a silence that no task waited for")
  func late() async throws {
    let (stream, kernel) = try await scripted { ScriptedStream() }
    var packets = stream.packets(idle: .milliseconds(5)).makeAsyncIterator()
    await kernel.ask {
      $0.willRead(.bytes([1, 2]))
      $0.delegate?.stream($0, handle: .hasBytesAvailable)
    }
    #expect(try await packets.next() == [1, 2])
    await kernel.ask {
      $0.willRead(.bytes([3]))
      $0.delegate?.stream($0, handle: .hasBytesAvailable)
    }
    let now = monotonicNanoseconds()
    await kernel.ask { _ in while monotonicNanoseconds() < now + 6_000_000 {} }
    await kernel.ask {
      $0.willRead(.bytes([4, 5]))
      $0.delegate?.stream($0, handle: .hasBytesAvailable)
    }
    #expect(try await packets.next() == [3])
    #expect(try await packets.next() == [4, 5])
  }

  @Test("and other reads with a deadline end in time, without turning the processor in circles")
  func mixed() async throws {
    let (stream, far) = try await connectedPair()
    var packets = stream.packets(idle: .milliseconds(1), delimiter: [10]).makeAsyncIterator()
    try far.send([1, 10])
    #expect(try await packets.next() == [1, 10])
    try far.send([2, 3])
    let before = clock()
    let took = await time {
      _ = await #expect(throws: SystemError.self) { try await stream.read(until: [99], within: .milliseconds(200)) }
    }
    #expect(took >= 200_000_000 && took < 200_000_000 + soon)
    #expect(clock() - before < CLOCKS_PER_SEC / 10)
    #expect(try await packets.next() == [2, 3])
  }

  @Test("a deadline before the silence is kept")
  func deadline() async throws {
    let (stream, far) = try await connectedPair()
    _ = try await stream.cut(by: PacketRule(idle: .seconds(30)))
    try far.send([1])
    let took = await time {
      _ = await #expect(throws: SystemError.self) { try await stream.nextPacket(within: .milliseconds(50)) }
    }
    #expect(took < 50_000_000 + soon)
  }
}

@Suite("A handle writes", .timeLimit(.minutes(5)))
struct HandleWriteTests {
  @Test("everything, whatever the stream takes at once, and waits while it is full")
  func full() async throws {
    var random = SeededRandom()
    let bytes = random.bytes(2_000_000)
    let (stream, far) = try await connectedPair()
    async let received = onOwnThread { try far.receive(exactly: bytes.count) }
    try await stream.write(bytes)
    #expect(try await received == bytes)
    try await stream.write([])
  }

  @Test("the bytes of each call together, in the order of the calls, for many tasks")
  func manyWriters() async throws {
    let (stream, far) = try await connectedPair()
    let (writers, rounds, size) = (20, 30, 3000)
    async let received = onOwnThread { try far.receive(exactly: writers * rounds * size) }
    try await withThrowingTaskGroup(of: Void.self) { group in
      for writer in 0..<writers {
        group.addTask {
          for round in 0..<rounds {
            try await stream.write([UInt8(writer), UInt8(round)] + [UInt8](repeating: UInt8(writer), count: size - 2))
          }
        }
      }
      try await group.waitForAll()
    }
    let bytes = try await received
    var next = [Int](repeating: 0, count: writers)
    for call in 0..<writers * rounds {
      let piece = bytes[call * size..<(call + 1) * size]
      let writer = piece[piece.startIndex]
      #expect(Int(piece[piece.startIndex + 1]) == next[Int(writer)])
      next[Int(writer)] += 1
      #expect(piece.dropFirst(2).allSatisfy { $0 == writer })
    }
  }

  @Test("in the order of the calls, though they wait")
  func queued() async throws {
    let (stream, kernel) = try await scripted { ScriptedStream() }
    let writers = (0..<10).map { number in Task.immediate { try await stream.write([number]) } }
    #expect(await kernel.reaches { $0.writerWaits == .writable })
    await kernel.ask {
      for _ in 0..<10 { $0.willWrite(.moved(1)) }
      $0.delegate?.stream($0, handle: .hasSpaceAvailable)
    }
    for writer in writers { try await writer.value }
    #expect(await kernel.ask { $0.written } == Array(0..<10))
  }

  @Test("within a time: a full stream, and a turn that does not come")
  func deadline() async throws {
    let (stream, kernel) = try await scripted { ScriptedStream(writes: [.moved(1)]) }
    let first = Task { try await stream.write([1, 2, 3]) }
    #expect(await kernel.reaches { $0.written == [1] })
    let took = await time {
      for _ in 0..<2 {
        let error = await #expect(throws: SystemError.self) { try await stream.write([4], within: .milliseconds(20)) }
        #expect(error?.errno == ETIMEDOUT)
      }
    }
    #expect(took < 40_000_000 + 2 * soon)
    first.cancel()
    await #expect(throws: CancellationError.self) { try await first.value }
    let error = await #expect(throws: SystemError.self) { try await stream.write([4], within: .milliseconds(20)) }
    #expect(error == SystemError("write", ETIMEDOUT))
  }

  @Test("within a time, though the stream takes bytes all the time")
  func endless() async throws {
    let endpoint = TestEndpoint { BusyStream(on: $0) }
    let stream = try await testBroker.connect(endpoint.url)
    let bytes = [UInt8](repeating: 0, count: 256 << 20)
    let took = await time {
      let error = await #expect(throws: SystemError.self) { try await stream.write(bytes, within: .milliseconds(50)) }
      #expect(error == SystemError("write", ETIMEDOUT))
    }
    #expect(took < 50_000_000 + soon)
  }

  @Test("until its task is cancelled, at any moment, and the next write goes on", arguments: 0..<50)
  func cancelled(round: Int) async throws {
    let (stream, kernel) = try await scripted { ScriptedStream() }
    let task = Task { try await stream.write([1, 2, 3]) }
    for _ in 0..<round % 5 { await Task.yield() }
    let took = await time {
      task.cancel()
      await #expect(throws: CancellationError.self) { try await task.value }
    }
    #expect(took < soon)
    await kernel.ask { $0.willWrite(.moved(2)) }
    try await stream.write([8, 9])
    #expect(await kernel.ask { $0.written } == [8, 9])
  }

  @Test("and flushes: waits until a TCP peer has acknowledged everything")
  func flushTCP() async throws {
    let listener = try LoopbackListener()
    let stream = try await testBroker.connect("tcp://\(listener.address)")
    let far = try await onOwnThread { try listener.accept() }
    let bytes = [UInt8](repeating: 7, count: 100_000)
    async let received = onOwnThread { try far.receive(exactly: bytes.count) }
    try await stream.write(bytes)
    try await stream.flush()
    #expect(try await received == bytes)
    try await stream.flush()
  }

  @Test("and flushes: waits for bytes on their way, for a held unit, and for a second proof that all is read")
  func flushScripted() async throws {
    let (stream, kernel) = try await scripted { ScriptedStream(takesAll: true) }
    try await stream.write([1])
    for state in 0..<3 {
      await kernel.ask {
        switch state {
        case 0: $0.undelivered = .onItsWay(5)
        case 1: $0.hasPendingOutput = true
        default: $0.undelivered = .lostAtClose(3)
        }
      }
      let error = await #expect(throws: SystemError.self) { try await stream.flush(within: .milliseconds(20)) }
      #expect(error == SystemError("flush", ETIMEDOUT))
      let task = Task { try await stream.flush() }
      await Task.yield()
      task.cancel()
      await #expect(throws: CancellationError.self) { try await task.value }
      async let flushed: Void = stream.flush()
      await kernel.ask {
        $0.undelivered = state == 2 ? .lostAtClose(0) : .none
        $0.hasPendingOutput = false
        if state == 1 { $0.delegate?.stream($0, handle: .hasSpaceAvailable) }
      }
      // Without the event of case 1, if the flush comes only now.
      try await flushed
    }
  }

  @Test("and flushes: looks again before it believes that all is read")
  func flushTwice() async throws {
    let (stream, kernel) = try await scripted { ScriptedStream(takesAll: true) }
    await kernel.ask { $0.undelivered = .lostAtClose(0) }
    try await stream.write([1])
    #expect(try await time { try await stream.flush() } >= 20_000_000)
  }

  @Test("and flushes: bytes wait in a pty for a program, and stay there when the flush is given up")
  func flushPty() async throws {
    let folder = try TemporaryFolder()
    let stream = try await testBroker.connect("pty://\(folder / "modem")")
    try await stream.write([1, 2, 3])
    await #expect(throws: SystemError("flush", ETIMEDOUT)) { try await stream.flush(within: .milliseconds(20)) }
    for _ in 0..<2 {
      let program = try await onOwnThread { try openTerminal(folder / "modem") }
      async let received = onOwnThread { try program.receive(exactly: 3) }
      try await stream.flush()
      #expect(try await received == [1, 2, 3])
      program.close()
      try await stream.write([1, 2, 3])
    }
    #expect(stream.status == .open)
  }

  @Test("and flushes: fails when the peer resets the connection, though nobody reads what it has sent before")
  func flushReset() async throws {
    let listener = try LoopbackListener()
    let stream = try await testBroker.connect("tcp://\(listener.address)")
    let far = try await onOwnThread { try listener.accept() }
    _ = try far.sendUntilFull(atMost: 400_000)
    try await stream.write([UInt8](repeating: 7, count: 100_000))
    let flush = Task { try await stream.flush() }
    far.reset()
    await #expect(throws: SystemError.self) { try await flush.value }
    #expect(try await !stream.read().isEmpty)
  }

  @Test("and flushes: fails when the port is gone, and takes a line that cannot tell for one that has sent all")
  func flushLine() async throws {
    for (error, fails) in [(SystemError("ioctl", EIO), true), (SystemError("ioctl", ENOTTY), false)] {
      let (stream, kernel) = try await scripted {
        let stream = ScriptedStream(takesAll: true)
        let line = ScriptedLine()
        line.unsentFails = error
        stream.serialLine = line
        return stream
      }
      try await stream.write([1])
      let flush = Task { try await stream.flush() }
      #expect(await kernel.reaches { ($0.serialLine as? ScriptedLine)?.asked == 1 })
      await kernel.ask { ($0.serialLine as? ScriptedLine)?.answer() }
      if fails {
        await #expect(throws: error) { try await flush.value }
      } else {
        try await flush.value
      }
    }
  }

  @Test("and ends its output, while reading goes on")
  func halfClose() async throws {
    let (stream, far) = try await connectedPair()
    async let answer: Void = onOwnThread { try far.play(.answerAfterTheEnd) }
    try await stream.write([1, 2, 3])
    try await stream.finishWriting()
    try await stream.finishWriting()
    await #expect(throws: SystemError("write", EPIPE)) { try await stream.write([4]) }
    #expect(try await stream.read(upTo: 10) == [1, 2, 3])
    #expect(try await stream.read().isEmpty)
    try await answer
    #expect(await eventually { stream.status == .closed })  // both directions are over
  }

  @Test("and ends its output after a unit that the stream holds, even if the call is cancelled")
  func heldUnit() async throws {
    let (stream, kernel) = try await scripted {
      let stream = ScriptedStream(takesAll: true)
      stream.hasPendingOutput = true
      return stream
    }
    let task = Task { try await stream.finishWriting() }
    #expect(await kernel.reaches { $0.writerWaits == .writable })
    #expect(await kernel.ask { $0.finishedWriting } == false)
    task.cancel()
    await #expect(throws: CancellationError.self) { try await task.value }
    await #expect(throws: SystemError("write", EPIPE)) { try await stream.write([4]) }
    #expect(await kernel.ask { $0.written.isEmpty }, "written after the end")
    await kernel.ask {
      $0.hasPendingOutput = false
      $0.delegate?.stream($0, handle: .hasSpaceAvailable)
    }
    #expect(await kernel.ask { $0.finishedWriting })
  }

  @Test("and ends its output within a time, though the stream holds a unit")
  func heldUnitDeadline() async throws {
    let (stream, kernel) = try await scripted {
      let stream = ScriptedStream(takesAll: true)
      stream.hasPendingOutput = true
      return stream
    }
    await #expect(throws: SystemError("shutdown", ETIMEDOUT)) {
      try await stream.finishWriting(within: .milliseconds(20))
    }
    #expect(await kernel.ask { $0.finishedWriting } == false)
  }
}

@Suite("A handle closes", .timeLimit(.minutes(5)))
struct HandleCloseTests {
  @Test("and ends every call that waits")
  func waitingCalls() async throws {
    for isAborted in [false, true] {
      let (stream, kernel) = try await scripted {
        let stream = ScriptedStream()
        stream.serialLine = ScriptedLine()
        return stream
      }
      let readers = (0..<3).map { _ in Task { try await stream.read() } }
      let writers = (0..<3).map { _ in Task { try await stream.write([1]) } }
      let asker = Task { try await stream.line.set(.dtr, true) }
      #expect(await kernel.reaches { $0.writerWaits == .writable && ($0.serialLine as? ScriptedLine)?.asked == 1 })
      if isAborted { stream.abort() } else { stream.close() }
      for reader in readers { #expect(try await reader.value.isEmpty) }
      for writer in writers { await #expect(throws: SystemError("write", EPIPE)) { try await writer.value } }
      await #expect(throws: SystemError("line", EPIPE)) { try await asker.value }
      await #expect(throws: SystemError("flush", EPIPE)) { try await stream.flush() }
      await #expect(throws: SystemError.self) { try await stream.finishWriting() }
      await #expect(throws: SystemError("line", EPIPE)) { try await stream.line.purge(.both) }
      #expect(try await stream.read().isEmpty && stream.status == .closed)
      stream.close()
      stream.abort()
    }
  }

  @Test("and delivers what was taken, to a peer that reads later")
  func delivers() async throws {
    var random = SeededRandom()
    let bytes = random.bytes(3_000_000)
    let listener = try LoopbackListener()
    let stream = try await testBroker.connect("tcp://\(listener.address)")
    let far = try await onOwnThread { try listener.accept() }
    let writing = Task {
      try await stream.write(bytes)
      stream.close()
    }
    let received = try await onOwnThread { try far.receiveToEnd() }
    try await writing.value
    #expect(received == bytes)
  }

  @Test("and delivers what was taken, though the peer sends all the time and gets no reset for it")
  func unreadInput() async throws {
    let listener = try LoopbackListener()
    let stream = try await testBroker.connect("tcp://\(listener.address)")
    let far = try await onOwnThread { try listener.accept() }
    _ = try far.sendUntilFull(atMost: 400_000)
    try await stream.write([1, 2, 3])
    stream.close()
    #expect(try await onOwnThread { try far.receiveToEnd() } == [1, 2, 3])
    far.close()
  }

  @Test("after a serial port has sent what it holds")
  func serialPort() async throws {
    let (stream, kernel) = try await scripted {
      let stream = ScriptedStream(takesAll: true)
      stream.serialLine = ScriptedLine(unsent: [9, 5, 3, 0])
      return stream
    }
    stream.close()
    let answers = Mutex(0)
    let isClosed = await kernel.reaches { stream in
      if let line = stream.serialLine as? ScriptedLine, line.asked > 0 {
        line.answer()
        answers.withLock { $0 += 1 }
      }
      return stream.isClosed
    }
    #expect(isClosed && answers.withLock { $0 } == 4)
    #expect(await kernel.ask { $0.isAborted } == false)
  }

  @Test("at once when it is aborted: a port's output is dropped, and what close() waits for is given up")
  func abortsPort() async throws {
    for isClosing in [false, true] {
      let (stream, kernel) = try await scripted {
        let stream = ScriptedStream(takesAll: true)
        stream.serialLine = ScriptedLine(unsent: [9])  // it never answers
        return stream
      }
      if isClosing {
        await #expect(throws: SystemError("close", ETIMEDOUT)) { try await stream.close(within: .milliseconds(20)) }
      }
      #expect(await kernel.ask { $0.isClosed } == false)
      let took = await time { stream.abort() }
      #expect(await kernel.reaches { $0.isClosed })
      #expect(took < soon)
      #expect(await kernel.ask { ($0.serialLine as? ScriptedLine)?.purges } == [.output])
    }
  }

  @Test("by a reset when it is aborted")
  func aborts() async throws {
    let listener = try LoopbackListener()
    let stream = try await testBroker.connect("tcp://\(listener.address)")
    let far = try await onOwnThread { try listener.accept() }
    stream.abort()
    let error = await #expect(throws: SystemError.self) { try await onOwnThread { try far.receiveToEnd() } }
    #expect(error?.errno == ECONNRESET)
  }

  @Test("when it is released, and keeps nothing", arguments: [0, 1, 2, 3])
  func released(how: Int) async throws {
    try await expectNoDescriptorLeak {
      weak var kept: StreamObserver?
      do {
        let observer = StreamObserver()
        kept = observer
        let (stream, far) = try await connectedPair(observer: observer)
        try await stream.write([1, 2])
        switch how {
        case 0: break
        case 1: stream.close()
        case 2: stream.abort()
        default: break
        }
        // Unix sockets have no reset, which would destroy them.
        let received = try await onOwnThread { try far.receive(exactly: 2) }
        #expect(received == [1, 2])
        far.close()
        if how == 3 { #expect(try await stream.read().isEmpty) }
      }
      let isReleased = await eventually { [weak kept] in kept == nil }
      #expect(isReleased)
    }
  }
}

@Suite("The line of a handle", .timeLimit(.minutes(5)))
struct HandleLineTests {
  /// A handle over a scripted line.
  private func lined() async throws -> (StreamHandle, OnHandleLane<ScriptedStream>) {
    try await scripted {
      let stream = ScriptedStream(takesAll: true)
      stream.serialLine = ScriptedLine(unsent: [])
      return stream
    }
  }

  /// Answers the line's calls until `task` is over.
  private func answer<Value: Sendable>(
    _ kernel: OnHandleLane<ScriptedStream>, until task: Task<Value, any Error>
  ) async throws -> Value {
    let isOver = Atomic<Bool>(false)
    async let value = {
      defer { isOver.store(true, ordering: .relaxed) }
      return try await task.value
    }()
    while !isOver.load(ordering: .relaxed) { await kernel.ask { ($0.serialLine as? ScriptedLine)?.answer() } }
    return try await value
  }

  @Test("is asked in order, and reports what is in force")
  func calls() async throws {
    let (stream, kernel) = try await lined()
    let settings = LineSettings(bitsPerSecond: 115_200)
    let task = Task {
      #expect(try await stream.line.settings == LineSettings())
      #expect(try await stream.line.apply(settings) == settings)
      #expect(try await stream.line.settings == settings)
      try await stream.line.set(.dtr, true)
      try await stream.line.set(.rts, false)
      try await stream.line.sendBreak(.milliseconds(1))
      try await stream.line.purge(.input)
    }
    try await answer(kernel, until: task)
    await kernel.ask {
      let line = $0.serialLine as? ScriptedLine
      #expect(line?.applied == [settings] && line?.outputs.map(\.isOn) == [true, false])
      #expect(line?.breaks == [true, false] && line?.purges == [.input])
    }
  }

  @Test("changes settings before later calls of other tasks")
  func order() async throws {
    let (stream, kernel) = try await lined()
    let first = Task { _ = try await stream.line.apply(LineSettings(bitsPerSecond: 300)) }
    #expect(await kernel.reaches { ($0.serialLine as? ScriptedLine)?.asked == 1 })
    let second = Task { try await stream.line.set(.dtr, true) }
    let third = Task {
      try await first.value
      try await second.value
    }
    #expect(await kernel.ask { ($0.serialLine as? ScriptedLine)?.outputs.isEmpty } == true)
    try await answer(kernel, until: third)
    #expect(await kernel.ask { ($0.serialLine as? ScriptedLine)?.outputs.count } == 1)
  }

  @Test("changes settings only after it has sent the bytes before")
  func settingsAfterBytes() async throws {
    let (stream, kernel) = try await scripted {
      let stream = ScriptedStream(takesAll: true)
      stream.serialLine = ScriptedLine(unsent: [3, 0])
      return stream
    }
    let task = Task { try await stream.line.apply(LineSettings(bitsPerSecond: 300)) }
    #expect(await kernel.reaches { ($0.serialLine as? ScriptedLine)?.asked == 1 })
    #expect(await kernel.ask { ($0.serialLine as? ScriptedLine)?.applied.isEmpty } == true)
    _ = try await answer(kernel, until: task)
    #expect(await kernel.ask { ($0.serialLine as? ScriptedLine)?.applied.count } == 1)
  }

  @Test("that never answers holds no call longer than its task or its deadline")
  func hangs() async throws {
    let (stream, kernel) = try await lined()
    let task = Task { try await stream.line.condition }
    #expect(await kernel.reaches { ($0.serialLine as? ScriptedLine)?.watcher != nil })
    let queued = Task { try await stream.line.set(.rts, true) }
    let took = await time {
      queued.cancel()
      await #expect(throws: CancellationError.self) { try await queued.value }
      task.cancel()
      await #expect(throws: CancellationError.self) { try await task.value }
    }
    #expect(took < soon)
    await #expect(throws: SystemError("line", ETIMEDOUT)) {
      try await stream.line.purge(.output, within: .milliseconds(20))
    }
    await #expect(throws: SystemError("flush", ETIMEDOUT)) { try await stream.flush(within: .milliseconds(20)) }
    await kernel.ask { ($0.serialLine as? ScriptedLine)?.endWatch() }  // that of the cancelled call
    let condition = Task { try await stream.line.condition }
    #expect(await kernel.reaches { ($0.serialLine as? ScriptedLine)?.watcher != nil })
    await kernel.ask { ($0.serialLine as? ScriptedLine)?.watcher?(.success(LineCondition(inputs: .cts))) }
    #expect(try await condition.value == LineCondition(inputs: .cts))
  }

  @Test("gives its condition to several tasks")
  func conditions() async throws {
    let (stream, kernel) = try await lined()
    let tasks = (0..<3).map { _ in Task { try await stream.line.condition } }
    for _ in tasks {
      #expect(await kernel.reaches { ($0.serialLine as? ScriptedLine)?.watcher != nil })
      await kernel.ask { ($0.serialLine as? ScriptedLine)?.watcher?(.success(LineCondition(inputs: .dsr))) }
    }
    for task in tasks { #expect(try await task.value.inputs == .dsr) }
    #expect(await kernel.ask { ($0.serialLine as? ScriptedLine)?.watcher == nil }, "still watched")
  }

  @Test("is refused where there is none")
  func none() async throws {
    let (stream, far) = try await connectedPair()
    await #expect(throws: SystemError("line", ENOTTY)) { try await stream.line.settings }
    far.close()
  }
}

@Suite("What is known about a handle's device", .timeLimit(.minutes(5)))
struct HandleFactsTests {
  @Test("is known when the stream opens, and later changes are too; an observer gets both")
  func facts() async throws {
    let observer = StreamObserver()
    let (stream, kernel) = try await scripted(observer: observer) {
      let stream = ScriptedStream()
      var facts = DeviceFacts()
      facts.name = "one"
      stream.metadata = StreamMetadata(facts)
      return stream
    }
    #expect(stream.metadata.facts.name == "one")
    await kernel.ask { $0.metadata?.update { $0.name = "two" } }
    #expect(stream.metadata.facts.name == "two")
    stream.close()
    var names: [String?] = []
    for await event in observer.events { if case .facts(let facts) = event { names.append(facts.name) } }
    #expect(names == ["one", "two"])
  }

  @Test("and what an endpoint sends for people reaches an observer, in order")
  func remarks() async throws {
    let observer = StreamObserver()
    let endpoint = TestEndpoint(RemarkingConnector())
    let stream = try await testBroker.connect(endpoint.url, observer: observer)
    #expect(stream.metadata.url == endpoint.url)
    stream.close()
    var lines: [String] = []
    for await event in observer.events { if case .remark(let remark) = event { lines.append(remark.line) } }
    #expect(lines == ["one", "two"])
  }
}

/// Sends messages for people while it opens.
private struct RemarkingConnector: Connector {
  static let grammar = TestConnector.grammar

  init(_ url: EndpointURL) {}
  init() {}

  func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    for line in ["one", "two"] { request.remark(EndpointRemark(line)) }
    done(.success(ScriptedStream()))
    return CompletedOpening()
  }
}

/// Always has space, and takes some microseconds for each KiB.
private final class BusyStream: TransportStream, PollHandler {
  var delegate: (any ByteStreamDelegate)?
  var readerWaits: Readiness = []
  var writerWaits: Readiness = [] { didSet { if !writerWaits.isEmpty { poller.nextRound(self) } } }
  private let poller: Poller

  init(on poller: Poller) { self.poller = poller }

  func read(into run: UnsafeMutableRawBufferPointer) -> Transfer { .blocked(until: .readable) }

  func write(_ run: UnsafeRawBufferPointer) -> Transfer {
    let end = monotonicNanoseconds() + 10_000
    while monotonicNanoseconds() < end {}
    return .moved(min(run.count, 1024))
  }

  func ready(_ events: PollEvents) { if !writerWaits.isEmpty { delegate?.stream(self, handle: .hasSpaceAvailable) } }
  func close() { dismissDelegate() }
}
