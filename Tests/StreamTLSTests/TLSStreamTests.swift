// The stream, against an OpenSSL that is none of ours.

import ByteStreams
import COpenSSL
import Glibc
import StreamTestKit
import Testing

@testable import StreamTLS

@Suite("A TLS stream", .timeLimit(.minutes(1)))
struct TLSStreamTests {
  static let versions = [TLS1_2_VERSION...TLS1_2_VERSION, TLS1_3_VERSION...TLS1_3_VERSION]

  @Test("carries bytes both ways, whatever the chunks", arguments: versions)
  func echo(version: ClosedRange<Int32>) async throws {
    var rig = try TLSRig()
    rig.far.version = version
    try await onLane { [rig] lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      async let played: Void = onOwnThread { try far.play(.echo) }
      var random = SeededRandom()
      let seed = random.seed
      let bytes = random.bytes(200_000)
      var sent = 0
      while sent < bytes.count {
        let part = Array(bytes[sent..<min(sent + Int.random(in: 1...60_000, using: &random), bytes.count)])
        try await stream.writeAll(part, on: lane)
        #expect(try await stream.read(exactly: part.count, on: lane) == part, "seed \(seed)")
        sent += part.count
      }
      stream.finishWriting()
      let end = try await stream.readToEnd(on: lane)
      #expect(end.isEmpty)
      try await played
    }
  }

  @Test("takes more than one record a write, and holds no more than one write that the socket does not take")
  func held() async throws {
    let rig = try TLSRig()
    try await onLane { lane in
      let (stream, far) = try await rig.accept(on: lane)
      defer { stream.close() }
      let chunk = [UInt8](repeating: 0x55, count: 200_000)
      var sent = 0
      var wish: Readiness?
      while wish == nil, sent < 256 << 20 {
        switch try stream.write(chunk) {
        case .moved(let count):
          #expect(count == TLSStream.mostPerWrite)
          sent += count
        case .blocked(let until): wish = until
        case .ended: Issue.record("ended")
        }
      }
      #expect(wish == .writable && stream.holdsUnit && stream.unacknowledged > 0)
      #expect(stream.unacknowledged > sent)
      let total = sent
      async let heard = onOwnThread { try far.receive(exactly: total).count }
      let gate = Gate()
      let recorder = EventRecorder { _ in gate.open() }
      stream.delegate = recorder
      stream.writerWaits = .writable
      await gate.wait(on: lane)
      stream.writerWaits = []
      #expect(recorder.events.first == .hasSpaceAvailable && !stream.holdsUnit)
      #expect(try await heard == total)
      far.close()
    }
  }
}
