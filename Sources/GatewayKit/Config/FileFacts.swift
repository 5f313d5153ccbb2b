// Owner and permissions of a file or a folder. `check` warns when others may read or write it; `serve` as root refuses
// a config that others may write.

import Glibc

struct FileFacts: Hashable, Sendable {
  /// Permission bits.
  var mode: UInt32
  var owner: UInt32

  init(mode: UInt32, owner: UInt32) {
    self.mode = mode
    self.owner = owner
  }

  /// Nil when there is no such file, or it is a pipe or a device, whose content others could not change beforehand.
  init?(path: String) {
    var status = stat()
    guard stat(path, &status) == 0 else { return nil }
    self.init(status)
  }

  /// Nil when there is no such folder.
  init?(folder: String) {
    var status = stat()
    guard stat(folder, &status) == 0 else { return nil }
    self.init(status, S_IFDIR)
  }

  init?(descriptor: Int32) {
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { return nil }
    self.init(status)
  }

  private init?(_ status: stat, _ kind: mode_t = S_IFREG) {
    guard status.st_mode & S_IFMT == kind else { return nil }
    self.init(mode: status.st_mode & 0o7777, owner: status.st_uid)
  }

  /// Its group or all users.
  var othersMayWrite: Bool { mode & 0o022 != 0 }
  /// All users may read it. Access for the group is fine: that is how the service's user reads a file that root owns.
  var anybodyMayRead: Bool { mode & 0o004 != 0 }

  /// "0664"
  var shownMode: String {
    let digits = String(mode, radix: 8)
    return String(repeating: "0", count: max(0, 4 - digits.count)) + digits
  }

  func writable(_ name: String) -> String {
    "\(mode & 0o002 != 0 ? "anybody" : "its group") may write to it (mode \(shownMode)); 'chmod go-w \(name)'"
  }

  func foreign(_ name: String) -> String { "it belongs to user \(owner) and not to root; 'chown root \(name)'" }
}
