// Suspend and resume, keepalive: what depends on time, and on the other side's wish.

import ByteStreams
import StreamTestKit
import Testing

@testable import StreamTelnet

@Suite("A telnet stream's flow", .timeLimit(.minutes(5)))
struct FlowTests {
  @Test(
    "stops at the other side's suspend, answers all the same, and goes on at resume",
    arguments: [TelnetRole.server, .client])
  func obeys(role: TelnetRole) throws {
    let base: UInt8 = role == .server ? 0 : 100
    let rig = try Rig(as: role)
    rig.stream.writerWaits = .writable
    #expect(try rig.handle(Wire.subnegotiation([base + 8]) + [1]) == [1])
    #expect(rig.stream.takeEvent() == nil)  // it is handled here
    #expect(try rig.stream.write([1]) == .blocked(until: .writable))
    #expect(try writeTogether(rig.stream, [[1], [2]]) == .blocked(until: .writable))
    // No space may be reported meanwhile: a descriptor nearly always has some.
    #expect(rig.below.writerWaits == [])
    rig.tellSpace()
    #expect(rig.recorder.events.isEmpty)
    _ = try rig.handle(Wire.do(99))
    #expect(rig.below.written == Wire.wont(99))
    _ = try rig.handle(Wire.subnegotiation([base + 9]))
    #expect(rig.below.writerWaits == .writable)
    rig.tellSpace()
    #expect(rig.recorder.events == [.hasSpaceAvailable])
    #expect(try rig.stream.write([1]) == .moved(1) && rig.below.written == Wire.wont(99) + [1])
  }

  @Test("sends what it holds while it is suspended, and waits for space only for that")
  func suspendedWithHeldBytes() throws {
    let rig = try Rig(ScriptedStream(writes: [.moved(1)]))
    #expect(try rig.stream.write([255]) == .moved(1) && rig.stream.hasPendingOutput)
    rig.stream.writerWaits = .writable
    _ = try rig.handle(Wire.subnegotiation([8]))
    #expect(rig.below.writerWaits == .writable)
    rig.below.willWrite(.moved(1))
    rig.tellSpace()
    #expect(rig.below.written == [255, 255] && rig.below.writerWaits == [] && rig.recorder.events.isEmpty)
  }

  @Test("goes on when the other side ends COM-PORT without a resume")
  func comPortEnds() throws {
    let rig = try Rig()
    rig.stream.writerWaits = .writable
    _ = try rig.handle(Wire.subnegotiation([8]) + Wire.dont(44))
    #expect(rig.below.writerWaits == [])
    _ = try rig.handle(Wire.wont(44))
    #expect(rig.below.writerWaits == .writable)
    #expect(try rig.stream.write([1]) == .moved(1))
  }

  @Test("goes on when the other side's input ends without a resume")
  func inputEnds() throws {
    let rig = try Rig()
    rig.stream.writerWaits = .writable
    _ = try rig.handle(Wire.subnegotiation([8]))
    #expect(try rig.stream.write([1]) == .blocked(until: .writable) && rig.below.writerWaits == [])
    rig.below.willRead(.ended)
    #expect(try rig.readAll() == [] && rig.below.writerWaits == .writable)
    rig.tellSpace()
    #expect(rig.recorder.events == [.hasSpaceAvailable])
    #expect(try rig.stream.write([1]) == .moved(1))
  }

  @Test(
    "suspends the other side after 100 ms without a reader, and resumes it with one",
    arguments: [TelnetRole.server, .client])
  func suspends(role: TelnetRole) throws {
    let base: UInt8 = role == .server ? 100 : 0
    let rig = try Rig(as: role)
    rig.stream.readerWaits = .readable
    rig.stream.readerWaits = []
    rig.pass(.milliseconds(99))
    #expect(rig.below.written.isEmpty)
    rig.pass(.milliseconds(1))
    #expect(rig.below.written == Wire.subnegotiation([base + 8]))
    rig.pass(.seconds(10))
    rig.stream.readerWaits = .readable
    #expect(rig.below.written == Wire.subnegotiation([base + 8]) + Wire.subnegotiation([base + 9]))
    rig.stream.readerWaits = []
    rig.pass(.milliseconds(100))
    #expect(rig.below.written.count == 3 * 6)
  }

  @Test("suspends nobody for short pauses, however many, nor while it waits for an event to be taken")
  func shortPauses() throws {
    let rig = try Rig()
    for _ in 0..<100 {
      rig.stream.readerWaits = .readable
      rig.pass(.milliseconds(10))
      rig.stream.readerWaits = []
      rig.pass(.milliseconds(50))
    }
    rig.stream.readerWaits = .readable
    rig.pass(.seconds(1))
    #expect(rig.below.written.isEmpty)
    _ = try rig.handle(Wire.breakKey)
    #expect(try rig.stream.read() == .blocked(until: []))
    rig.stream.readerWaits = []
    rig.pass(.seconds(1))
    #expect(rig.below.written.isEmpty)
  }

  @Test("suspends nobody who does not have COM-PORT, or if it is set not to", arguments: [true, false])
  func suspendsNot(hasComPort: Bool) throws {
    let rig = try Rig(as: .server, hasComPort ? .agreed : .nothing, suspends: !hasComPort)
    rig.stream.readerWaits = .readable
    rig.stream.readerWaits = []
    rig.pass(.seconds(1))
    rig.stream.readerWaits = .readable
    #expect(rig.below.written.isEmpty)
  }

  @Test("resumes the other side even if no other message can be queued")
  func resumeIsNotLost() throws {
    let rig = try Rig(ScriptedStream())
    rig.stream.readerWaits = .readable
    rig.stream.readerWaits = []
    rig.pass(.milliseconds(100))
    while rig.stream.send(text: "ab") {}
    rig.stream.readerWaits = .readable
    // And one that could not be suspended is not resumed.
    rig.stream.readerWaits = []
    rig.pass(.milliseconds(100))
    rig.stream.readerWaits = .readable
    rig.below.willWrite(.moved(1 << 20))
    rig.tellSpace()
    let heard = Reference(rig.below.written, binary: true)
    #expect(heard.messages == [[108], [109]])
  }

  @Test("sends NOP after silence of its own, and only then")
  func keepalive() throws {
    let rig = try Rig(keepalive: .seconds(20))
    for _ in 0..<3 {
      _ = try rig.stream.write([1])
      rig.pass(.seconds(20))
    }
    #expect(rig.below.written == [1, 1, 1])
    rig.pass(.milliseconds(19_999))
    #expect(rig.below.written == [1, 1, 1])
    rig.pass(.milliseconds(1))
    #expect(rig.below.written == [1, 1, 1] + Wire.nop)
    // An answer counts too; what comes in does not.
    _ = try rig.handle(Wire.do(99))
    rig.pass(.seconds(20))
    _ = try rig.handle([1])
    #expect(rig.below.written == [1, 1, 1] + Wire.nop + Wire.wont(99))
    for _ in 0..<2 { rig.pass(.seconds(20)) }
    #expect(rig.below.written == [1, 1, 1] + Wire.nop + Wire.wont(99) + Wire.nop + Wire.nop)
    rig.stream.close()
    rig.pass(.seconds(60))
    #expect(rig.below.written.count == 3 + 2 + 3 + 4)
  }

  @Test("sends no second NOP while the first is not taken, and none if it is set not to")
  func keepaliveIsBounded() throws {
    let rig = try Rig(ScriptedStream(), keepalive: .seconds(20))
    for _ in 0..<100 { rig.pass(.seconds(20)) }
    #expect(rig.stream.undelivered == .onItsWay(2))
    let without = try Rig()
    for _ in 0..<100 { without.pass(.seconds(20)) }
    #expect(without.below.written.isEmpty)
  }
}
