// The file of bonds on disk: read whole, written anew beside its place and moved there. All of it may block.

import ByteStreams
import Glibc

struct BondStore: Sendable {
  /// Why it can't be used. It is left as it is then, however little it may be worth.
  enum Fault: Error, Hashable, Sendable, CustomStringConvertible {
    case file(path: String, SystemError)
    case isNoFile(path: String)
    case othersMayRead(path: String)
    case content(path: String, BondFile.Problem)
    case isFull(path: String, most: Int)
    case isInUse(path: String)

    var description: String {
      switch self {
      case .file(let path, let error): "\(path): \(error)"
      case .isNoFile(let path): "\(path): is no plain file"
      case .othersMayRead(let path): "\(path): others than its owner may use it, and there are keys in it; chmod 600 it"
      case .content(let path, let problem):
        "\(path):\(problem.line): \(problem.message); mend that line, or remove it and pair the device again"
      case .isFull(let path, let most):
        "\(path): has \(most) bonds, and takes no more\(most < BondFile.mostBonds ? " of devices that call" : ""); "
          + "remove those that are no longer needed"
      case .isInUse(let path):
        "\(path): another process holds the lock of its folder, is one of them stopped? ('fuser -v' with the folder tells)"
      }
    }
  }

  let path: String
  /// For another process of ours, which writes it in a moment, unless it was stopped meanwhile.
  var lockPatience = Duration.seconds(5)
  private static let betweenTries = Duration.milliseconds(20)

  /// Empty where there is no file yet.
  func read() throws(Fault) -> BondFile {
    // Not through a link, and not waiting for what may be a pipe.
    let raw = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)
    if raw < 0 {
      switch errno {
      case ENOENT: return BondFile()
      case ELOOP: throw .isNoFile(path: path)
      default: throw fault("open")
      }
    }
    let file = Descriptor(owning: raw)
    var state = stat()
    guard fstat(file.raw, &state) == 0 else { throw fault("fstat") }
    guard state.st_mode & S_IFMT == S_IFREG else { throw .isNoFile(path: path) }
    guard state.st_mode & 0o077 == 0 else { throw .othersMayRead(path: path) }
    var bytes: [UInt8] = []
    var chunk = [UInt8](repeating: 0, count: 16 << 10)
    while bytes.count <= BondFile.mostBytes {
      let count = Glibc.read(file.raw, &chunk, chunk.count)
      if count < 0, errno == EINTR { continue }
      if count < 0 { throw fault("read") }
      if count == 0 { break }
      bytes += chunk[..<count]
    }
    do throws(BondFile.Problem) { return try BondFile(bytes) } catch { throw .content(path: path, error) }
  }

  /// Reads it, takes a key in and writes it, while no other process of ours does. A device that is new to it is one of `most`.
  func keep(
    _ key: BondKey, of device: PairedAddress, with adapter: BluetoothAddress, most: Int = BondFile.mostBonds
  ) throws(Fault) {
    let folder = try openFolder()
    // Both `serve` and `connect` hear of each key. The lock goes with the descriptor.
    let end = monotonicNanoseconds() &+ lockPatience.nanoseconds
    while flock(folder.raw, LOCK_EX | LOCK_NB) != 0 {
      guard errno == EINTR || errno == EWOULDBLOCK else { throw fault("flock") }
      guard monotonicNanoseconds() < end else { throw .isInUse(path: path) }
      usleep(UInt32(Self.betweenTries.nanoseconds / 1000))
    }
    let old = try read()
    var new = old
    guard new.keep(key, of: device, with: adapter, most: most) else { throw .isFull(path: path, most: most) }
    if new != old { try write(new.encoded, in: folder.raw) }
  }

  /// Whether keys can be kept here; makes the folder where there is none.
  func checkThatItCanBeWritten() throws(Fault) {
    let folder = try openFolder()
    guard faccessat(folder.raw, ".", W_OK | X_OK, AT_EACCESS) == 0 else { throw fault("write") }
  }

  private func openFolder() throws(Fault) -> Descriptor {
    let parts = path.split(separator: "/")
    let folder = (path.hasPrefix("/") ? "/" : "./") + parts.dropLast().joined(separator: "/")
    if mkdir(folder, 0o700) != 0, errno != EEXIST { throw .file(path: folder, SystemError("mkdir")) }
    let raw = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    guard raw >= 0 else { throw .file(path: folder, SystemError("open")) }
    return Descriptor(owning: raw)
  }

  private var name: String { String(path.split(separator: "/").last ?? "bonds") }

  /// Either the old file is there or the new one, also when the power fails.
  private func write(_ bytes: [UInt8], in folder: Int32) throws(Fault) {
    let temporary = ".\(name).new"
    // One that a process left behind when it was killed.
    unlinkat(folder, temporary, 0)
    let raw = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0o600)
    guard raw >= 0 else { throw fault("open") }
    let file = Descriptor(owning: raw)
    do throws(Fault) {
      // What root writes as `baudway connect` is to be read by the service, whose folder it is. Root of a container may not, and
      // has a folder of its own.
      var owner = stat()
      if geteuid() == 0, fstat(folder, &owner) == 0, owner.st_uid != 0,
        fchown(file.raw, owner.st_uid, owner.st_gid) != 0
      {
        throw fault("fchown")
      }
      guard fchmod(file.raw, 0o600) == 0 else { throw fault("fchmod") }
      do throws(SystemError) {
        try writeAll(bytes, to: file.raw)
      } catch {
        throw .file(path: path, error)
      }
      guard fsync(file.raw) == 0 else { throw fault("fsync") }
      guard renameat(folder, temporary, folder, name) == 0 else { throw fault("rename") }
      // The new file is there already; some file systems can't do this.
      fsync(folder)
    } catch {
      unlinkat(folder, temporary, 0)
      throw error
    }
  }

  private func fault(_ call: String) -> Fault { .file(path: path, SystemError(call)) }
}
