// A telnet stream whose connection breaks: what was read comes first, and the error is never lost.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

@testable import StreamTelnet

@Suite("A telnet stream that breaks", .timeLimit(.minutes(5)))
struct BrokenStreamTests {
  private static let broken = SystemError("write", ECONNRESET)

  @Test("delivers bytes from before an answer could not be sent, and then the error", arguments: [true, false])
  func behindInput(tellsEnd: Bool) throws {
    let rig = try Rig(ScriptedStream(writes: [.moved(1), .blocked(until: .writable), .failed(Self.broken)]))
    rig.stream.readerWaits = .readable
    #expect(rig.stream.send(.control(8)) && rig.stream.hasPendingOutput)
    rig.below.willRead(.bytes([4, 5]))
    if tellsEnd { rig.below.willRead(.ended) }
    rig.tellSpace()
    #expect(rig.recorder.events == [.hasBytesAvailable] && !rig.stream.hasPendingOutput)
    #expect(rig.below.writerWaits == [])
    #expect(try rig.stream.readSome() == [4, 5])
    for _ in 0..<2 { #expect(throws: Self.broken) { try rig.stream.read() } }
  }

  @Test("wakes a waiting writer, which gets the error", arguments: [Rig.Terms.agreed, .nothing])
  func beforeWriter(terms: Rig.Terms) throws {
    let rig = try Rig(
      ScriptedStream(writes: [.blocked(until: .writable), .failed(Self.broken)]), as: .server, terms)
    #expect(rig.stream.send(text: "ab"))
    rig.stream.writerWaits = .writable
    rig.tellSpace()
    #expect(rig.recorder.events == [.hasSpaceAvailable])
    #expect(throws: Self.broken) { try rig.stream.write([4]) }
    #expect(throws: Self.broken) { try writeTogether(rig.stream, [[4], [5]]) }
  }

  @Test("tells a writer of text")
  func text() throws {
    let rig = try Rig(ScriptedStream(writes: [.failed(Self.broken)]), as: .server, .nothing)
    for _ in 0..<2 { #expect(throws: Self.broken) { try rig.stream.write([4]) } }
    #expect(throws: Self.broken) { try rig.stream.read() }
  }

  @Test("counts a stream below that takes no more as broken")
  func ended() throws {
    let rig = try Rig(ScriptedStream(writes: [.ended]))
    #expect(rig.stream.send(text: "ab") && !rig.stream.hasPendingOutput)
    #expect(throws: SystemError.self) { try rig.stream.write([1]) }
    let writer = try Rig(ScriptedStream(writes: [.ended]))
    #expect(try writer.stream.write([1, 255]) == .ended)
  }

  @Test("reads on for requests that arrived before, though their answers can't be sent")
  func pausedByAnswers() throws {
    let rig = try Rig(ScriptedStream())
    rig.below.willRead(.bytes(Array(repeating: Wire.areYouThere, count: 1000).flatMap { $0 } + [9]))
    rig.stream.readerWaits = .readable
    #expect(try rig.readAll() == [])
    rig.stream.readerWaits = []
    rig.below.willWrite(.failed(Self.broken))
    rig.tellSpace()
    let met = rig.recorder.events.count
    rig.nextRound()
    #expect(rig.recorder.events.count == met + 1)
    let (bytes, error) = rig.readUntilItBreaks()
    #expect(bytes == [9] && error as? SystemError == Self.broken)
  }

  @Test(
    "survives a failure of each call, and reports it, whatever it was doing", arguments: [Rig.Terms.agreed, .nothing])
  func nthCall(terms: Rig.Terms) throws {
    var step = 0
    while step < 200 {
      let faults = Faults(failing: step)
      let below = ScriptedStream(
        reads: [.bytes([1] + Wire.areYouThere + [2]), .bytes(Wire.subnegotiation([5, 8]) + Wire.do(99)), .bytes([3])],
        writes: [.moved(2), .blocked(until: .writable), .moved(1)], takesAll: true, faults: faults)
      let rig = try Rig(below, as: .server, terms, keepalive: .seconds(20))
      rig.stream.begin()
      var errors: [any Error] = []
      var received: [UInt8] = []
      for _ in 0..<8 {
        do {
          if let some = try rig.stream.readSome() { received += some }
          if rig.stream.takeEvent() != nil { rig.stream.send(.control(8)) }
        } catch { errors.append(error) }
        do { _ = try rig.stream.write([13, 255, 1]) } catch { errors.append(error) }
        rig.tellSpace()
        rig.pass(.seconds(10))
      }
      #expect([1, 2, 3].starts(with: received), "step \(step)")
      #expect(errors.isEmpty != faults.wasReached, "step \(step)")
      #expect(errors.allSatisfy { ($0 as? SystemError)?.errno == EIO }, "step \(step)")
      rig.stream.close()
      #expect(rig.below.isClosed && rig.recorder.closings == 1 && !rig.stream.hasPendingOutput)
      rig.pass(.seconds(100))
      if !faults.wasReached {
        #expect(received == [1, 2, 3] && step > 10)
        break
      }
      step += 1
    }
    #expect(step < 200)
  }
}
