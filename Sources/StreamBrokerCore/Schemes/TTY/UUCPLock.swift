// The traditional lock files that mark a port as in use, such as /var/lock/LCK..ttyUSB0. Each contains a process number
// (HDB format: ten characters and a line feed). minicom, picocom, cu and ser2net know them. They bind only programs
// that check them, so flock and TIOCEXCL are used, too. They are files: use them on the port's queue only.

import ByteStreams
import CLinux
import Glibc
import Synchronization

/// The locks of all ports that this process has open.
package enum PortLocks {
  /// Removes the lock files, even of ports that are still being closed: otherwise they would remain if a driver hangs.
  /// Call it only right before the process ends: afterwards other programs see these ports as free.
  package static func letGoOfAll() { UUCPLock.letGoOfAll() }
}

/// A lock of ours. Call `letGo` when the port is closed, on the port's queue; at the latest it ends with the value.
final class UUCPLock: Sendable {
  private let path: String

  /// By path: the lock that owns the file.
  fileprivate typealias Held = [String: ObjectIdentifier]

  // The locks of this process. A file with our number that is not among them was left by an earlier process, as in a
  // container, where every gateway is process 1.
  private static let held = Mutex<Held>([:])

  /// The file already exists.
  fileprivate init(_ path: String, _ held: inout Held) {
    self.path = path
    held[path] = ObjectIdentifier(self)
  }

  deinit { letGo() }

  /// Removes the file. A close must call it before it counts as finished, even if something still has the value. The
  /// second call does nothing.
  func letGo() {
    Self.held.withLock { held in
      guard held[path] == ObjectIdentifier(self) else { return }
      Self.remove(path, &held)
    }
  }

  fileprivate static func letGoOfAll() {
    held.withLock { held in for path in held.keys { remove(path, &held) } }
  }

  private static func remove(_ path: String, _ held: inout Held) {
    // After another program's mistake, the file may belong to that program.
    _ = try? SharedFolder.remove(path) { UUCPLocks.pid(in: $0) == getpid() }
    held[path] = nil
  }

  /// Runs code that checks or makes lock files, one call at a time in this process, so that its own locks do not
  /// conflict. Between processes only the file system decides.
  fileprivate static func alone<Answer: Sendable>(
    _ body: (inout Held) throws(OpenFailure) -> Answer
  ) throws(OpenFailure) -> Answer {
    try held.withLock { held throws(OpenFailure) in try body(&held) }
  }
}

struct UUCPLocks: Sendable {
  /// The folder of the lock files. If there is none, or it is not writable, there are no locks, and that is no error.
  let folder: String

  /// The folders of the FHS: the first that exists. On most systems one is a link to the other.
  static var system: UUCPLocks {
    UUCPLocks(folder: ["/var/lock", "/run/lock"].first { access($0, F_OK) == 0 } ?? "/var/lock")
  }

  /// Locks the port at `path`, which leads to `node`. Throws if a running process has it, and names the process. Nil if
  /// no lock can be made.
  func take(_ path: String, leadingTo node: String) throws(OpenFailure) -> UUCPLock? {
    // Other programs may use the name of the link they were given. Ours is the node's name, to which all links lead.
    let ours = "\(folder)/LCK..\(Self.names(of: node)[0])"
    let others = Self.names(of: path, leadingTo: node).map { "\(folder)/\($0)" }
    return try UUCPLock.alone { held throws(OpenFailure) in
      for other in others where other != ours {
        if case .held(let holder) = look(other, held) { throw failure(path, holder, other) }
      }
      for _ in 0..<5 {  // several tries: another program may do the same now
        switch look(ours, held) {
        case .held(let holder): throw failure(path, holder, ours)
        case .stale: guard removeStale(ours) else { return nil }
        case .free: break
        }
        switch make(ours) {
        case .made: return UUCPLock(ours, &held)
        case .isThere: continue
        case .impossible: return nil
        }
      }
      return nil
    }
  }

  /// The names of all lock files that keep us out of the port at `path`, which leads to `node`.
  static func names(of path: String, leadingTo node: String) -> Set<String> {
    Set((names(of: path) + names(of: node)).map { "LCK..\($0)" })
  }

  /// The names that programs use: the whole path below /dev with `_` for slashes (picocom, ser2net), or the last name
  /// (minicom).
  private static func names(of path: String) -> [String] {
    let below = path.hasPrefix("/dev/") ? path.dropFirst(5) : path.dropFirst()
    return [String(below).replacing("/", with: "_"), String(FileSystem.lastName(of: path))]
  }

  // MARK: - One file

  private enum State {
    case free
    /// Its process is gone.
    case stale
    case held(pid_t?)
  }

  private func look(_ path: String, _ held: UUCPLock.Held) -> State {
    if held[path] != nil { return .held(getpid()) }  // even if another program overwrote it
    return Self.look(at: SharedFolder.Name(path))
  }

  private static func look(at name: SharedFolder.Name) -> State {
    guard let status = name.status else { return .free }
    guard let pid = pid(in: name) else {
      // It may be empty: some programs create it first and write later. Or it is no lock file.
      return status.st_mtim.tv_sec > time(nil) - 10 ? .held(nil) : .stale  // its owner may set any time
    }
    if pid == getpid() { return .stale }
    return kill(pid, 0) == 0 || errno == EPERM ? .held(pid) : .stale
  }

  /// Digits, or four bytes as in Kermit. Nil if it is neither, or not the number of a process: to kill(2), 0 and
  /// negative numbers are groups, and these always have members.
  fileprivate static func pid(in file: SharedFolder.Name) -> pid_t? {
    guard let bytes = file.beginning else { return nil }
    if bytes.count == 4, !bytes.allSatisfy({ $0 < 0x80 && $0 >= 0x0A }) {
      let pid = bytes.withUnsafeBytes { $0.loadUnaligned(as: Int32.self) }
      return pid > 0 ? pid : nil
    }
    let text = String(decoding: bytes, as: UTF8.self).split { $0.isWhitespace }.first
    return text.flatMap { pid_t($0) }.flatMap { $0 > 0 ? $0 : nil }
  }

  /// Another process that also found it stale may have put its own file there by now; that file stays.
  private func removeStale(_ path: String) -> Bool {
    do throws(SystemError) {
      try SharedFolder.remove(path) { if case .stale = Self.look(at: $0) { true } else { false } }
      return true
    } catch {
      return false
    }
  }

  private enum Making { case made, isThere, impossible }

  /// Writes the file first and links it then, so that no program ever sees it empty.
  private func make(_ path: String) -> Making {
    let draft = temporaryName()
    let raw = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o644)
    guard raw >= 0 else { return .impossible }
    let file = Descriptor(owning: raw)
    defer { unlink(draft) }
    let number = String(getpid())
    let text = Array((String(repeating: " ", count: max(0, 10 - number.count)) + number + "\n").utf8)
    guard fchmod(file.raw, 0o644) == 0, write(file.raw, text, text.count) == text.count else { return .impossible }
    if link(draft, path) == 0 { return .made }
    return errno == EEXIST ? .isThere : .impossible
  }

  private func temporaryName() -> String {
    "\(folder)/LTMP.\(getpid()).\(Self.drafts.add(1, ordering: .relaxed).newValue)"
  }
  private static let drafts = Atomic<Int>(0)

  private func failure(_ path: String, _ holder: pid_t?, _ lock: String) -> OpenFailure {
    let who = holder.map { PortHolders.text(of: PortHolders.holder(Int($0))) } ?? "another program"
    return OpenFailure("open \(path)", SystemError(Self.call, EBUSY), advice: "in use by \(who), according to \(lock)")
  }

  /// The name of the call in failures that are caused by a lock file.
  static let call = "lock"
}
