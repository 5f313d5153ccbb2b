// Leads commands to a control socket at a configured path that they can't read, because the configuration is broken or
// missing.

import Glibc
import StreamBroker

/// A symbolic link in the runtime folder. Every call can block: call it on a queue, never on a lane.
struct ControlSocketLink: Sendable {
  private let path: String
  private let target: String

  /// Creates the link; it replaces an older link of this process's user, and nothing else. Nil if that fails: the
  /// socket itself still works. `isMeant` checks the old file, before and after it is moved aside.
  static func create(
    at path: String, to target: String, if isMeant: (SharedFolder.Name) -> Bool = isOurLink
  ) -> ControlSocketLink? {
    let target = absolute(target)
    // A second try: the previous gateway may have removed its link meanwhile.
    let isThere =
      symlink(target, path) == 0 || (try? SharedFolder.replace(path, byLinkTo: target, if: isMeant)) ?? false
      || symlink(target, path) == 0
    return isThere ? ControlSocketLink(path: path, target: target) : nil
  }

  /// Removes the link, unless it has been changed to lead elsewhere.
  func remove(if isMeant: (SharedFolder.Name) -> Bool = isOurLink) {
    _ = try? SharedFolder.remove(path) { isMeant($0) && $0.target == target }
  }

  static func isOurLink(_ found: SharedFolder.Name) -> Bool { found.isOurs && found.target != nil }

  private static func absolute(_ path: String) -> String {
    guard !path.hasPrefix("/"), let folder = getcwd(nil, 0) else { return path }
    defer { free(folder) }
    return "\(String(cString: folder))/\(path)"
  }
}
