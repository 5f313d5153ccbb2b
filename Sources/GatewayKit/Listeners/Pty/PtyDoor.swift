// A pty that programs open, with its symbolic link and a watch that tells of openings. Made and left where it may block: on a
// queue, never on a lane.

import ByteStreams
import CLinux
import Glibc
import StreamBroker

struct PtyDoor: Sendable {
  /// The number of our side, which is hung up while nobody has the pty open.
  let master: Int32
  /// Tells of each opening of the programs' side.
  let opens: Inotify
  private let parcel: DescriptorParcel
  private let name: PtyName

  /// With `old`, another of our own makes way.
  static func open(
    _ path: String, _ ownership: NodeOwnership, replacing old: PtyDoor?
  ) throws(OpenFailure) -> PtyDoor {
    let pty = try Pseudoterminal.make(LineSettings(), ownership)
    _ = pty.slave.take()  // with it open, nobody would see users go
    let master = pty.master.take()!  // nobody else has seen the parcel
    let opens: Inotify
    do throws(SystemError) {
      opens = try Inotify.open().get()
      try opens.watch(pty.path, IN_OPEN)
    } catch {
      let isShort = error.errno == EMFILE || error.errno == ENOSPC
      throw OpenFailure(
        "\(error.call) \(pty.path)", error, advice: isShort ? "raise fs.inotify.max_user_instances or …_watches" : nil)
    }
    // The link last: who finds it finds everything in order.
    let name = try PtyName.place(path, leadingTo: pty.path, replacing: old?.name)
    let raw = master.raw
    return PtyDoor(master: raw, opens: opens, parcel: DescriptorParcel(master), name: name)
  }

  /// Somebody has it open, or had and left something to read.
  var isInUse: Bool { !PtyMaster.isHungUp(master) || PtyMaster.hasInput(master) }

  /// A descriptor of its own for a client's stream, which may outlive the door.
  func duplicate() throws(SystemError) -> Descriptor {
    let raw = fcntl(master, F_DUPFD_CLOEXEC, 0)
    guard raw >= 0 else { throw SystemError("fcntl") }
    return Descriptor(owning: raw)
  }

  /// Whether its link is there still. One that can't be looked at counts as there.
  var isThere: Bool { name.isThere || FileIdentity(name.path) == nil && errno != ENOENT }

  /// Clears it of whatever somebody left who is gone. Whether it can serve the next one; if not, it takes another pty.
  func refresh() -> Bool {
    let isGood = (try? PtyMaster.refresh(master, allIsRead: !PtyMaster.hasInput(master))) != nil || isInUse
    _ = wasOpened()  // by us
    return isGood
  }

  /// Whether it was opened since this was last asked. How often means nothing: inotify makes one of equal events.
  func wasOpened() -> Bool { opens.read { _, _, _ in true } }

  /// Whoever has it open is hung up on, unless a client's stream goes on.
  func leave(on queue: DeviceQueue) {
    name.remove()
    _ = parcel.take()
    opens.close(on: queue.queue)
  }
}
