// One walk along a path, the way the kernel resolves it, that puts a watch on every directory passed, each link's and
// each target's. NodeWatch runs it on a queue of its own, where it may block.

import ByteStreams
import CLinux
import Glibc

struct NodeSurvey: Sendable {
  /// By watch descriptor: the names that matter in that directory.
  private(set) var names: [Int32: Set<String>] = [:]
  /// Whether the path led to something.
  private(set) var exists = false
  /// Why part of the way is not watched; the first reason.
  private(set) var error: SystemError?

  let startedAt = NodeSurvey.now()
  // The latest change of the node or of a link that leads to it, by the same clock.
  private var newest: Int64 = 0

  // IN_ATTRIB: udev changes owner and mode after it has made the node.
  private static let mask = UInt32(
    IN_CREATE | IN_ATTRIB | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF)
  private let mask: UInt32
  private static let mostLinks = 40  // as the kernel: path_resolution(7)

  /// `replacing` are the watches of the survey before; those that are of no use any more end.
  init(of path: String, watchingWith inotify: Int32, replacing old: [Int32], seesWrites: Bool = false) {
    mask = Self.mask | UInt32(IN_ONLYDIR) | (seesWrites ? UInt32(IN_CLOSE_WRITE) : 0)
    walk(path, inotify)
    for watch in old where names[watch] == nil { inotify_rm_watch(inotify, watch) }
  }

  /// Whether node or links are newer than 100 ms before `time`: they may have come between a failed opening and the watch.
  func changedAfter(_ time: Int64) -> Bool { newest > time - 100_000_000 }

  /// CLOCK_REALTIME in nanoseconds, the clock of files.
  static func now() -> Int64 {
    var time = timespec()
    clock_gettime(CLOCK_REALTIME, &time)
    return nanoseconds(time)
  }

  private static func nanoseconds(_ time: timespec) -> Int64 {
    Int64(time.tv_sec) &* 1_000_000_000 &+ Int64(time.tv_nsec)
  }

  private mutating func walk(_ path: String, _ inotify: Int32) {
    var directory = "/"
    var left = Self.components(path)
    var links = 0
    while let name = left.popLast() {
      if left.isEmpty, name.hasSuffix("*") { return lookFor(name, in: directory, inotify) }
      if name == ".." {
        directory = String(directory[..<directory.lastIndex(of: "/")!])
        if directory.isEmpty { directory = "/" }
        continue
      }
      let place = directory == "/" ? "/\(name)" : "\(directory)/\(name)"
      // The watch first and the look second: what comes in between is seen twice, not never.
      let watchError = watch(directory, name, inotify)
      var status = stat()
      let isThere = lstat(place, &status) == 0
      // A directory on the way that may be passed but not read: what matters is further on.
      if let watchError, error == nil, !(isThere && !left.isEmpty && watchError.errno == EACCES) { error = watchError }
      guard isThere else { return }
      if status.st_mode & S_IFMT == S_IFLNK {
        newest = max(newest, Self.nanoseconds(status.st_ctim))
        links += 1
        guard links <= Self.mostLinks, let target = FileSystem.target(of: place) else { return }
        if target.hasPrefix("/") { directory = "/" }
        left += Self.components(target)
      } else if left.isEmpty {
        newest = max(newest, Self.nanoseconds(status.st_ctim))
        exists = true
      } else {
        guard status.st_mode & S_IFMT == S_IFDIR else { return }
        directory = place
      }
    }
  }

  /// Any name with the beginning that stands before the `*`.
  private mutating func lookFor(_ pattern: String, in directory: String, _ inotify: Int32) {
    error = watch(directory, pattern, inotify) ?? error
    for name in FileSystem.names(in: directory) where name.hasPrefix(pattern.dropLast()) {
      var status = stat()
      guard lstat("\(directory)/\(name)", &status) == 0 else { continue }
      newest = max(newest, Self.nanoseconds(status.st_ctim))
      exists = true
    }
  }

  /// Whether what happened to `name` matters where `pattern` does.
  static func isMeant(_ name: UnsafePointer<CChar>, by pattern: String) -> Bool {
    pattern.hasSuffix("*") ? strncmp(pattern, name, pattern.utf8.count - 1) == 0 : strcmp(pattern, name) == 0
  }

  /// Last first, without those that lead nowhere.
  private static func components(_ path: String) -> [String] {
    path.split(separator: "/").reversed().map(String.init).filter { $0 != "." }
  }

  private mutating func watch(_ directory: String, _ name: String, _ inotify: Int32) -> SystemError? {
    let watch = inotify_add_watch(inotify, directory, mask)
    guard watch >= 0 else {
      // Gone in the meantime: the watch above it tells.
      return errno == ENOENT || errno == ENOTDIR ? nil : SystemError("inotify_add_watch")
    }
    names[watch, default: []].insert(name)
    return nil
  }
}
