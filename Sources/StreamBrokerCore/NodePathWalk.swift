// One walk along a path, as the kernel resolves it. Puts a watch on every directory on the way, including those of
// links and their targets. NodeWatch runs it on a queue, where it may block.

import ByteStreams
import CLinux
import Glibc

struct NodePathWalk: Sendable {
  /// By watch descriptor: the names that matter in that directory.
  private(set) var names: [Int32: Set<String>] = [:]
  /// Whether the path leads to an existing file.
  private(set) var exists = false
  /// For a path that ends in `*`: the names that there are.
  private(set) var matches: Set<String> = []
  /// Why part of the path is not watched: the first error.
  private(set) var error: SystemError?
  /// Something happened during the walk, and was not noted: walk again.
  private(set) var isStale = false
  /// What the path led to: inodes, and when the node and the links on the way to it changed. Differs after a change
  /// that matters.
  private(set) var trace: [Int64] = []

  let startedAt = NodePathWalk.now()
  // The latest change of the node, or of a link that leads to it, on the same clock.
  private var newest: Int64 = 0

  // IN_ATTRIB: udev changes owner and mode after it creates the node.
  private static let mask = UInt32(
    IN_CREATE | IN_ATTRIB | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF)
  private let mask: UInt32
  private let watches: InotifyAdding?
  private static let mostLinks = 40  // the kernel's limit: path_resolution(7)

  /// `old` are the watches of the previous walk; those no longer needed are removed. Without `watches` it only looks.
  init(of path: String, watchingWith watches: InotifyAdding?, replacing old: [Int32] = [], seesWrites: Bool = false) {
    self.watches = watches
    mask = Self.mask | UInt32(IN_ONLYDIR) | (seesWrites ? UInt32(IN_CLOSE_WRITE) : 0)
    walk(path)
    for watch in old where names[watch] == nil { watches?.remove(watch) }
  }

  /// Whether the node or a link changed later than 100 ms before `time`: the change may have come between a failed
  /// opening and the watch.
  func changedAfter(_ time: Int64) -> Bool { newest > time - 100_000_000 }

  /// CLOCK_REALTIME in nanoseconds, the clock of file times.
  static func now() -> Int64 {
    var time = timespec()
    clock_gettime(CLOCK_REALTIME, &time)
    return nanoseconds(time)
  }

  private static func nanoseconds(_ time: timespec) -> Int64 {
    Int64(time.tv_sec) &* 1_000_000_000 &+ Int64(time.tv_nsec)
  }

  private mutating func walk(_ path: String) {
    var directory = "/"
    var left = Self.components(path)
    var links = 0
    while let name = left.popLast() {
      if left.isEmpty, name.hasSuffix("*") { return lookFor(name, in: directory) }
      if name == ".." {
        directory = String(directory[..<directory.lastIndex(of: "/")!])
        if directory.isEmpty { directory = "/" }
        continue
      }
      let path = directory == "/" ? "/\(name)" : "\(directory)/\(name)"
      // Watch first, then look: a change in between is seen twice instead of never.
      let watchError = watch(directory, name)
      var status = stat()
      let isThere = lstat(path, &status) == 0
      // A directory on the way that we may pass but not read is no error: the relevant names are further on.
      if let watchError, error == nil, !(isThere && !left.isEmpty && watchError.errno == EACCES) { error = watchError }
      guard isThere else { return }
      trace += [Int64(bitPattern: UInt64(status.st_dev)), Int64(bitPattern: UInt64(status.st_ino))]
      if status.st_mode & S_IFMT == S_IFLNK {
        note(status)
        links += 1
        guard links <= Self.mostLinks, let target = FileSystem.target(of: path) else { return }
        if target.hasPrefix("/") { directory = "/" }
        left += Self.components(target)
      } else if left.isEmpty {
        note(status)
        exists = true
      } else {
        guard status.st_mode & S_IFMT == S_IFDIR else { return }
        directory = path
      }
    }
  }

  private mutating func note(_ status: stat) {
    let changed = Self.nanoseconds(status.st_ctim)
    newest = max(newest, changed)
    trace.append(changed)
  }

  /// Looks for any name that begins with the text before the `*`.
  private mutating func lookFor(_ pattern: String, in directory: String) {
    error = watch(directory, pattern) ?? error
    for name in FileSystem.names(in: directory).sorted() where name.hasPrefix(pattern.dropLast()) {
      var status = stat()
      guard lstat("\(directory)/\(name)", &status) == 0 else { continue }
      note(status)
      exists = true
      matches.insert(name)
    }
  }

  /// Whether an event for `name` matters for `pattern`.
  static func isMeant(_ name: UnsafePointer<CChar>, by pattern: String) -> Bool {
    pattern.hasSuffix("*") ? strncmp(pattern, name, pattern.utf8.count - 1) == 0 : strcmp(pattern, name) == 0
  }

  /// Last first, without empty parts and `.`.
  private static func components(_ path: String) -> [String] {
    path.split(separator: "/").reversed().map(String.init).filter { $0 != "." }
  }

  private mutating func watch(_ directory: String, _ name: String) -> SystemError? {
    guard let watches else { return nil }
    do throws(SystemError) {
      let (watch, hadEvents) = try watches.add(directory, mask)
      names[watch, default: []].insert(name)
      if hadEvents { isStale = true }
      return nil
    } catch {
      // The directory is gone by now; the watch above it reports that.
      return error.errno == ENOENT || error.errno == ENOTDIR ? nil : error
    }
  }
}
