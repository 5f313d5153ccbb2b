// What can be read as a small file, what can't, and that no read waits without end.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

@testable import GatewayKit

@Suite("A small file", .timeLimit(.minutes(5)))
struct FileBytesTests {
  private let folder: TemporaryFolder

  init() throws { folder = try TemporaryFolder() }

  @Test("is read whole, up to a limit")
  func file() throws {
    try folder.write("x", String(repeating: "x", count: 100_000))
    #expect(try FileBytes.read(folder / "x", limit: 100_000).count == 100_000)
    #expect(throws: SystemError("read", EFBIG)) { try FileBytes.read(folder / "x", limit: 99_999) }
  }

  @Test("is not a FIFO, which could block, with a writer or without", arguments: [false, true])
  func fifo(isHeld: Bool) throws {
    try #require(mkfifo(folder / "fifo", 0o600) == 0)
    let writer = isHeld ? open(folder / "fifo", O_RDWR | O_CLOEXEC) : -1
    defer { if isHeld { close(writer) } }
    #expect(throws: SystemError("open", ENXIO)) { try FileBytes.read(folder / "fifo", limit: 100) }
  }

  @Test("is not a terminal")
  func terminal() throws {
    let pty = try makePty()
    #expect(throws: SystemError("open", ENXIO)) { try FileBytes.read(pty.path, limit: 100) }
  }

  private func makePipe() throws -> (reading: Int32, writing: Int32) {
    var ends: [Int32] = [-1, -1]
    try #require(pipe(&ends) == 0)
    return (ends[0], ends[1])
  }

  @Test("may be a pipe, as shells make of <(…), and is read to its end however slowly it is written")
  func shellPipe() async throws {
    let (reading, writing) = try makePipe()
    async let read = onOwnThread { try FileBytes.read("/proc/self/fd/\(reading)", limit: 1000) }
    try await onOwnThread {
      for byte in UInt8(0)..<10 {
        usleep(1000)
        _ = withUnsafePointer(to: byte) { write(writing, $0, 1) }
      }
      close(writing)
    }
    #expect(try await read == Array(0..<10))
    close(reading)
  }

  @Test("times out if it is a pipe that is never closed")
  func endlessPipe() throws {
    let (reading, writing) = try makePipe()
    #expect(throws: SystemError("read", ETIMEDOUT)) {
      try FileBytes.read("/proc/self/fd/\(reading)", limit: 100, timeout: .milliseconds(50))
    }
    close(reading)
    close(writing)
  }
}
