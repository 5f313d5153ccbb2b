// A listening unix socket and its file. Listeners and the control socket use it. Every call here can block, if the file
// system hangs: call it on a queue, never on a lane.

import ByteStreams
import CLinux
import Glibc
import StreamBroker

struct UnixSocketFile: Sendable {
  let socket: DescriptorParcel
  private let raw: Int32
  /// Nil if we must not remove the file.
  private let file: (path: String, identity: FileIdentity)?

  var isInherited: Bool { file == nil }

  /// A duplicate of a socket that the starter has bound. The starter owns its file and the file's mode.
  static func inherited(_ socket: InheritedSockets.Socket) throws(OpenFailure) -> UnixSocketFile {
    do throws(SystemError) {
      let copy = try socket.duplicate()
      return UnixSocketFile(socket: DescriptorParcel(copy), raw: socket.raw, file: nil)
    } catch {
      throw OpenFailure(error.call, error)
    }
  }

  /// Binds and listens at `path`. A socket file without a bound socket is left over from a crash and is replaced; any
  /// other file stays, and the error is EADDRINUSE. `replacingDead` also replaces a socket that is open somewhere but
  /// accepts no more clients. `afterBind` is for tests: what other users may do at that moment.
  static func open(
    _ path: String, _ ownership: NodeOwnership, queue: Int32, replacingDead: Bool = false, afterBind: () -> Void = {}
  ) throws(OpenFailure) -> UnixSocketFile {
    let socket: Descriptor
    do throws(SystemError) {
      socket = try bound(to: path, mayBeDead: replacingDead)
    } catch {
      throw OpenFailure("\(error.call) \(path)", error, advice: advice(error))
    }
    afterBind()
    // No client can connect before listen(2), so owner and mode are set between the two calls: no temporary name and no
    // change of the umask are needed. If others may write to the folder, the name may already lead to another file. So
    // the file is opened once, checked, and changed through its descriptor.
    let file = try node(at: path)
    let raw = socket.raw
    let socketFile = UnixSocketFile(socket: DescriptorParcel(socket), raw: raw, file: (path, file.identity))
    do throws(OpenFailure) {
      try ownership.apply(to: file.node.raw, at: path)
      guard listen(socketFile.raw, queue) == 0 else { throw OpenFailure("listen \(path)", SystemError("listen")) }
    } catch {
      socketFile.removeFile()
      throw error
    }
    return socketFile
  }

  private struct Node: ~Copyable {
    let node: Descriptor
    let identity: FileIdentity
  }

  /// Opens the file of a socket that we have just bound, and checks that it is ours.
  private static func node(at path: String) throws(OpenFailure) -> Node {
    let raw = linux_open_path(AT_FDCWD, path)
    guard raw >= 0 else { throw OpenFailure("open \(path)", SystemError("open"), advice: "the file was removed") }
    let node = Descriptor(owning: raw)
    var status = stat()
    guard fstat(node.raw, &status) == 0 else { throw OpenFailure("stat \(path)", SystemError("stat")) }
    guard status.st_mode & S_IFMT == S_IFSOCK, status.st_nlink == 1, status.st_uid == geteuid() else {
      throw OpenFailure(
        "open \(path)", nil,
        advice: "the file was replaced by another; use a folder that only the gateway's user can write")
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

  /// Removes the file, unless it was replaced by another.
  func removeFile() {
    guard let file else { return }
    _ = try? SharedFolder.remove(file.path) { FileIdentity($0) == file.identity }
  }

  /// False if the file was removed or replaced; true if that can't be checked.
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
    // Remove only the file that was checked: another gateway may have created its own since.
    try SharedFolder.remove(path) { FileIdentity($0) == file }
    guard try address.withSockaddr({ Glibc.bind(raw, $0, $1) }) == 0 else { throw SystemError("bind") }
  }

  /// Whether connecting to the file fails with ECONNREFUSED. With SOCK_DGRAM a bound stream socket answers EPROTOTYPE,
  /// listening or not, and does not notice; only a file without a socket refuses. With SOCK_STREAM a socket that was
  /// shut down refuses too, but a working one accepts the connection.
  private static func refuses(_ address: UnixAddress, asking type: __socket_type) throws(SystemError) -> Bool {
    let raw = linux_socket(AF_UNIX, Int32(type.rawValue), 0)
    guard raw >= 0 else { throw SystemError("socket") }
    let probe = Descriptor(owning: raw)
    return try address.withSockaddr { connect(probe.raw, $0, $1) } != 0 && errno == ECONNREFUSED
  }

  private static func advice(_ error: SystemError) -> String? {
    switch error.errno {
    case ENOENT, ENOTDIR: "create its folder first"
    case ELOOP: "symbolic links lead in a circle"
    case ENOSPC, EDQUOT: "the file system is full"
    case ENAMETOOLONG: "a socket's path has \(UnixAddress.mostBytes) bytes at most; use a shorter one"
    case EMFILE, ENFILE: "the limit of open files is reached; raise LimitNOFILE= or fs.file-max"
    case EACCES, EPERM, EROFS: "the gateway's user must be able to write to its folder"
    case EADDRINUSE: "another program listens there, or it is another kind of file; only unused sockets are replaced"
    default: nil
    }
  }
}

/// The identity of the file that a name leads to.
struct FileIdentity: Equatable, Sendable {
  let device: dev_t
  /// Inode number. ext4 reuses it for the next file once this one is removed and its socket closed.
  let number: ino_t
  let isSocket: Bool
  /// Modification time. For a socket this is when it was created: connecting and writing don't change it.
  private let modifiedSecond: Int
  private let modifiedNanosecond: Int

  /// Nil if there is no such file. Symbolic links are not followed.
  init?(_ path: String) { self.init(SharedFolder.Name(path)) }

  init?(_ name: SharedFolder.Name) {
    guard let status = name.status else { return nil }
    self.init(status)
  }

  init(_ status: stat) {
    device = status.st_dev
    number = status.st_ino
    isSocket = status.st_mode & S_IFMT == S_IFSOCK
    modifiedSecond = status.st_mtim.tv_sec
    modifiedNanosecond = status.st_mtim.tv_nsec
  }

  /// Whether two names lead to one file, as through /var/run and /run.
  static func isSame(_ path: String, _ other: String) -> Bool {
    guard let file = FileIdentity(path) else { return false }
    return file == FileIdentity(other)
  }
}
