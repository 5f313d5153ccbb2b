// The programs' side of a pty as we see it: what they have not read yet, and whether anybody is there. Used on the pty's
// queue, where closing and opening may block.

import ByteStreams
import CLinux
import Glibc
import Synchronization

final class PtyPeer: Sendable {
  /// "/dev/pts/7"
  private let path: String
  // The slave, open ourselves: nothing else tells what waits in it, and the master sees no hang-up as long as it is.
  private let slave: Mutex<Slave>

  private struct Slave: ~Copyable {
    var descriptor: Descriptor?
    /// Its number; -1, which no call takes for one, where there is none.
    var raw: Int32 = -1
  }

  init(_ pty: Pseudoterminal) {
    path = pty.path
    let descriptor = pty.slave.take()!  // nobody else has seen the parcel
    let raw = descriptor.raw
    slave = Mutex(Slave(descriptor: descriptor, raw: raw))
  }

  /// Bytes that wait for a program. None too when no program has the pty open and that was asked, with `master`: who is not
  /// there reads nothing.
  func unread(askingWhoIsThereBy master: Int32? = nil) -> Int {
    var count: Int32 = 0
    guard slave.withLock({ ioctl($0.raw, UInt(FIONREAD), &count) }) == 0 else { return 0 }
    guard count > 0, let master else { return Int(count) }
    return isAnybodyThere(master) ? Int(count) : 0
  }

  /// There is no call that says so. A master whose slave nobody has open has hung up: close ours, look, and open it again.
  private func isAnybodyThere(_ master: Int32) -> Bool {
    liftExclusion()  // or opening again might be refused
    return slave.withLock { slave in
      slave = Slave()
      var watched = pollfd(fd: master, events: 0, revents: 0)
      let hasHungUp = poll(&watched, 1, 0) == 1 && Int32(watched.revents) & POLLHUP != 0
      let raw = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)
      if raw >= 0 { slave = Slave(descriptor: Descriptor(owning: raw), raw: raw) }
      return !hasHungUp
    }
  }

  /// A serial port forgets TIOCEXCL at its last close. A pty would keep it while its master lives, and shut out everybody
  /// but root for good.
  func liftExclusion() { _ = slave.withLock { ioctl($0.raw, UInt(TIOCNXCL), 0) } }

  func close() { slave.withLock { $0 = Slave() } }
}
