// A serial device in memory: the test holds the master end, the code under test opens the slave by its path.

import ByteStreams
import CLinux
import Glibc

/// A pty pair whose slave is raw and without echo, as a serial port is.
public struct Pty: Sendable {
  /// The device's side: what is sent here the slave's reader gets.
  public let master: FarEnd
  /// "/dev/pts/7": somebody else's as soon as this pty is gone.
  public let node: String
  /// A link to it, gone before it is: who waits for the device to come back does not get another test's.
  public let path: String
  private let folder: TemporaryFolder
  // Kept open so that the master does not hang up between the slave's users, as a serial port does not.
  private let holder: FarEnd

  /// Opens the slave: non-blocking, and never the test's controlling terminal.
  public func openSlave() throws(SystemError) -> Descriptor {
    let raw = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)
    guard raw >= 0 else { throw SystemError("open") }
    return Descriptor(owning: raw)
  }

  /// Pulls the device out: whoever has the slave open sees a hang-up, and the path is gone.
  public func unplug() {
    unlink(path)
    holder.close()
    master.close()
  }

  /// Lets the master see when the last user of the slave has closed it.
  public func letGo() { holder.close() }

  /// Plays the device's part for one user of the slave, from its opening to its close. Blocks, at most ten seconds each.
  public func play(_ part: FarPart) throws {
    letGo()
    try master.waitWhileHungUp()
    try master.play(part)
  }

  fileprivate init(master: consuming Descriptor, node: String) throws(SystemError) {
    self.master = FarEnd(master, isSocket: false)
    self.node = node
    folder = try TemporaryFolder()
    path = folder / "pty"
    guard symlink(node, path) == 0 else { throw SystemError("symlink") }
    let raw = open(node, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)
    guard raw >= 0 else { throw SystemError("open") }
    let slave = Descriptor(owning: raw)
    var settings = termios()
    guard tcgetattr(slave.raw, &settings) == 0 else { throw SystemError("tcgetattr") }
    cfmakeraw(&settings)
    guard tcsetattr(slave.raw, TCSANOW, &settings) == 0 else { throw SystemError("tcsetattr") }
    holder = FarEnd(slave, isSocket: false)
  }
}

/// Makes a pty; it is gone when the value is.
public func makePty() throws(SystemError) -> Pty {
  var name = [CChar](repeating: 0, count: 64)
  let master = linux_open_pty(&name, name.count)
  guard master >= 0 else { throw SystemError("posix_openpt") }
  return try Pty(master: Descriptor(owning: master), node: nodeOfNewPty(name))
}

/// What linux_open_pty says. The new pty may have the number of one that a test beside this one has just closed, and whose
/// lock file goes last: waits for that.
public func nodeOfNewPty(_ name: [CChar]) -> String {
  let node = String(decoding: name.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
  let lock = "/var/lock/LCK..\(node.dropFirst(5).replacing("/", with: "_"))"
  for _ in 0..<5000 where access(lock, F_OK) == 0 { usleep(1000) }
  return node
}
