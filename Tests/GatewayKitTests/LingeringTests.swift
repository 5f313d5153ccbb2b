// Connections past their session: the tail arrives, and nobody stays for good.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A lingering close", .timeLimit(.minutes(1)))
struct LingeringTests {
  private let clock = ManualClock()
  private let poller: Poller
  private let lingering: Lingering

  init() throws {
    poller = try Poller(clock: clock.clock) { _ in }
    lingering = Lingering(on: poller)
  }

  private func tell(_ stream: ScriptedStream, _ event: ByteStreamEvent) {
    stream.delegate?.stream(stream, handle: event)
  }

  private func pass(_ time: Duration) {
    clock.advance(by: time)
    poller.timers.fireDue()
  }

  @Test("finishes writing, drops what still comes, and closes at the other side's end")
  func inOrder() {
    let stream = ScriptedStream(reads: [.moved(100_000), .blocked(until: .readable), .ended])
    lingering.close(stream, otherSideFinished: false)
    #expect(stream.finishedWriting && !stream.isClosed && stream.readerWaits == .readable)
    for _ in 0..<20 where !stream.isClosed { tell(stream, .hasBytesAvailable) }
    #expect(stream.isClosed)
  }

  @Test("reads no more than it may of one that sends without end")
  func endless() {
    let stream = ScriptedStream(reads: [.moved(10 << 20)])
    lingering.close(stream, otherSideFinished: false, readingAtMost: Lingering.mostBeforeSession)
    var reads = 0
    while !stream.isClosed, reads < 1000 {
      tell(stream, .hasBytesAvailable)
      reads += 1
    }
    #expect(stream.isClosed && reads == (256 << 10) / 16384)
    // One that had a session is read as long as its time is.
    let other = ScriptedStream(reads: [.moved(10 << 20)])
    lingering.close(other, otherSideFinished: false)
    for _ in 0..<600 { tell(other, .hasBytesAvailable) }
    #expect(!other.isClosed)
  }

  @Test("closes at once when the other side has finished, or can't be told")
  func atOnce() {
    let finished = ScriptedStream()
    lingering.close(finished, otherSideFinished: true)
    let device = ScriptedStream()
    device.canHalfClose = false
    lingering.close(device, otherSideFinished: false)
    #expect(finished.isClosed && device.isClosed && !device.finishedWriting)
  }

  @Test("waits for the other side of a closing handshake, though nothing else could come back")
  func handshake() {
    let stream = ScriptedStream(reads: [.moved(10), .blocked(until: .readable), .ended])
    stream.canHalfClose = false
    stream.hasClosingHandshake = true
    lingering.close(stream, otherSideFinished: false)
    #expect(stream.finishedWriting && !stream.isClosed && stream.readerWaits == .readable)
    for _ in 0..<5 where !stream.isClosed { tell(stream, .hasBytesAvailable) }
    #expect(stream.isClosed)
  }

  @Test("says the stream's own farewell, and closes when it is out", arguments: [true, false])
  func farewell(otherSideFinished: Bool) {
    let stream = ScriptedStream(reads: [.ended])
    stream.saysFarewell = true
    lingering.close(stream, otherSideFinished: otherSideFinished)
    if !otherSideFinished { tell(stream, .hasBytesAvailable) }
    #expect(stream.finishedWriting && !stream.isClosed && stream.writerWaits == .writable)
    stream.holdsUnit = false
    tell(stream, .hasSpaceAvailable)
    #expect(stream.isClosed)
  }

  @Test(
    "closes when the stream breaks",
    arguments: [ByteStreamEvent.errorOccurred(SystemError("read", 104)), .endEncountered, .hasBytesAvailable])
  func breaks(event: ByteStreamEvent) {
    let stream = ScriptedStream(reads: [.failed(SystemError("read", 104))])
    lingering.close(stream, otherSideFinished: false)
    tell(stream, event)
    #expect(stream.isClosed)
  }

  @Test("breaks off when the other side has acknowledged all, or half a minute nothing", arguments: [true, false])
  func breakOff(isStuck: Bool) {
    let stream = ScriptedStream(reads: [.moved(10)])
    stream.unacknowledged = 10
    stream.holdsUnit = true
    lingering.breakOff(stream)
    tell(stream, .hasBytesAvailable)  // asked for before
    stream.holdsUnit = false
    for left in [9, 9, 5, 3] {
      pass(.milliseconds(320))
      stream.unacknowledged = left
      #expect(!stream.isClosed && stream.readerWaits == [])
    }
    if isStuck {
      for _ in 0..<90 { pass(.milliseconds(320)) }
      #expect(!stream.isClosed)
      for _ in 0..<10 { pass(.milliseconds(320)) }
    } else {
      stream.unacknowledged = 0
      pass(.milliseconds(320))
    }
    #expect(stream.isAborted && !stream.finishedWriting)
  }

  @Test("waits for two seconds of silence, and half a minute whatever comes")
  func longest() {
    let silent = ScriptedStream()
    lingering.close(silent, otherSideFinished: false)
    pass(.milliseconds(1999))
    #expect(!silent.isClosed)
    pass(.milliseconds(2))
    #expect(silent.isClosed)

    let stream = ScriptedStream(reads: Array(repeating: .moved(10), count: 100))
    lingering.close(stream, otherSideFinished: false)
    for _ in 0..<29 {
      tell(stream, .hasBytesAvailable)
      pass(.milliseconds(1000))
    }
    #expect(!stream.isClosed)
    tell(stream, .hasBytesAvailable)
    pass(.milliseconds(2001))
    #expect(stream.isClosed)
  }

  @Test("waits until a user has read what closing would destroy, and half a minute for one who does not read")
  func unread() {
    let reader = ScriptedStream()
    reader.canHalfClose = false
    reader.unread = 0  // the first time it may be untrue
    lingering.close(reader, otherSideFinished: false)
    reader.unread = 4000
    for left in stride(from: 4000, to: 0, by: -10) {
      reader.unread = left
      pass(.milliseconds(500))
      #expect(!reader.isClosed)
    }
    reader.unread = 0
    pass(.milliseconds(320))
    #expect(!reader.isClosed)
    pass(.milliseconds(20))
    #expect(reader.isClosed)

    let stuck = ScriptedStream()
    stuck.unread = 1
    lingering.close(stuck, otherSideFinished: true)
    for _ in 0..<1450 { pass(.milliseconds(20)) }
    #expect(!stuck.isClosed)
    for _ in 0..<100 { pass(.milliseconds(20)) }
    #expect(stuck.isClosed)
  }

  @Test("drops what a user says who is to read the rest, and closes as soon as he has gone")
  func readerLeaves() {
    let stream = ScriptedStream(reads: [.moved(10), .ended])
    stream.unread = 100
    lingering.close(stream, otherSideFinished: false)
    tell(stream, .hasBytesAvailable)
    #expect(!stream.isClosed && stream.readerWaits == .readable)
    tell(stream, .hasBytesAvailable)
    #expect(stream.isClosed)
  }

  @Test("waits longer while its tail makes progress, half a minute without any, and no more once it is out")
  func slowTail() {
    let stream = ScriptedStream()
    stream.unacknowledged = 1000
    lingering.close(stream, otherSideFinished: false)
    for left in [900, 500, 1] {
      pass(.milliseconds(1999))
      stream.unacknowledged = left
      pass(.milliseconds(2))
      #expect(!stream.isClosed)
    }
    for _ in 0..<14 { pass(.milliseconds(2001)) }
    #expect(!stream.isClosed, "a slow reader acknowledges in large steps")
    pass(.milliseconds(2001))
    #expect(stream.isClosed, "nothing more was acknowledged")

    let taken = ScriptedStream()
    taken.unacknowledged = 1
    lingering.close(taken, otherSideFinished: false)
    taken.unacknowledged = 0
    pass(.milliseconds(2001))
    #expect(taken.isClosed)
  }

  @Test("is for 64 at a time; those beyond close at once, and places are free again")
  func most() {
    let streams = (0..<65).map { _ in ScriptedStream(reads: [.ended]) }
    for stream in streams { lingering.close(stream, otherSideFinished: false) }
    #expect(streams.count(where: \.isClosed) == 1 && streams[64].isClosed)
    tell(streams[0], .hasBytesAvailable)
    let late = ScriptedStream()
    lingering.close(late, otherSideFinished: false)
    #expect(!late.isClosed)
    lingering.closeAll()
    #expect(late.isClosed && streams.allSatisfy(\.isClosed))
  }

  @Test("keeps a stream until its last unit is out", arguments: [true, false])
  func heldUnit(canHalfClose: Bool) throws {
    let wire = ScriptedStream(writes: [.moved(1), .blocked(until: .writable)])
    wire.canHalfClose = canHalfClose
    let stream = FramingStream(over: wire)
    _ = try stream.write([1, 2, 3])
    lingering.close(stream, otherSideFinished: false)
    #expect(!wire.finishedWriting && !wire.isClosed)
    wire.willWrite(.moved(10))
    tell(wire, .hasSpaceAvailable)
    #expect(wire.written == [0, 3, 1, 2, 3])
    #expect(wire.finishedWriting == canHalfClose && wire.isClosed == !canHalfClose && wire.writerWaits == [])
    lingering.closeAll()
  }

  @Test("says when all are gone, at once if there are none", arguments: [true, false])
  func empty(endsInTime: Bool) {
    var isEmpty = false
    lingering.empty(within: .seconds(1)) { isEmpty = true }
    #expect(isEmpty)
    isEmpty = false
    let streams = (0..<3).map { _ in ScriptedStream(reads: [.ended]) }
    for stream in streams { lingering.close(stream, otherSideFinished: false) }
    lingering.empty(within: .seconds(1)) { isEmpty = true }
    if endsInTime {
      for stream in streams {
        #expect(!isEmpty)
        tell(stream, .hasBytesAvailable)
      }
    } else {
      pass(.milliseconds(999))
      #expect(!isEmpty)
      pass(.milliseconds(2))
    }
    #expect(isEmpty && streams.allSatisfy(\.isClosed))
  }

  @Test("lets a reset of unread input destroy nothing of what was written")
  func tail() throws {
    let poller = try Poller { _ in }
    let lingering = Lingering(on: poller)
    let (ours, theirs) = try FarEnd.tcpPair()
    let stream = try ours.stream(on: poller, isTCP: true)
    try theirs.send([UInt8](repeating: 1, count: 20_000))  // nobody reads this
    var sent = 0
    while sent < 200_000, case .moved(let count) = try stream.write([UInt8](repeating: 7, count: 4096)) {
      sent += count
    }
    lingering.close(stream, otherSideFinished: false)
    var heard = 0
    var isOpen = true
    let limit = monotonicNanoseconds() + 2_000_000_000
    while isOpen, monotonicNanoseconds() < limit {
      _ = poller.turn(waiting: 0)
      let bytes = try theirs.receive()
      heard += bytes.count
      isOpen = !bytes.isEmpty
    }
    #expect(heard == sent && !isOpen)
    theirs.close()
    while !stream.isClosed, monotonicNanoseconds() < limit { _ = poller.turn(waiting: 10) }
    #expect(stream.isClosed)
  }
}
