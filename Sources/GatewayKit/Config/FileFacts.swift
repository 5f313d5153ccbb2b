// Whose a file is, and who else may read and write it: what check warns of, and serve as root refuses.

import Glibc

struct FileFacts: Hashable, Sendable {
  /// Permission bits.
  var mode: UInt32
  var owner: UInt32

  init(mode: UInt32, owner: UInt32) {
    self.mode = mode
    self.owner = owner
  }

  /// Nil when there is no such file, or it is none: a pipe or a device has no content that somebody could change before.
  init?(path: String) {
    var status = stat()
    guard stat(path, &status) == 0 else { return nil }
    self.init(status)
  }

  init?(descriptor: Int32) {
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { return nil }
    self.init(status)
  }

  private init?(_ status: stat) {
    guard status.st_mode & S_IFMT == S_IFREG else { return nil }
    self.init(mode: status.st_mode & 0o7777, owner: status.st_uid)
  }

  /// Its group, or anybody.
  var othersMayWrite: Bool { mode & 0o022 != 0 }
  /// Anybody: a group is how the service's own user reads a file of root's.
  var anybodyMayRead: Bool { mode & 0o004 != 0 }

  /// "0664"
  var shownMode: String {
    let digits = String(mode, radix: 8)
    return String(repeating: "0", count: max(0, 4 - digits.count)) + digits
  }

  func writable(_ name: String) -> String {
    "\(mode & 0o002 != 0 ? "anybody" : "its group") may write it (mode \(shownMode)); 'chmod go-w \(name)'"
  }

  func foreign(_ name: String) -> String { "it belongs to user \(owner) and not to root; 'chown root \(name)'" }
}
