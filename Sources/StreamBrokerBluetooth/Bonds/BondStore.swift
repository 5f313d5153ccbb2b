// The bond file on disk: read as a whole, written to a temporary file that is renamed over it. All calls may block.

import ByteStreams
import Glibc

struct BondStore: Sendable {
  /// Why the file can't be used. It is then not changed, even if its content is worthless.
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
      case .isNoFile(let path): "\(path): is not a regular file"
      case .othersMayRead(let path): "\(path): other users may access it, and it contains keys; run chmod 600 on it"
      case .content(let path, let problem):
        "\(path):\(problem.line): \(problem.message); fix that line, or remove it and pair the device again"
      case .isFull(let path, let most):
        "\(path): has \(most) bonds, and no more are kept\(most < BondFile.mostBonds ? " for devices that connect to listeners" : ""); "
          + "remove those that are no longer needed"
      case .isInUse(let path):
        "\(path): another process holds the lock of its folder, perhaps a stopped one; 'fuser -v' with the folder shows it"
      }
    }
  }

  let path: String
  /// How long to wait for another process of ours: it writes within a moment, unless it was stopped.
  var lockPatience = Duration.seconds(5)
  private static let betweenTries = Duration.milliseconds(20)

  /// Empty if there is no file yet.
  func read() throws(Fault) -> BondFile {
    // Follow no symbolic link, and do not wait if the path is a pipe.
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

  /// Reads the file, adds a key and writes it, under a lock against our other processes. A device that is new to the
  /// file counts towards `most`.
  func keep(
    _ key: BondKey, of device: PairedAddress, with adapter: BluetoothAddress, most: Int = BondFile.mostBonds
  ) throws(Fault) {
    let folder = try openFolder()
    // Both `serve` and `connect` receive each key. Closing the descriptor releases the lock.
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

  /// Checks that keys can be kept here. Creates the folder if there is none.
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

  /// Leaves either the old file or the new one, even when the power fails.
  private func write(_ bytes: [UInt8], in folder: Int32) throws(Fault) {
    let temporary = ".\(name).new"
    // Left over from a process that was killed.
    unlinkat(folder, temporary, 0)
    let raw = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0o600)
    guard raw >= 0 else { throw fault("open") }
    let file = Descriptor(owning: raw)
    do throws(Fault) {
      // The service must be able to read what root writes with `baudway connect`, so the file gets the folder's owner.
      // Root in a container may not change owners, but its folder is its own.
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
      // Its result does not matter: the new file is in place, and some file systems can't do this.
      fsync(folder)
    } catch {
      unlinkat(folder, temporary, 0)
      throw error
    }
  }

  private func fault(_ call: String) -> Fault { .file(path: path, SystemError(call)) }
}
