import ByteStreams
import Glibc
import StreamTestKit
import Testing

@Suite("Output that is to be whole", .timeLimit(.minutes(1)))
struct WriteAllTests {
  @Test("is, also where somebody has made the descriptor non-blocking and it is read slowly")
  func whole() async throws {
    var ends: [Int32] = [0, 0]
    try #require(pipe(&ends) == 0)
    let (input, output) = (ends[0], ends[1])
    defer { close(input) }
    try #require(fcntl(output, F_SETFL, O_NONBLOCK) == 0)
    let bytes = (0..<300_000).map { UInt8(truncatingIfNeeded: $0 / 7) }  // a pipe has room for 65,536
    async let written: Void = onOwnThread {
      defer { close(output) }
      try writeAll(bytes, to: output)
    }
    let told = try await onOwnThread {
      var told: [UInt8] = []
      var piece = [UInt8](repeating: 0, count: 1000)
      while true {
        let count = read(input, &piece, piece.count)
        guard count > 0 else { return told }
        told += piece[..<count]
      }
    }
    try await written
    #expect(told == bytes)
  }

  @Test("says what kept it from that")
  func fails() throws {
    let full = open("/dev/full", O_WRONLY | O_CLOEXEC)
    try #require(full >= 0)
    defer { close(full) }
    #expect(throws: SystemError("write", ENOSPC)) { try writeAll([1], to: full) }
    #expect(throws: Never.self) { try writeAll([], to: full) }
  }
}
