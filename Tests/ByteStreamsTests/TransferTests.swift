// Impossible counts: a stream that reports a wrong count must not end the process.

import Glibc
import StreamTestKit
import Testing

@testable import ByteStreams

@Suite("A transfer", .timeLimit(.minutes(5)))
struct TransferTests {
  @Test("that was checked has moved between nothing and what was offered")
  func checked() throws {
    for good in [Transfer.moved(0), .moved(5), .blocked(until: .writable), .ended] {
      #expect(try good.checked(of: 5, at: "here") == good)
    }
    for count in [6, .max, -1, .min] {
      let fault = #expect(throws: InternalFault.self) { try Transfer.moved(count).checked(of: 5, at: "here") }
      #expect(fault?.description == "here: a stream has moved \(count) bytes of 5")
    }
  }

  @Test("of several runs that are written one by one rejects impossible counts", arguments: LyingStream.Lie.allCases)
  func together(lie: LyingStream.Lie) {
    // The first run is written whole, so that a wrong count is added to a right one.
    let liar = LyingStream(lie, writes: [.moved(2)])
    var bytes: [UInt8] = [1, 2, 3]
    let fault = #expect(throws: InternalFault.self) {
      try bytes.withUnsafeMutableBytes { bytes in
        var runs = [
          iovec(iov_base: bytes.baseAddress, iov_len: 2), iovec(iov_base: bytes.baseAddress! + 2, iov_len: 1),
        ]
        return try runs.withUnsafeMutableBufferPointer { try liar.write(together: $0) }
      }
    }
    #expect(fault?.location == "stream.write")
  }

  @Test("with an impossible count is thrown by async reads and writes", arguments: LyingStream.Lie.allCases)
  func awaited(lie: LyingStream.Lie) async throws {
    try await onLane { lane in
      await #expect(throws: InternalFault.self) {
        lane.preconditionIsolated()
        for try await _ in LyingStream(lie).bytes {}
      }
      await #expect(throws: InternalFault.self) { try await LyingStream(lie).send([1, 2, 3]) }
    }
  }
}
