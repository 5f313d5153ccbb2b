// Output that never blocks: writes only what the descriptor can take now, so that a reader that has stopped (`| less`)
// can't keep a command from handling signals. The descriptor's flags stay unchanged, because others write to it, too.

import ByteStreams
import Glibc

package struct NonBlockingOutput {
  private let descriptor: Int32
  private var owed: ArraySlice<UInt8> = []
  /// Bytes that a pipe accepts at once when poll(2) reports it as writable (pipe(7), PIPE_BUF).
  private static let step = 4096

  /// `descriptor` is borrowed: it is not closed.
  package init(_ descriptor: Int32 = STDOUT_FILENO) { self.descriptor = descriptor }

  package var isIdle: Bool { owed.isEmpty }

  package mutating func add(_ text: String) { owed += text.utf8 }

  /// Writes what the descriptor takes now. Throws if no more can be written: the reader is gone, or the disk is full.
  package mutating func flush() throws(SystemError) {
    var room = pollfd(fd: descriptor, events: Int16(POLLOUT), revents: 0)
    while !owed.isEmpty {
      room.revents = 0
      let count = poll(&room, 1, 0)
      if count < 0 && errno == EINTR { continue }
      guard count > 0 else { return }
      let written = owed.prefix(Self.step).withUnsafeBytes { Glibc.write(descriptor, $0.baseAddress, $0.count) }
      if written > 0 {
        owed = owed.dropFirst(written)
      } else if errno == EAGAIN {
        return
      } else if errno != EINTR {
        throw SystemError("write")
      }
    }
    owed = []
  }
}
