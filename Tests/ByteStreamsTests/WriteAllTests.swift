import ByteStreams
import Glibc
import StreamTestKit
import Testing

@Suite("Output that must be complete", .timeLimit(.minutes(5)))
struct WriteAllTests {
  @Test("is written completely to a non-blocking descriptor that is read slowly")
  func whole() async throws {
    var ends: [Int32] = [0, 0]
    try #require(pipe(&ends) == 0)
    let (input, output) = (ends[0], ends[1])
    defer { close(input) }
    try #require(fcntl(output, F_SETFL, O_NONBLOCK) == 0)
    let bytes = (0..<300_000).map { UInt8(truncatingIfNeeded: $0 / 7) }  // a pipe has space for 65,536
    async let written: Void = onOwnThread {
      defer { close(output) }
      try writeAll(bytes, to: output)
    }
    let reported = try await onOwnThread {
      var reported: [UInt8] = []
      var piece = [UInt8](repeating: 0, count: 1000)
      while true {
        let count = read(input, &piece, piece.count)
        guard count > 0 else { return reported }
        reported += piece[..<count]
      }
    }
    try await written
    #expect(reported == bytes)
  }

  @Test("reports why it is incomplete")
  func fails() throws {
    let full = open("/dev/full", O_WRONLY | O_CLOEXEC)
    try #require(full >= 0)
    defer { close(full) }
    #expect(throws: SystemError("write", ENOSPC)) { try writeAll([1], to: full) }
    #expect(throws: Never.self) { try writeAll([], to: full) }
  }
}
