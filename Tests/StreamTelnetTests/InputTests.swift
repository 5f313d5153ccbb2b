// What comes in: data, events at their place, answers, faults.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

@testable import StreamTelnet

@Suite("A telnet stream that is read", .timeLimit(.minutes(5)))
struct InputTests {
  @Test("returns early bytes first, and holds them until then")
  func early() throws {
    let rig = try Rig(early: [1, 255, 255] + Wire.nop + [2])
    #expect(rig.stream.hasBufferedInput)
    #expect(try rig.handle([3]) == [1, 255, 2, 3] && !rig.stream.hasBufferedInput)
  }

  @Test("hands out an event only after the data before it, and nothing after it until it is taken")
  func positions() throws {
    let rig = try Rig()
    rig.below.willRead(
      .bytes([1] + Wire.subnegotiation([5, 8]) + [2, 255, 255] + Wire.breakKey + Wire.subnegotiation([12, 3])), .ended)
    #expect(rig.stream.takeEvent() == nil)
    #expect(try rig.stream.readSome() == [1])
    #expect(rig.stream.hasBufferedInput)
    for _ in 0..<3 { #expect(try rig.stream.read() == .blocked(until: [])) }
    #expect(rig.below.readCalls == 1 && rig.recorder.events.isEmpty)
    #expect(rig.stream.takeEvent() == .comPort(.control(8)) && rig.stream.takeEvent() == nil)
    rig.nextRound()
    rig.nextRound()
    #expect(rig.recorder.events == [.hasBytesAvailable])
    #expect(try rig.stream.readSome() == [2, 255])
    #expect(rig.stream.takeEvent() == .breakKey)
    #expect(try rig.stream.readSome() == [])
    #expect(rig.stream.takeEvent() == .comPort(.purge(3)) && !rig.stream.hasBufferedInput)
    #expect(try rig.stream.read() == .ended)
    rig.nextRound()
    #expect(rig.recorder.events.count == 1)  // no read waited for the last two
  }

  @Test("keeps the place of each event among data in runs of any size", arguments: 1...9)
  func positionsInSmallRuns(room: Int) throws {
    let rig = try Rig()
    var wire: [UInt8] = []
    for value in 0..<100 as Range<UInt8> { wire += [value, 255, 255] + Wire.subnegotiation([10, value]) }
    rig.below.willRead(.bytes(wire))
    var (received, events): (Int, [Int]) = (0, [])
    var run = [UInt8](repeating: 0, count: room)
    while case .moved(let count) = try run.withUnsafeMutableBytes({ try rig.stream.read(into: $0) }) {
      received += count
      while let event = rig.stream.takeEvent() {
        #expect(event == .comPort(.lineStateMask(UInt8(events.count))))
        events.append(received)
      }
    }
    #expect(events == (1...100).map { 2 * $0 })
  }

  @Test("tells an observer of each event at once, and does not stop")
  func observer() throws {
    let rig = try Rig(as: .client)
    var events: [TelnetStream.Event] = []
    rig.stream.observer = { events.append($0) }
    let wire = [1] + Wire.subnegotiation([107, 0xB0]) + [2] + Wire.subnegotiation([106, 1]) + [3] + Wire.breakKey
    rig.below.willRead(.bytes(wire))
    #expect(try rig.stream.readSome() == [1, 2, 3])
    #expect(events == [.comPort(.modemState(0xB0)), .comPort(.lineState(1)), .breakKey])
    #expect(rig.stream.takeEvent() == nil)
  }

  @Test("is read to its end after our last byte, past requests that nobody takes any more", arguments: [true, false])
  func requestsAfterTheEnd(isPaused: Bool) throws {
    let rig = try Rig()
    rig.below.willRead(.bytes(Wire.subnegotiation([5, 8])))
    #expect(try rig.stream.readSome() == [])
    if isPaused { #expect(try rig.stream.read() == .blocked(until: [])) }
    rig.below.willRead(.bytes([1] + Wire.breakKey), .bytes(Wire.subnegotiation([5, 9])), .ended)
    let closing = ClosingStreams(on: rig.poller)
    closing.close(rig.stream, otherSideFinished: false)
    #expect(rig.below.finishedWriting)
    for _ in 0..<10 where !rig.below.isClosed {
      rig.nextRound()
      if !rig.stream.readerWaits.isEmpty { rig.report(.hasBytesAvailable) }
    }
    #expect(rig.below.isClosed && !rig.below.isAborted && rig.below.written.isEmpty)
  }

  @Test("reports that the other side is gone only after the data and the end that were read ahead")
  func hangUpAfterReadAhead() throws {
    let rig = try Rig(as: .client)
    rig.stream.observer = { _ in }
    rig.stream.readAhead = .kept
    rig.below.willRead(.bytes([1, 2]), .ended)
    rig.nextRound()
    rig.report(.hasBytesAvailable)
    rig.report(.endEncountered)
    rig.pass(.zero)
    #expect(rig.recorder.events == [.inputEnded])
    #expect(try rig.stream.readSome() == [1, 2])
    rig.pass(.zero)
    #expect(rig.recorder.events == [.inputEnded])
    #expect(try rig.stream.read() == .ended)
    rig.pass(.zero)
    #expect(rig.recorder.events == [.inputEnded, .endEncountered])
    #expect(try rig.stream.read() == .ended)
    rig.report(.endEncountered)
    #expect(rig.recorder.events.count == 3)
  }

  @Test("keeps the latest data that is read ahead, and counts what it drops")
  func latestReadAhead() throws {
    let rig = try Rig(as: .client)
    rig.stream.observer = { _ in }
    rig.stream.readAhead = .latest
    rig.below.willRead(.bytes([UInt8](repeating: 1, count: 1000)), .bytes([UInt8](repeating: 2, count: 64 << 10)))
    rig.nextRound()
    for _ in 0..<10 { rig.report(.hasBytesAvailable) }
    #expect(rig.stream.lostReadAhead == 1000)
    rig.stream.readAhead = .off
    let data = try rig.readAll()
    #expect(data.count == 64 << 10 && data.allSatisfy { $0 == 2 })
  }

  @Test("may be closed by its observer in the middle of a read")
  func closedByObserver() throws {
    let rig = try Rig(as: .client)
    rig.stream.observer = { [stream = rig.stream] _ in stream.close() }
    rig.below.willRead(.bytes([1] + Wire.breakKey + Wire.areYouThere + Wire.breakKey + [2]))
    _ = try rig.stream.read()
    #expect(rig.below.isClosed && rig.below.written.isEmpty)
    #expect(!rig.stream.hasBufferedInput && !rig.stream.hasPendingOutput)
    #expect(try rig.stream.read() == .ended)
  }

  @Test("passes nothing of COM-PORT on before it is agreed upon, nor of other subnegotiations")
  func notAgreed() throws {
    let rig = try Rig(as: .server, .nothing)
    #expect(try rig.handle(Wire.subnegotiation([5, 8]) + [1]) == [1] && rig.stream.takeEvent() == nil)
    let agreed = try Rig()
    #expect(try agreed.handle(Wire.subnegotiation([5, 8], of: 24) + Wire.subnegotiation([50]) + [1]) == [1])
    // What only a server says, said by a client.
    #expect(try agreed.handle(Wire.subnegotiation([105, 8])) == [] && agreed.stream.takeEvent() == nil)
  }

  @Test("reports once that COM-PORT is agreed upon, and again after an end of it")
  func comPortAgreed() throws {
    let rig = try Rig(as: .client, .nothing)
    var events: [TelnetStream.Event] = []
    rig.stream.observer = { events.append($0) }
    rig.stream.begin()
    _ = try rig.handle(Wire.do(44))
    #expect(events == [.comPortAgreed])
    _ = try rig.handle(Wire.will(44))
    #expect(events == [.comPortAgreed])
    _ = try rig.handle(Wire.dont(44) + Wire.wont(44))
    #expect(events == [.comPortAgreed] && !rig.stream.negotiation.hasComPort)
    _ = try rig.handle(Wire.do(44))
    #expect(events == [.comPortAgreed, .comPortAgreed])
  }

  @Test("reports that COM-PORT was agreed upon before it began, though nothing arrives")
  func comPortAgreedBefore() throws {
    let rig = try Rig()
    rig.stream.goOn()
    #expect(rig.stream.hasBufferedInput)  // so it is read, and the event is taken
    #expect(try rig.stream.read() == .blocked(until: []))
    #expect(rig.stream.takeEvent() == .comPortAgreed && rig.stream.takeEvent() == nil)
    #expect(!rig.stream.hasBufferedInput)
    let without = try Rig(as: .server, .nothing)
    without.stream.goOn()
    #expect(without.stream.takeEvent() == nil && !without.stream.hasBufferedInput)
  }

  @Test(
    "reports that COM-PORT is refused when both directions are, in either order",
    arguments: [[Wire.dont(44), Wire.wont(44)], [Wire.wont(44), Wire.dont(44)]])
  func comPortRefused(words: [[UInt8]]) throws {
    let rig = try Rig(as: .client, .nothing)
    var events: [TelnetStream.Event] = []
    rig.stream.observer = { events.append($0) }
    rig.stream.begin()
    _ = try rig.handle(words[0] + Wire.do(3))
    #expect(events.isEmpty)
    _ = try rig.handle(words[1])
    #expect(events == [.comPortRefused])
    _ = try rig.handle(words[1] + words[0])
    #expect(events == [.comPortRefused])
    // A server that wants it in one direction only.
    let half = try Rig(as: .client, .nothing)
    var halfEvents: [TelnetStream.Event] = []
    half.stream.observer = { halfEvents.append($0) }
    half.stream.begin()
    _ = try half.handle(Wire.dont(44) + Wire.will(44))
    #expect(halfEvents == [.comPortAgreed])
  }

  @Test("answers options and AYT, in order")
  func answers() throws {
    let rig = try Rig(as: .server, .nothing)
    #expect(try rig.handle([1] + Wire.do(24) + Wire.areYouThere + Wire.will(0) + [2] + Wire.wont(99)) == [1, 2])
    #expect(rig.below.written == Wire.wont(24) + Array("\r\n[baudway: yes]\r\n".utf8) + Wire.do(0))
  }

  @Test("reads the data after the other side's WILL BINARY as they are, and those before as text")
  func binaryBegins() throws {
    let rig = try Rig(as: .server, .nothing)
    #expect(try rig.handle([13, 0] + Wire.will(0) + [13, 0] + Wire.wont(0) + [13, 0]) == [13, 13, 0, 13])
  }

  @Test(
    "stops to read while the other side does not read its answers, and keeps few of them",
    arguments: [Wire.areYouThere, Wire.do(99), Wire.will(7)])
  func unreadAnswers(question: [UInt8]) throws {
    let rig = try Rig(ScriptedStream())
    let flood = Array(repeating: question, count: 10_000).flatMap { $0 }
    rig.below.willRead(.bytes(flood), .bytes([9]))
    rig.stream.readerWaits = .readable
    #expect(try rig.readAll() == [])
    #expect(rig.stream.undelivered.onItsWay > 3000 && rig.stream.undelivered.onItsWay < 4096 + 100)
    let calls = rig.below.readCalls
    for _ in 0..<10 { #expect(try rig.stream.read() == .blocked(until: [])) }
    #expect(rig.below.readCalls == calls && rig.below.writerWaits == .writable)
    // It reads on when there is space, and every question gets its answer.
    var received: [UInt8] = []
    for _ in 0..<1000 where received.isEmpty {
      rig.below.willWrite(.moved(3000))
      rig.tellSpace()
      rig.nextRound()
      received = try rig.readAll()
    }
    while rig.stream.hasPendingOutput {
      rig.below.willWrite(.moved(3000))
      rig.tellSpace()
    }
    #expect(received == [9] && rig.recorder.events.contains(.hasBytesAvailable))
    let answer = question == Wire.areYouThere ? 18 : 3
    #expect(rig.below.written.count == 10_000 * answer)
  }

  @Test("reports a fault after the data before it, and stays broken", arguments: [true, false])
  func faults(inOneRun: Bool) throws {
    let endless = [1, 2, 255, 250, 44] + [UInt8](repeating: 7, count: 65_537)
    let rig = inOneRun ? try Rig(early: endless) : try Rig()
    if !inOneRun { rig.below.willRead(.bytes(endless)) }
    var run = [UInt8](repeating: 0, count: 100_000)
    #expect(try run.withUnsafeMutableBytes { try rig.stream.read(into: $0) } == .moved(2))
    #expect(run[..<2] == [1, 2] && rig.stream.hasBufferedInput)
    for _ in 0..<2 { #expect(throws: TelnetFault.self) { try rig.stream.read() } }
    // In small pieces the fault comes alone.
    let pieces = try Rig()
    pieces.below.willRead(.bytes(endless))
    let (bytes, error) = pieces.readUntilItBreaks()
    #expect(bytes == [1, 2] && error is TelnetFault)
  }

  @Test("throws when the stream below reports an impossible count", arguments: LyingStream.Lie.allCases)
  func liar(lie: LyingStream.Lie) throws {
    let poller = try Rig().poller
    func stream(_ below: LyingStream, _ negotiation: TelnetNegotiation = .agreed(.server)) -> TelnetStream {
      TelnetStream(over: below, .init(.server, keepalive: nil), negotiation, on: poller)
    }
    #expect(throws: InternalFault.self) { try stream(LyingStream(lie, in: .reading)).read() }
    #expect(throws: InternalFault.self) { try stream(LyingStream(lie, in: .writing)).write([1, 255, 2]) }
    let answering = stream(LyingStream(lie, in: .writing, reads: [Wire.areYouThere]))
    #expect(try answering.read() == .moved(0))
    #expect(throws: InternalFault.self) { try answering.write([1]) }
    let text = stream(LyingStream(lie, in: .writing), TelnetNegotiation(.server(comPort: true)))
    #expect(throws: InternalFault.self) { try text.write([1]) }
  }
}
