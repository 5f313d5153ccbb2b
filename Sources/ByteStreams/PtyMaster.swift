// Queries of the master of a pseudo-terminal, and changes to its slave. The slave is open for one call at most: while
// we have it open, the master does not hang up. Other code makes ptys; PtyClientStream carries their bytes.

import CLinux
import Glibc

package enum PtyMaster {
  /// Whether nobody has the slave open. What its last user wrote may still be unread. A new pty reports this only after
  /// its first user has closed the slave.
  package static func isHungUp(_ master: Int32) -> Bool { events(master) & Int16(POLLHUP) != 0 }

  /// Whether the slave's users have written bytes that are unread.
  package static func hasInput(_ master: Int32) -> Bool { events(master) & Int16(POLLIN) != 0 }

  private static func events(_ master: Int32) -> Int16 {
    var one = pollfd(fd: master, events: Int16(POLLIN), revents: 0)
    return poll(&one, 1, 0) > 0 ? one.revents : 0
  }

  /// Bytes written to the master that nobody has read from the slave (TIOCOUTQ of a master is always 0). Nil when a
  /// program has the slave exclusively (TIOCEXCL), so that we cannot open it.
  package static func unread(_ master: Int32) -> Int? {
    guard let slave = try? openSlave(of: master) else { return nil }
    return unread(slave: slave.raw)
  }

  /// The same for a slave that the caller has open.
  package static func unread(slave: Int32) -> Int? {
    // poll(2) makes the kernel pass on bytes that are on their way to the slave; FIONREAD alone would miss them.
    var one = pollfd(fd: slave, events: Int16(POLLIN), revents: 0)
    poll(&one, 1, 0)
    var count: Int32 = 0
    return ioctl(slave, UInt(FIONREAD), &count) == 0 ? Int(count) : nil
  }

  /// Resets a slave that its last user has closed: raw, without echo, with nothing left to read. The user's bytes stay
  /// readable at the master; rate and format stay too. If a program has already opened the slave
  /// again, this only discards unread bytes. Never blocks: a pty has no driver.
  /// EBUSY: a user left the slave exclusive (TIOCEXCL outlives its process), and we lack the right to open it; only
  /// another pty helps then. `allIsRead`: all of the user's bytes were read, so the master's remaining input is the
  /// echo of our own bytes.
  package static func refresh(_ master: Int32, allIsRead: Bool) throws(SystemError) {
    PtySettings.clearCLOCAL(of: master)
    let isFree = isHungUp(master)
    // The slave has no user whose settings this could change, unless a program opens and sets it within this call.
    let didEcho = isFree ? try makeRaw(master) : false
    tcflush(master, TCOFLUSH)  // bytes on their way to the slave
    let slave = try openSlave(of: master)
    tcflush(slave.raw, TCIFLUSH)  // TCSETSF on the master would do this too, but waits for writers
    guard isFree else { return }
    if didEcho && allIsRead {
      tcflush(slave.raw, TCOFLUSH)
      tcflush(master, TCIFLUSH)
    }
    _ = ioctl(slave.raw, UInt(TIOCNXCL), 0)
    tcflow(slave.raw, TCOON)  // otherwise stopped output would stay stopped
  }

  /// Sets the slave to raw mode: on a master, settings are the slave's (ioctl_tty(2)). Returns whether it echoed
  /// before.
  private static func makeRaw(_ master: Int32) throws(SystemError) -> Bool {
    var modes = termios()
    guard tcgetattr(master, &modes) == 0 else { throw SystemError("tcgetattr") }
    let before = modes
    cfmakeraw(&modes)
    modes.c_cflag = before.c_cflag
    guard tcsetattr(master, TCSANOW, &modes) == 0 else { throw SystemError("tcsetattr") }
    return before.c_lflag & tcflag_t(ECHO) != 0
  }

  private static func openSlave(of master: Int32) throws(SystemError) -> Descriptor {
    let raw = linux_open_peer(master)
    guard raw >= 0 else { throw SystemError("open") }
    return Descriptor(owning: raw)
  }
}
