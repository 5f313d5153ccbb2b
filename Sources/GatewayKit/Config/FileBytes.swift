// Reads a whole small file: the config and what it refers to. Blocks, so never call it on a lane.

import ByteStreams
import Glibc

enum FileBytes {
  /// The content of the file at `path`; EFBIG beyond `limit` bytes. A pipe, as of a shell's <(…), is read until its
  /// writer closes; ETIMEDOUT when that takes longer than `timeout`. ENXIO for FIFOs and devices, which could block
  /// without end.
  static func read(_ path: String, limit: Int, timeout: Duration = .seconds(30)) throws(SystemError) -> [UInt8] {
    try readWithFacts(path, limit: limit, timeout: timeout).bytes
  }

  /// The same, with owner and permissions of exactly the file that was read.
  static func readWithFacts(
    _ path: String, limit: Int, timeout: Duration = .seconds(30)
  ) throws(SystemError) -> (bytes: [UInt8], facts: FileFacts?) {
    let raw = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
    if raw < 0 { throw SystemError("open") }
    let file = Descriptor(owning: raw)
    let isPipe = try isPipe(file.raw)
    let end = ContinuousClock.now + timeout
    var bytes: [UInt8] = []
    var chunk = [UInt8](repeating: 0, count: 64 << 10)
    while true {
      if isPipe { try awaitBytes(file.raw, until: end) }
      let count = Glibc.read(file.raw, &chunk, chunk.count)
      if count < 0, errno == EINTR || errno == EAGAIN && isPipe { continue }
      if count < 0 { throw SystemError("read") }
      if count == 0 { return (bytes, FileFacts(descriptor: file.raw)) }
      bytes += chunk[..<count]
      if bytes.count > limit { throw SystemError("read", EFBIG) }
    }
  }

  private static func isPipe(_ file: Int32) throws(SystemError) -> Bool {
    var status = stat()
    guard fstat(file, &status) == 0 else { throw SystemError("fstat") }
    switch status.st_mode & S_IFMT {
    case S_IFREG, S_IFDIR: return false  // read(2) of a folder fails with EISDIR
    case S_IFIFO where !hasName(file): return true
    default: throw SystemError("open", ENXIO)
    }
  }

  /// A FIFO has a name, and perhaps never a writer; a pipe is "pipe:[4711]" (proc(5)).
  private static func hasName(_ file: Int32) -> Bool {
    withUnsafeTemporaryAllocation(of: CChar.self, capacity: 5) { start in
      let count = readlink("/proc/self/fd/\(file)", start.baseAddress!, start.count)
      return count != 5 || !start.elementsEqual("pipe:".utf8CString.dropLast())
    }
  }

  private static func awaitBytes(_ file: Int32, until end: ContinuousClock.Instant) throws(SystemError) {
    while true {
      let left = max(.zero, ContinuousClock.now.duration(to: end)).components
      let milliseconds = left.seconds * 1000 + left.attoseconds / 1_000_000_000_000_000
      var wanted = pollfd(fd: file, events: Int16(POLLIN), revents: 0)
      switch poll(&wanted, 1, Int32(clamping: milliseconds)) {
      case 1...: return
      case 0: throw SystemError("read", ETIMEDOUT)
      default: if errno != EINTR { throw SystemError("poll") }
      }
    }
  }
}
