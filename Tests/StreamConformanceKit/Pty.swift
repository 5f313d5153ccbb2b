// A serial device in memory: the test holds the master end, and the code under test opens the slave by its path.

import ByteStreams
import CLinux
import Glibc

/// A pty pair with a raw slave without echo, like a serial port.
public struct Pty: Sendable {
  /// The device's side: the slave's reader gets what is sent here.
  public let master: FarEnd
  /// For example "/dev/pts/7". Another pty may get this name as soon as this one is gone.
  public let node: String
  /// A link to `node`, removed before `node` is: code that waits for the device to return never gets another test's
  /// pty.
  public let path: String
  private let folder: TemporaryFolder
  // Kept open so that the master sees no hang-up between the slave's users, as with a serial port.
  private let holder: FarEnd

  /// Opens the slave: non-blocking, and never the test's controlling terminal.
  public func openSlave() throws(SystemError) -> Descriptor {
    let raw = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)
    guard raw >= 0 else { throw SystemError("open") }
    return Descriptor(owning: raw)
  }

  /// Unplugs the device: every user of the slave sees a hang-up, and the path is gone.
  public func unplug() {
    unlink(path)
    holder.close()
    master.close()
  }

  /// From now on the master sees when the last user of the slave closes it.
  public func letGo() { holder.close() }

  /// Plays the device for one user of the slave, from open to close. Blocks, up to ten seconds for each.
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

/// Makes a pty, which lives as long as the value.
public func makePty() throws(SystemError) -> Pty {
  var name = [CChar](repeating: 0, count: 64)
  let master = linux_open_pty(&name, name.count)
  guard master >= 0 else { throw SystemError("posix_openpt") }
  return try Pty(master: Descriptor(owning: master), node: nodeOfNewPty(name))
}

/// The node name from linux_open_pty. A parallel test may have just closed a pty of the same number, and its lock file
/// is removed last: waits for that.
public func nodeOfNewPty(_ name: [CChar]) -> String {
  let node = String(decoding: name.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
  let lock = "/var/lock/LCK..\(node.dropFirst(5).replacing("/", with: "_"))"
  for _ in 0..<Patience.milliseconds where access(lock, F_OK) == 0 { usleep(1000) }
  return node
}
