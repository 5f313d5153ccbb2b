// A pty that programs open, with its symbolic link. Creating and removing it may block: do both on a queue, never on a
// lane.

import ByteStreams
import CLinux
import Glibc
import StreamBroker

struct PtyDevice: Sendable {
  /// Our side; it reports POLLHUP while no program has the pty open.
  let master: Int32
  /// The programs' side, which they open: "/dev/pts/7".
  let slave: String
  private let parcel: DescriptorParcel
  private let name: PtyName
  /// Those that it had when it was made.
  let settings: PtySettings

  /// The pty shows `settings`. `old` is another pty of ours, whose link is replaced.
  static func open(
    _ path: String, _ ownership: NodeOwnership, _ settings: PtySettings, replacing old: PtyDevice?
  ) throws(OpenFailure) -> PtyDevice {
    let pty = try Pseudoterminal.make(LineSettings(settings), ownership)
    _ = pty.slave.take()  // while the slave is open here, no hang-up of a program is reported
    let master = pty.master.take()!  // nothing else has used the parcel
    // The link comes last: a program that finds it finds the pty ready.
    let name = try PtyName.link(path, leadingTo: pty.path, replacing: old?.name)
    let raw = master.raw
    return PtyDevice(
      master: raw, slave: pty.path, parcel: DescriptorParcel(master), name: name, settings: settings)
  }

  /// A program has it open, or had it open and left unread input.
  var isInUse: Bool { !PtyMaster.isHungUp(master) || PtyMaster.hasInput(master) }

  /// A descriptor for a client's stream, which may outlive the listener.
  func duplicate() throws(SystemError) -> Descriptor {
    let raw = fcntl(master, F_DUPFD_CLOEXEC, 0)
    guard raw >= 0 else { throw SystemError("fcntl") }
    return Descriptor(owning: raw)
  }

  /// Whether its link still exists; true if that can't be checked.
  var isThere: Bool { name.isThere || FileIdentity(name.path) == nil && errno != ENOENT }

  /// Discards what the last program left behind. Opens the pty for a moment. Returns whether the next program can use
  /// it; if not, replace the pty.
  func refresh() -> Bool {
    (try? PtyMaster.refresh(master, allIsRead: !PtyMaster.hasInput(master))) != nil || isInUse
  }

  /// Shows `settings`, unless a program has it open.
  func show(_ settings: PtySettings) { if PtyMaster.isHungUp(master) { settings.show(at: master) } }

  /// Closes the pty. A program that has it open gets a hang-up, unless a client's stream still holds a descriptor.
  func leave() {
    name.remove()
    _ = parcel.take()
  }
}

extension LineSettings {
  fileprivate init(_ pty: PtySettings) {
    self.init(
      bitsPerSecond: pty.bitsPerSecond, stopBits: pty.hasTwoStopBits ? .two : .one,
      flowControl: pty.usesXonXoff ? .xonxoff : .none)
  }
}
