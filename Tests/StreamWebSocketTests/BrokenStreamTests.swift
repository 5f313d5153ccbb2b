// A WebSocket stream whose connection breaks in the middle of a frame that it holds.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

@testable import StreamWebSocket

@Suite("A WebSocket stream that holds a frame", .timeLimit(.minutes(5)))
struct BrokenStreamTests {
  @Test("forgets a held frame when the connection breaks under it, and waits for nothing")
  func brokenUnderAFrame() async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let rig = StreamRig(
        ScriptedStream(writes: [.moved(1), .failed(SystemError("write", EPIPE))]), on: lane)
      let answer = try [UInt8]([1, 2, 3]).withUnsafeBytes { try rig.stream.write($0) }
      #expect(answer == .moved(3) && rig.stream.hasPendingOutput && rig.below.writerWaits == .writable)
      rig.tellSpace()
      #expect(!rig.stream.hasPendingOutput && rig.below.writerWaits == [])
      rig.stream.close()
    }
  }

  @Test(
    "delivers bytes from before the connection broke under a held frame, and then the error", arguments: [true, false])
  func brokenBehindInput(tellsEnd: Bool) async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let broken = SystemError("write", ECONNRESET)
      let rig = StreamRig(ScriptedStream(writes: [.moved(1), .failed(broken)]), on: lane)
      _ = try rig.stream.write([1, 2, 3])
      rig.stream.readerWaits = .readable
      rig.below.willRead(.bytes(wire(2, [4, 5])))
      if tellsEnd { rig.below.willRead(.ended) }
      rig.tellSpace()
      #expect(rig.recorder.events == [.hasBytesAvailable])
      #expect(try rig.stream.readSome() == [4, 5])
      #expect(throws: broken) { try rig.stream.read() }
      #expect(!rig.stream.closeBehavior.hasClosingHandshake)
      rig.stream.close()
    }
  }

  @Test("wakes a waiting writer when the connection breaks under a held frame")
  func brokenBeforeWriter() async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let broken = SystemError("write", EPIPE)
      let rig = StreamRig(ScriptedStream(writes: [.moved(1), .failed(broken), .failed(broken)]), on: lane)
      _ = try rig.stream.write([1, 2, 3])
      rig.stream.writerWaits = .writable
      rig.tellSpace()
      #expect(rig.recorder.events == [.hasSpaceAvailable])
      #expect(throws: broken) { try rig.stream.write([4]) }
      rig.stream.close()
    }
  }

  @Test(
    "throws when the stream below reports an impossible count", arguments: LyingStream.Lie.allCases,
    [WebSocketRole.server, .client])
  func liar(lie: LyingStream.Lie, role: WebSocketRole) async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let poller = lane.poller
      func stream(_ below: LyingStream, deflates: Bool = false) -> WebSocketStream {
        let terms = WebSocketTerms(deflate: deflates ? DeflateTerms() : nil)
        return WebSocketStream(over: below, as: role, .init(terms: terms, pingInterval: nil), on: poller)
      }
      for deflates in [false, true] {
        let reader = stream(LyingStream(lie, in: .reading), deflates: deflates)
        #expect(throws: InternalFault.self) { try reader.read() }
        reader.close()
        let writer = stream(LyingStream(lie, in: .writing), deflates: deflates)
        #expect(throws: InternalFault.self) { try writer.write([1, 2, 3]) }
        writer.close()
      }
      // The rest of a frame. A client copies its whole frame first and sends it in as many calls as needed.
      let writes: [Transfer] = role == .client ? [.moved(1), .blocked(until: .writable)] : [.moved(1)]
      let writer = stream(LyingStream(lie, in: .writing, writes: writes))
      _ = try writer.write([1, 2, 3])
      #expect(throws: InternalFault.self) { try writer.write([4]) }
      writer.close()
    }
  }
}
