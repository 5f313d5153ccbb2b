// Leads commands to a control socket at a path of its own when they can't read that path: the configuration is broken or gone.

import Glibc
import StreamBroker

/// A symbolic link in the runtime folder. Everything here may block: for a queue, never for a lane.
struct ControlSignpost: Sendable {
  private let path: String
  private let target: String

  /// Puts the link there, in place of an older one of this process's user. Anything else that has the name stays. Nil where that can't be
  /// done, which costs nobody the socket itself. `isMeant` is asked of what is there, before and after it is moved.
  static func raise(
    at path: String, to target: String, if isMeant: (OpenFolder.Name) -> Bool = isOurLink
  ) -> ControlSignpost? {
    let target = absolute(target)
    // Once more where the gateway before this one has removed it meanwhile.
    let isThere =
      symlink(target, path) == 0 || (try? OpenFolder.replace(path, byLinkTo: target, if: isMeant)) ?? false
      || symlink(target, path) == 0
    return isThere ? ControlSignpost(path: path, target: target) : nil
  }

  /// Removes it, unless it leads elsewhere by now.
  func remove(if isMeant: (OpenFolder.Name) -> Bool = isOurLink) {
    _ = try? OpenFolder.remove(path) { isMeant($0) && $0.target == target }
  }

  static func isOurLink(_ found: OpenFolder.Name) -> Bool { found.isOurs && found.target != nil }

  private static func absolute(_ path: String) -> String {
    guard !path.hasPrefix("/"), let folder = getcwd(nil, 0) else { return path }
    defer { free(folder) }
    return "\(String(cString: folder))/\(path)"
  }
}
