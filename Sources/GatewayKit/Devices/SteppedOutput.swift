// What is written beside the wait for signals: as much as there is room for now, so that nobody who has stopped reading (`| less`)
// keeps a command from ending. The descriptor stays as it is, for others write through it as well.

import ByteStreams
import Glibc

public struct SteppedOutput {
  private let descriptor: Int32
  private var owed: ArraySlice<UInt8> = []
  /// A pipe that poll(2) calls writable takes so much at once (pipe(7), PIPE_BUF).
  private static let step = 4096

  /// `descriptor` stays its owner's.
  public init(_ descriptor: Int32 = STDOUT_FILENO) { self.descriptor = descriptor }

  public var isIdle: Bool { owed.isEmpty }

  public mutating func add(_ text: String) { owed += text.utf8 }

  /// Throws when no more can be written: nobody reads, or there is no space.
  public mutating func flush() throws(SystemError) {
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
