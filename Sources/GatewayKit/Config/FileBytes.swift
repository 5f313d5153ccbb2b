// A whole small file at once: the config and what it refers to. Blocks, so never on a lane.

import ByteStreams
import Glibc

enum FileBytes {
  /// The content of the file at `path`. EFBIG when it holds more than `limit` bytes.
  static func read(_ path: String, limit: Int) throws(SystemError) -> [UInt8] {
    let raw = open(path, O_RDONLY | O_CLOEXEC)
    if raw < 0 { throw SystemError("open") }
    let file = Descriptor(owning: raw)
    var bytes: [UInt8] = []
    var chunk = [UInt8](repeating: 0, count: 64 << 10)
    while true {
      let count = Glibc.read(file.raw, &chunk, chunk.count)
      if count < 0, errno == EINTR { continue }
      if count < 0 { throw SystemError("read") }
      if count == 0 { return bytes }
      bytes += chunk[..<count]
      if bytes.count > limit { throw SystemError("read", EFBIG) }
    }
  }
}
