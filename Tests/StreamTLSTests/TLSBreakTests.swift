// Connections that break: earlier bytes are still read, and the reason after them.

import ByteStreams
import COpenSSL
import Glibc
import StreamTestKit
import Testing

@testable import StreamTLS

@Suite("A TLS stream that breaks", .timeLimit(.minutes(5)))
struct TLSBreakTests {
  private let said = (0..<20_000).map { UInt8(truncatingIfNeeded: $0) }

  /// Writes until a write fails. The kernel reports a reset to the first call; here no read takes it.
  private func writeUntilBroken(_ stream: TLSStream) async throws -> SystemError? {
    for _ in 0..<30_000 {
      do { _ = try stream.write([1]) } catch { return error as? SystemError }
      try await Task.sleep(for: .milliseconds(1))
    }
    return nil
  }

  @Test("by a failed write is still read to its end, and then reports the reason", arguments: TLSStreamTests.versions)
  func readAfterFailedWrite(version: ClosedRange<Int32>) async throws {
    var rig = try TLSRig()
    rig.far.version = version
    try await onLane { [rig, said] lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      try await onOwnThread {
        try far.send(said)
        far.reset()
      }
      #expect(try await writeUntilBroken(stream) == SystemError("write", ECONNRESET))
      #expect(try await stream.read(exactly: said.count, on: lane) == said)
      await #expect(throws: SystemError("write", ECONNRESET)) { _ = try await stream.read(exactly: 1, on: lane) }
      #expect(throws: SystemError.self) { _ = try stream.write([1]) }
    }
  }

  @Test("after close_notify was sent has ended in order")
  func endAfterFailedWrite() async throws {
    let rig = try TLSRig()
    try await onLane { [said] lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      try await onOwnThread {
        try far.send(said)
        far.finishWriting()
        far.reset()
      }
      #expect(try await writeUntilBroken(stream) != nil)
      #expect(try await stream.readToEnd(on: lane) == said)
    }
  }

  @Test("while it holds a unit lets its reader read first, and reports the fault at the end")
  func heldUnit() async throws {
    let rig = try TLSRig()
    try await onLane { [said] lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      let chunk = [UInt8](repeating: 0x55, count: 65_536)
      while !stream.hasPendingOutput { _ = try stream.write(chunk) }
      var received: [UInt8] = []
      var failure: (any Error)?
      let gate = Gate()
      let recorder = EventRecorder { _ in
        do { while let some = try stream.readSome() { received += some } } catch {
          failure = error
          gate.open()
        }
      }
      stream.delegate = recorder
      stream.readerWaits = .readable
      stream.writerWaits = .writable
      try await onOwnThread {
        try far.send(said)
        far.reset()
      }
      await gate.wait(on: lane)
      #expect(received == said && failure is SystemError)
      #expect(recorder.events.allSatisfy { $0 == .hasBytesAvailable || $0 == .hasSpaceAvailable })
      #expect(!stream.hasPendingOutput)
    }
  }

  @Test("right after the handshake is still read")
  func brokenInGreeting() async throws {
    let rig = try TLSRig()
    try await onLane { [rig] lane in
      let (near, far) = try FarEnd.tcpPair()
      let end = try TLSFarEnd(try far.take(), rig.far)
      async let said: Void = onOwnThread {
        try end.handshake()
        try end.send([1, 2, 3])
        end.reset()
      }
      let descriptor = try near.take()
      let handshake = try TLSHandshake(try TLSServerContext(rig.server), over: descriptor.raw)
      try await waitFor(descriptor.raw, .readable)
      let progress = try handshake.advance()
      #expect(progress == .blocked(until: .readable))  // our whole flight is sent
      try await said
      let session = try await shake(handshake, descriptor.raw)
      let stream = TLSStream(session, over: descriptor, kind: .tcp(wasDialled: false), on: lane.poller)
      defer { stream.close() }
      #expect(try await stream.read(exactly: 3, on: lane) == [1, 2, 3])
      await #expect(throws: SystemError.self) { _ = try await stream.read(exactly: 1, on: lane) }
    }
  }
}
