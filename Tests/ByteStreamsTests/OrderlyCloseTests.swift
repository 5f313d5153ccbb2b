// Connections after their session: the last bytes are delivered, and no connection stays open forever.

import StreamTestKit
import Testing

@testable import ByteStreams

@Suite("An orderly close", .timeLimit(.minutes(5)))
struct OrderlyCloseTests {
  private let clock = ManualClock()
  private let poller: Poller
  private let closing: ClosingStreams

  init() throws {
    poller = try Poller(clock: clock.clock) { _ in }
    closing = ClosingStreams(on: poller)
  }

  private func report(_ stream: ScriptedStream, _ event: ByteStreamEvent) {
    stream.delegate?.stream(stream, handle: event)
  }

  private func pass(_ time: Duration) {
    clock.advance(by: time)
    poller.timers.fireDue()
  }

  @Test("finishes writing, drops further input, and closes at the other side's end")
  func inOrder() {
    let stream = ScriptedStream(reads: [.moved(100_000), .blocked(until: .readable), .ended])
    closing.close(stream, otherSideFinished: false)
    #expect(stream.finishedWriting && !stream.isClosed && stream.readerWaits == .readable)
    for _ in 0..<20 where !stream.isClosed { report(stream, .hasBytesAvailable) }
    #expect(stream.isClosed)
  }

  @Test("reads a limited amount from a peer that sends without end")
  func endless() {
    let stream = ScriptedStream(reads: [.moved(10 << 20)])
    closing.close(stream, otherSideFinished: false, readingAtMost: ClosingStreams.mostBeforeSession)
    var reads = 0
    while !stream.isClosed, reads < 1000 {
      report(stream, .hasBytesAvailable)
      reads += 1
    }
    #expect(stream.isClosed && reads == (256 << 10) / 16384)
    // A stream that had a session is read as long as its time lasts.
    let other = ScriptedStream(reads: [.moved(10 << 20)])
    closing.close(other, otherSideFinished: false)
    for _ in 0..<600 { report(other, .hasBytesAvailable) }
    #expect(!other.isClosed)
  }

  @Test("closes at once when the other side has finished, or when half-close is impossible")
  func atOnce() {
    let finished = ScriptedStream()
    closing.close(finished, otherSideFinished: true)
    let device = ScriptedStream()
    device.closeBehavior.canHalfClose = false
    closing.close(device, otherSideFinished: false)
    #expect(finished.isClosed && device.isClosed && !device.finishedWriting)
  }

  @Test("waits for the other side's closing handshake, though no other bytes could arrive")
  func handshake() {
    let stream = ScriptedStream(reads: [.moved(10), .blocked(until: .readable), .ended])
    stream.closeBehavior.canHalfClose = false
    stream.closeBehavior.hasClosingHandshake = true
    closing.close(stream, otherSideFinished: false)
    #expect(stream.finishedWriting && !stream.isClosed && stream.readerWaits == .readable)
    for _ in 0..<5 where !stream.isClosed { report(stream, .hasBytesAvailable) }
    #expect(stream.isClosed)
  }

  @Test("sends the stream's own close notice, and closes once it is sent", arguments: [true, false])
  func closeNotice(otherSideFinished: Bool) {
    let stream = ScriptedStream(reads: [.ended])
    stream.closeBehavior.sendsCloseNotice = true
    closing.close(stream, otherSideFinished: otherSideFinished)
    if !otherSideFinished { report(stream, .hasBytesAvailable) }
    #expect(stream.finishedWriting && !stream.isClosed && stream.writerWaits == .writable)
    stream.hasPendingOutput = false
    report(stream, .hasSpaceAvailable)
    #expect(stream.isClosed)
  }

  @Test(
    "closes when the stream fails",
    arguments: [ByteStreamEvent.errorOccurred(SystemError("read", 104)), .endEncountered, .hasBytesAvailable])
  func breaks(event: ByteStreamEvent) {
    let stream = ScriptedStream(reads: [.failed(SystemError("read", 104))])
    closing.close(stream, otherSideFinished: false)
    report(stream, event)
    #expect(stream.isClosed)
  }

  @Test("resets once the other side has acknowledged everything, or nothing for 30 s", arguments: [true, false])
  func breakOff(isStuck: Bool) {
    let stream = ScriptedStream(reads: [.moved(10)])
    stream.undelivered = .onItsWay(10)
    stream.hasPendingOutput = true
    closing.breakOff(stream)
    report(stream, .hasBytesAvailable)  // requested before
    stream.hasPendingOutput = false
    for left in [9, 9, 5, 3] {
      pass(.milliseconds(320))
      stream.undelivered = .onItsWay(left)
      #expect(!stream.isClosed && stream.readerWaits == [])
    }
    if isStuck {
      for _ in 0..<90 { pass(.milliseconds(320)) }
      #expect(!stream.isClosed)
      for _ in 0..<10 { pass(.milliseconds(320)) }
    } else {
      stream.undelivered = .onItsWay(0)
      pass(.milliseconds(320))
    }
    #expect(stream.isAborted && !stream.finishedWriting)
  }

  @Test("waits for two seconds of silence, and at most 30 s without progress, whatever arrives")
  func longest() {
    let silent = ScriptedStream()
    closing.close(silent, otherSideFinished: false)
    pass(.milliseconds(1999))
    #expect(!silent.isClosed)
    pass(.milliseconds(2))
    #expect(silent.isClosed)

    let stream = ScriptedStream(reads: Array(repeating: .moved(10), count: 100))
    closing.close(stream, otherSideFinished: false)
    for _ in 0..<29 {
      report(stream, .hasBytesAvailable)
      pass(.milliseconds(1000))
    }
    #expect(!stream.isClosed)
    report(stream, .hasBytesAvailable)
    pass(.milliseconds(2001))
    #expect(stream.isClosed)
  }

  @Test("waits until a user has read what closing would destroy, and at most 30 s for one that does not read")
  func unread() {
    let reader = ScriptedStream()
    reader.closeBehavior.canHalfClose = false
    reader.undelivered = .lostAtClose(0)  // the first value may be wrong
    closing.close(reader, otherSideFinished: false)
    reader.undelivered = .lostAtClose(4000)
    for left in stride(from: 4000, to: 0, by: -10) {
      reader.undelivered = .lostAtClose(left)
      pass(.milliseconds(500))
      #expect(!reader.isClosed)
    }
    reader.undelivered = .lostAtClose(0)
    pass(.milliseconds(320))
    #expect(!reader.isClosed)
    pass(.milliseconds(20))
    #expect(reader.isClosed)

    let stuck = ScriptedStream()
    stuck.closeBehavior.canHalfClose = false
    stuck.undelivered = .lostAtClose(1)
    closing.close(stuck, otherSideFinished: true)
    for _ in 0..<1450 { pass(.milliseconds(20)) }
    #expect(!stuck.isClosed)
    for _ in 0..<100 { pass(.milliseconds(20)) }
    #expect(stuck.isClosed)
  }

  @Test("drops input of a user that is reading the rest, and closes as soon as the user has closed")
  func readerLeaves() {
    let stream = ScriptedStream(reads: [.moved(10), .ended])
    stream.undelivered = .lostAtClose(100)
    closing.close(stream, otherSideFinished: false)
    report(stream, .hasBytesAvailable)
    #expect(!stream.isClosed && stream.readerWaits == .readable)
    report(stream, .hasBytesAvailable)
    #expect(stream.isClosed)
  }

  @Test(
    "waits longer while the last bytes make progress, 30 s without progress, and no longer once they are acknowledged")
  func slowTail() {
    let stream = ScriptedStream()
    stream.undelivered = .onItsWay(1000)
    closing.close(stream, otherSideFinished: false)
    for left in [900, 500, 1] {
      pass(.milliseconds(1999))
      stream.undelivered = .onItsWay(left)
      pass(.milliseconds(2))
      #expect(!stream.isClosed)
    }
    for _ in 0..<14 { pass(.milliseconds(2001)) }
    #expect(!stream.isClosed, "a slow reader acknowledges in large steps")
    pass(.milliseconds(2001))
    #expect(stream.isClosed, "nothing more was acknowledged")

    let taken = ScriptedStream()
    taken.undelivered = .onItsWay(1)
    closing.close(taken, otherSideFinished: false)
    taken.undelivered = .onItsWay(0)
    pass(.milliseconds(2001))
    #expect(taken.isClosed)
  }

  @Test("is for 64 streams at a time; more are closed at once, and a finished one frees its place")
  func most() {
    let streams = (0..<65).map { _ in ScriptedStream(reads: [.ended]) }
    for stream in streams { closing.close(stream, otherSideFinished: false) }
    #expect(streams.count(where: \.isClosed) == 1 && streams[64].isClosed)
    report(streams[0], .hasBytesAvailable)
    let late = ScriptedStream()
    closing.close(late, otherSideFinished: false)
    #expect(!late.isClosed)
    closing.closeAll()
    #expect(late.isClosed && streams.allSatisfy(\.isClosed))
  }

  @Test("keeps a stream until its last unit is sent", arguments: [true, false])
  func heldUnit(canHalfClose: Bool) throws {
    let wire = ScriptedStream(writes: [.moved(1), .blocked(until: .writable)])
    wire.closeBehavior.canHalfClose = canHalfClose
    let stream = FramingStream(over: wire)
    _ = try stream.write([1, 2, 3])
    closing.close(stream, otherSideFinished: false)
    #expect(!wire.finishedWriting && !wire.isClosed)
    wire.willWrite(.moved(10))
    report(wire, .hasSpaceAvailable)
    #expect(wire.written == [0, 3, 1, 2, 3])
    #expect(wire.finishedWriting == canHalfClose && wire.isClosed == !canHalfClose && wire.writerWaits == [])
    closing.closeAll()
  }

  @Test("reports when all streams are closed, at once if there are none", arguments: [true, false])
  func empty(endsInTime: Bool) {
    var isEmpty = false
    closing.empty(within: .seconds(1)) { isEmpty = true }
    #expect(isEmpty)
    isEmpty = false
    let streams = (0..<3).map { _ in ScriptedStream(reads: [.ended]) }
    for stream in streams { closing.close(stream, otherSideFinished: false) }
    closing.empty(within: .seconds(1)) { isEmpty = true }
    if endsInTime {
      for stream in streams {
        #expect(!isEmpty)
        report(stream, .hasBytesAvailable)
      }
    } else {
      pass(.milliseconds(999))
      #expect(!isEmpty)
      pass(.milliseconds(2))
    }
    #expect(isEmpty && streams.allSatisfy(\.isClosed))
  }

  @Test("prevents a reset for unread input from destroying written bytes")
  func tail() throws {
    let poller = try Poller { _ in }
    let closing = ClosingStreams(on: poller)
    let (ours, theirs) = try FarEnd.tcpPair()
    let stream = try ours.stream(on: poller, isTCP: true)
    try theirs.send([UInt8](repeating: 1, count: 20_000))  // never read
    var sent = 0
    while sent < 200_000, case .moved(let count) = try stream.write([UInt8](repeating: 7, count: 4096)) {
      sent += count
    }
    closing.close(stream, otherSideFinished: false)
    var received = 0
    var isOpen = true
    let limit = monotonicNanoseconds() + Patience.nanoseconds
    while isOpen, monotonicNanoseconds() < limit {
      _ = poller.turn(waiting: 0)
      let bytes = try theirs.receive()
      received += bytes.count
      isOpen = !bytes.isEmpty
    }
    #expect(received == sent && !isOpen)
    theirs.close()
    while !stream.isClosed, monotonicNanoseconds() < limit { _ = poller.turn(waiting: 10) }
    #expect(stream.isClosed)
  }

  @Test(
    "drops input of a client that gets no session, and reads no more than the limit", arguments: [true, false])
  func refused(atOnce: Bool) {
    let stream = ScriptedStream(reads: [.moved(100_000), .blocked(until: .readable), .moved(10 << 20)])
    let (dropped, error) = closing.refuse(stream, atOnce: atOnce)
    #expect(dropped == 100_000 && error == nil && stream.isClosed == atOnce)
    guard !atOnce else { return }
    var reads = 0
    while !stream.isClosed, reads < 1000 {
      report(stream, .hasBytesAvailable)
      reads += 1
    }
    #expect(reads == 10, "16 KiB each, of what is left of 256 KiB")
  }

  @Test("of a client that failed meanwhile is over at once")
  func refusedBroken() {
    let stream = ScriptedStream(reads: [.moved(10), .failed(SystemError("read", 104))])
    let (dropped, error) = closing.refuse(stream, atOnce: false)
    #expect(dropped == 10 && error as? SystemError == SystemError("read", 104) && stream.isClosed)
  }

  @Test("keeps a refused user until it closes, and drops its input", arguments: [true, false])
  func user(closes: Bool) {
    let user = ScriptedStream(reads: [.moved(10), .blocked(until: .readable)])
    var hasClosed: Bool?
    let close = OrderlyClose(keeping: user, on: poller, isOpenedAgain: { false }, then: { hasClosed = $0 })
    close.start()
    report(user, .hasBytesAvailable)
    pass(.seconds(600))
    #expect(!user.isClosed && user.readCalls == 1 && hasClosed == nil && user.readerWaits == .readable)
    report(user, closes ? .endEncountered : .errorOccurred(SystemError("read", 5)))
    #expect(user.isClosed && hasClosed == closes)
  }

  @Test("drops no input of a user whose port another program has opened")
  func openedAgain() {
    let user = ScriptedStream(reads: [.moved(10)])
    var close: OrderlyClose?
    close = OrderlyClose(keeping: user, on: poller) {
      close?.forget()
      return true
    } then: { _ in
      Issue.record("it was forgotten")
    }
    close?.start()
    report(user, .hasBytesAvailable)
    #expect(user.isClosed && user.readCalls == 0)
  }

  @Test(
    "returns an endpoint once its 'on-close' bytes are sent, or after the timeout without progress",
    arguments: [true, false])
  func endpointDrain(isTaken: Bool) {
    let endpoint = ScriptedStream(
      reads: [.moved(5)], writes: [.moved(1), .blocked(until: .writable), .moved(1), .blocked(until: .writable)])
    var end: OrderlyClose.End?
    let words = EndpointDrain([1, 2, 3], to: endpoint, timeout: .seconds(5), on: poller)
    let close = OrderlyClose(words, then: { end = $0 })
    close.start()
    report(endpoint, .hasBytesAvailable)
    pass(.seconds(4))
    report(endpoint, .hasSpaceAvailable)
    pass(.seconds(4))
    #expect(end == nil && endpoint.written == [1, 2] && endpoint.readCalls == 1)
    if isTaken {
      endpoint.willWrite(.moved(1))
      report(endpoint, .hasSpaceAvailable)
    } else {
      pass(.seconds(1))
    }
    #expect(end?.unsent == 0 && endpoint.written == (isTaken ? [1, 2, 3] : [1, 2]))
    #expect(!endpoint.isClosed && endpoint.delegate == nil && endpoint.interest == [])
  }
}
