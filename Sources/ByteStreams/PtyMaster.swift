// What can be asked of the master of a pseudo-terminal, and done to its slave, without having the slave open for longer than a
// call: while we do, the master does not hang up. Who makes ptys is others' work; PtyClientStream carries their bytes.

import CLinux
import Glibc

public enum PtyMaster {
  /// Whether nobody has the slave open. What its last user wrote may be unread still. A new pty tells it only after the
  /// first who opened its slave has closed it.
  public static func isHungUp(_ master: Int32) -> Bool { events(master) & Int16(POLLHUP) != 0 }

  /// Whether the slave's users have written something that is unread.
  public static func hasInput(_ master: Int32) -> Bool { events(master) & Int16(POLLIN) != 0 }

  private static func events(_ master: Int32) -> Int16 {
    var one = pollfd(fd: master, events: Int16(POLLIN), revents: 0)
    return poll(&one, 1, 0) > 0 ? one.revents : 0
  }

  /// Bytes written to the master that nobody has read from the slave (TIOCOUTQ of a master is always 0). Nil when somebody
  /// has the slave alone (TIOCEXCL), which keeps us out.
  public static func unread(_ master: Int32) -> Int? {
    guard let slave = try? openSlave(of: master) else { return nil }
    // Asking for input has the kernel pass on what is on its way to the slave; FIONREAD alone would not see it.
    var one = pollfd(fd: slave.raw, events: Int16(POLLIN), revents: 0)
    poll(&one, 1, 0)
    var count: Int32 = 0
    return ioctl(slave.raw, UInt(FIONREAD), &count) == 0 ? Int(count) : nil
  }

  /// Makes a slave that its last user has left as good as new: raw, without echo, with nothing left to read. What was written
  /// to it stays for the master to read, and so do rate and format, as on a serial port. When somebody has opened it again
  /// already, only what is left to read goes. Never waits: there is no driver behind a pty.
  /// EBUSY when a user left it exclusive (TIOCEXCL outlives him) and we lack the right to open it all the same: only another
  /// pty helps then.
  /// `allIsRead` says that its user has written nothing that is unread, so that what comes is the echo of what we wrote.
  public static func refresh(_ master: Int32, allIsRead: Bool) throws(SystemError) {
    let isFree = isHungUp(master)
    // Nobody is there whose settings it could overrun; to come in between he would have to open and set it within a call.
    let didEcho = isFree ? try makeRaw(master) : false
    tcflush(master, TCOFLUSH)  // what is on its way to the slave
    let slave = try openSlave(of: master)
    tcflush(slave.raw, TCIFLUSH)  // TCSETSF on the master would do it too, but waits for whoever is writing
    guard isFree else { return }
    if didEcho && allIsRead {
      tcflush(slave.raw, TCOFLUSH)
      tcflush(master, TCIFLUSH)
    }
    _ = ioctl(slave.raw, UInt(TIOCNXCL), 0)
    tcflow(slave.raw, TCOON)  // output that was stopped would stay so
  }

  /// On a master, settings are the slave's (ioctl_tty(2)). Whether it echoed before.
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
