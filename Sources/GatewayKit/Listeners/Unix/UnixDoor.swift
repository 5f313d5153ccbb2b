// A listening unix socket and its file. The listener and the control socket use it. Everything here may block, for the file may lie
// in a file system that hangs: for a queue, never for a lane.

import ByteStreams
import CLinux
import Glibc
import StreamBroker

struct UnixDoor: Sendable {
  let socket: DescriptorParcel
  private let raw: Int32
  /// Nil where the file is not ours to remove.
  private let file: (path: String, identity: FileIdentity)?

  var isInherited: Bool { file == nil }

  /// A listener's part in a socket that somebody else has bound. Its file and its rights are their matter.
  static func inherited(_ socket: InheritedSockets.Socket) throws(OpenFailure) -> UnixDoor {
    do throws(SystemError) {
      let copy = try socket.duplicate()
      return UnixDoor(socket: DescriptorParcel(copy), raw: socket.raw, file: nil)
    } catch {
      throw OpenFailure(error.call, error)
    }
  }

  /// Binds and listens at `path`. A socket's file that nobody has bound is left over from a crash and makes way; anything else
  /// stays, and is EADDRINUSE. With `replacingDead` also a socket that takes no more clients, though somebody has it open. `afterBind` is
  /// for tests: what other users may do at that moment.
  static func open(
    _ path: String, _ ownership: NodeOwnership, queue: Int32, replacingDead: Bool = false, afterBind: () -> Void = {}
  ) throws(OpenFailure) -> UnixDoor {
    let socket: Descriptor
    do throws(SystemError) {
      socket = try bound(to: path, mayBeDead: replacingDead)
    } catch {
      throw OpenFailure("\(error.call) \(path)", error, advice: advice(error))
    }
    afterBind()
    // Nobody can connect before listen(2), so the file needs no other name until then, nor the process's umask a change: between
    // the two calls it is given to those it is for. Where others may write to the folder the name may be something else's by now,
    // so it is opened once, looked at, and changed by its descriptor.
    let file = try node(at: path)
    let raw = socket.raw
    let door = UnixDoor(socket: DescriptorParcel(socket), raw: raw, file: (path, file.identity))
    do throws(OpenFailure) {
      try ownership.apply(to: file.node.raw, at: path)
      guard listen(door.raw, queue) == 0 else { throw OpenFailure("listen \(path)", SystemError("listen")) }
    } catch {
      door.removeFile()
      throw error
    }
    return door
  }

  private struct Node: ~Copyable {
    let node: Descriptor
    let identity: FileIdentity
  }

  /// The file of a socket that we have just bound.
  private static func node(at path: String) throws(OpenFailure) -> Node {
    let raw = linux_open_path(AT_FDCWD, path)
    guard raw >= 0 else { throw OpenFailure("open \(path)", SystemError("open"), advice: "somebody has removed it") }
    let node = Descriptor(owning: raw)
    var status = stat()
    guard fstat(node.raw, &status) == 0 else { throw OpenFailure("stat \(path)", SystemError("stat")) }
    guard status.st_mode & S_IFMT == S_IFSOCK, status.st_nlink == 1, status.st_uid == geteuid() else {
      throw OpenFailure(
        "open \(path)", nil,
        advice: "somebody has put something else in its place; the folder should be the gateway's own")
    }
    return Node(node: node, identity: FileIdentity(status))
  }

  private static func bound(to path: String, mayBeDead: Bool) throws(SystemError) -> Descriptor {
    let raw = linux_socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
    guard raw >= 0 else { throw SystemError("socket") }
    let socket = Descriptor(owning: raw)
    try bind(raw, to: path, mayBeDead: mayBeDead)
    return socket
  }

  /// Removes the file, unless somebody else has put another in its place.
  func removeFile() {
    guard let file else { return }
    _ = try? OpenFolder.remove(file.path) { FileIdentity($0) == file.identity }
  }

  /// False when the file is gone, or another has its name. One that can't be looked at counts as there.
  var isThere: Bool {
    guard let file else { return true }
    if let found = FileIdentity(file.path) { return found == file.identity }
    return errno != ENOENT
  }

  private static func bind(_ raw: Int32, to path: String, mayBeDead: Bool) throws(SystemError) {
    let address = UnixAddress.path(path)
    if try address.withSockaddr({ Glibc.bind(raw, $0, $1) }) == 0 { return }
    let error = SystemError("bind")
    guard error.errno == EADDRINUSE, let file = FileIdentity(path), file.isSocket else { throw error }
    var isLeftOver = try refuses(address, asking: SOCK_DGRAM)
    if !isLeftOver && mayBeDead { isLeftOver = try refuses(address, asking: SOCK_STREAM) }
    guard isLeftOver else { throw error }
    // Once more: another gateway may have put its own there.
    try OpenFolder.remove(path) { FileIdentity($0) == file }
    guard try address.withSockaddr({ Glibc.bind(raw, $0, $1) }) == 0 else { throw SystemError("bind") }
  }

  /// Asked by a socket of another type: one that is bound answers EPROTOTYPE, whether it listens already or not, and does not
  /// notice. Only a file without a socket refuses. By one of its own type also a socket that was shut down, and one that works accepts.
  private static func refuses(_ address: UnixAddress, asking type: __socket_type) throws(SystemError) -> Bool {
    let raw = linux_socket(AF_UNIX, Int32(type.rawValue), 0)
    guard raw >= 0 else { throw SystemError("socket") }
    let probe = Descriptor(owning: raw)
    return try address.withSockaddr { connect(probe.raw, $0, $1) } != 0 && errno == ECONNREFUSED
  }

  private static func advice(_ error: SystemError) -> String? {
    switch error.errno {
    case ENOENT, ENOTDIR: "its folder has to be there"
    case EACCES, EPERM, EROFS: "the folder has to be writable for the gateway's user"
    case EADDRINUSE: "another program listens there, or it is another kind of file; only sockets left over are replaced"
    default: nil
    }
  }
}

/// Which file it is that has a name now.
struct FileIdentity: Equatable, Sendable {
  let device: dev_t
  /// ext4 gives it to the next file as soon as this one is removed and its socket closed.
  let number: ino_t
  let isSocket: Bool
  /// Of a socket that is when it was made: connecting and writing leave it alone.
  private let modified: Int64

  /// Nil when there is none. Links are not followed.
  init?(_ path: String) { self.init(OpenFolder.Name(path)) }

  init?(_ name: OpenFolder.Name) {
    guard let status = name.status else { return nil }
    self.init(status)
  }

  init(_ status: stat) {
    device = status.st_dev
    number = status.st_ino
    isSocket = status.st_mode & S_IFMT == S_IFSOCK
    modified = Int64(status.st_mtim.tv_sec) * 1_000_000_000 + Int64(status.st_mtim.tv_nsec)
  }

  /// Whether two names lead to one file, as through /var/run and /run.
  static func isSame(_ path: String, _ other: String) -> Bool {
    guard let file = FileIdentity(path) else { return false }
    return file == FileIdentity(other)
  }
}
