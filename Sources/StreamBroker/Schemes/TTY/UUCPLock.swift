// The lock files by which programs have told each other for forty years that a port is taken: /var/lock/LCK..ttyUSB0, which
// holds a process number (hdb format: ten digits and a line feed). minicom, picocom, cu and ser2net know them. They
// bind who asks; flock and TIOCEXCL come besides. Files, so on the port's queue only.

import ByteStreams
import CLinux
import Glibc
import Synchronization

/// The locks of all ports that this process has open.
public enum PortLocks {
  /// Removes the lock files, also of ports that are being closed still: a driver that hangs would leave them behind. Only for who
  /// ends the process, right before that; until then other programs take these ports for free.
  public static func letGoOfAll() { UUCPLock.letGoOfAll() }
}

/// A lock of ours: let go of it when the port is closed, on the port's queue; at the latest it is gone with the value.
final class UUCPLock: Sendable {
  private let path: String

  /// By path, whose each is.
  fileprivate typealias Held = [String: ObjectIdentifier]

  // What this process holds: a file with our number that is not among them was left by one before us, as in a container,
  // where everybody is process 1.
  private static let held = Mutex<Held>([:])

  /// The file is there.
  fileprivate init(_ path: String, _ held: inout Held) {
    self.path = path
    held[path] = ObjectIdentifier(self)
  }

  deinit { letGo() }

  /// The file is gone then. A closing has to say so before it counts as over, whoever still has the value. Does nothing the second time.
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
    // After a mistake of others it may be theirs.
    _ = try? OpenFolder.remove(path) { UUCPLocks.pid(in: $0) == getpid() }
    held[path] = nil
  }

  /// For those who look at lock files or make some: one at a time in this process, so that its own never get in each other's
  /// way. Among processes only the file system decides.
  fileprivate static func alone<Answer: Sendable>(
    _ body: (inout Held) throws(OpenFailure) -> Answer
  ) throws(OpenFailure) -> Answer {
    try held.withLock { held throws(OpenFailure) in try body(&held) }
  }
}

struct UUCPLocks: Sendable {
  /// Where they lie. Without any, or where it can't be written to, there are no locks, and that is no error.
  let folder: String

  /// Of the FHS; the first that is there. Most systems have one as a link to the other.
  static var system: UUCPLocks {
    UUCPLocks(folder: ["/var/lock", "/run/lock"].first { access($0, F_OK) == 0 } ?? "/var/lock")
  }

  /// Takes the port at `path`, which leads to `node`. Throws when somebody alive has it, and who; nil when no lock can be made.
  func take(_ path: String, leadingTo node: String) throws(OpenFailure) -> UUCPLock? {
    // Others may call it by the link they were given. Ours is the node's, which all links lead to.
    let ours = "\(folder)/LCK..\(Self.names(of: node)[0])"
    let others = Self.names(of: path, leadingTo: node).map { "\(folder)/\($0)" }
    return try UUCPLock.alone { held throws(OpenFailure) in
      for other in others where other != ours {
        if case .held(let holder) = look(other, held) { throw failure(path, holder, other) }
      }
      for _ in 0..<5 {  // more than one: somebody else may be as quick as we are
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

  /// What programs call it: all of the path below /dev with `_` for slashes (picocom, ser2net), or the last name (minicom).
  private static func names(of path: String) -> [String] {
    let below = path.hasPrefix("/dev/") ? path.dropFirst(5) : path.dropFirst()
    return [String(below).replacing("/", with: "_"), String(FileSystem.lastName(of: path))]
  }

  // MARK: - One file

  private enum State {
    case free
    /// Its holder is gone.
    case stale
    case held(pid_t?)
  }

  private func look(_ path: String, _ held: UUCPLock.Held) -> State {
    if held[path] != nil { return .held(getpid()) }  // whatever others wrote over it
    return Self.look(at: OpenFolder.Name(path))
  }

  private static func look(at name: OpenFolder.Name) -> State {
    guard let status = name.status else { return .free }
    guard let pid = pid(in: name) else {
      // Empty, perhaps: some make it first and write then. Or nobody's.
      return time(nil) - status.st_mtim.tv_sec < 10 ? .held(nil) : .stale
    }
    if pid == getpid() { return .stale }
    return kill(pid, 0) == 0 || errno == EPERM ? .held(pid) : .stale
  }

  /// In digits, or as four bytes, as Kermit does it. Nil when it is neither, or no process has the number: to kill(2), 0 and
  /// negative ones are groups, and there is always somebody in them.
  fileprivate static func pid(in file: OpenFolder.Name) -> pid_t? {
    guard let bytes = file.beginning else { return nil }
    if bytes.count == 4, !bytes.allSatisfy({ $0 < 0x80 && $0 >= 0x0A }) {
      let pid = bytes.withUnsafeBytes { $0.loadUnaligned(as: Int32.self) }
      return pid > 0 ? pid : nil
    }
    let text = String(decoding: bytes, as: UTF8.self).split { $0.isWhitespace }.first
    return text.flatMap { pid_t($0) }.flatMap { $0 > 0 ? $0 : nil }
  }

  /// Another process that found it stale, too, may have put its own there by now, and that stays.
  private func removeStale(_ path: String) -> Bool {
    do throws(SystemError) {
      try OpenFolder.remove(path) { if case .stale = Self.look(at: $0) { true } else { false } }
      return true
    } catch {
      return false
    }
  }

  private enum Making { case made, isThere, impossible }

  /// Written first and linked then, so that nobody ever sees it empty.
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
    return OpenFailure("open \(path)", SystemError(Self.call, EBUSY), advice: "in use by \(who), says \(lock)")
  }

  /// What failures that a lock file has caused name as their call.
  static let call = "lock"
}
