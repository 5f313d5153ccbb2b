// Leads commands to a control socket at a path of its own when they can't read that path: the configuration is broken or gone.

import Glibc
import StreamBroker

/// A symbolic link in the runtime folder. Everything here may block: for a queue, never for a lane.
struct ControlSignpost: Sendable {
  private let path: String
  private let target: String

  /// Puts the link there, in place of an older one. What is no link stays: it is not ours. Nil where that can't be done, which costs
  /// nobody the socket itself.
  static func raise(at path: String, to target: String) -> ControlSignpost? {
    var status = stat()
    if lstat(path, &status) == 0, status.st_mode & S_IFMT != S_IFLNK { return nil }
    // Made beside its place and renamed, so that it is never missing.
    let new = "\(path).\(getpid())"
    unlink(new)
    guard symlink(absolute(target), new) == 0 else { return nil }
    guard rename(new, path) == 0 else {
      unlink(new)
      return nil
    }
    return ControlSignpost(path: path, target: absolute(target))
  }

  /// Removes it, unless it leads elsewhere by now.
  func remove() {
    if OpenFolder.Name(path).target == target { unlink(path) }
  }

  private static func absolute(_ path: String) -> String {
    guard !path.hasPrefix("/"), let folder = getcwd(nil, 0) else { return path }
    defer { free(folder) }
    return "\(String(cString: folder))/\(path)"
  }
}
