// Owner, group and mode of a node that we create: `owner`, `group` and `mode` of a URL. Used for ptys and listeners'
// sockets. Looking up names can block: for a queue, never for a lane.

import ByteStreams
import CLinux
import Glibc

package struct NodeOwnership: Hashable, Sendable {
  /// Permission bits.
  package var mode: mode_t
  /// By name or number; nil keeps the user that created the node.
  package var owner: String?
  package var group: String?

  package init(mode: mode_t = 0o660, owner: String? = nil, group: String? = nil) {
    self.mode = mode
    self.owner = owner
    self.group = group
  }

  /// From the three parameters of a URL whose scheme has them.
  package init(_ url: EndpointURL) {
    self.init(
      mode: url.string("mode").flatMap { mode_t($0, radix: 8) } ?? 0o660, owner: url.string("owner"),
      group: url.string("group"))
  }

  /// Sets owner, group and mode of the open node; `path` is for the errors. Works on the descriptor, which may be
  /// O_PATH, because the name may be another user's node by now. The mode comes last: set earlier, it would give access
  /// to the previous owner and group.
  package func apply(to node: Int32, at path: String) throws(OpenFailure) {
    let user = try owner.map { name throws(OpenFailure) in try Self.user(name) } ?? uid_t.max
    let group = try group.map { name throws(OpenFailure) in try Self.group(name) } ?? gid_t.max
    // The highest number leaves an owner or group unchanged.
    if user != .max || group != .max, linux_change_owner(node, user, group) != 0 {
      throw OpenFailure("chown \(path)", SystemError("chown"), advice: "only root may change a node's owner")
    }
    guard linux_change_mode(node, mode) == 0 else {
      let error = SystemError("chmod")
      throw OpenFailure(
        "chmod \(path)", error, advice: error.errno == ENOENT ? "changing the mode needs a mounted /proc" : nil)
    }
  }

  /// What lets a user open the node at `path`, which it may not: membership of the node's group, or a rule that gives the
  /// node a group. Nil if nothing is there.
  static func advice(forOpening path: String) -> String? {
    var status = stat()
    guard stat(path, &status) == 0 else { return nil }
    let name = name(ofGroup: status.st_gid)
    guard status.st_mode & 0o060 == 0o060 else {
      let wanted = status.st_gid == 0 ? "dialout" : name
      return
        "its mode lets not even its group \(name) open it; if udev does not change that in a moment, a rule has to: "
        + "GROUP=\"\(wanted)\", MODE=\"0660\""
    }
    return
      "members of its group may: usermod -aG \(name) USER, and log in again; just plugged in, udev may still change "
      + "its group"
  }

  /// The group's name, or its number if it has none.
  package static func name(ofGroup number: gid_t) -> String {
    var entry = Glibc.group()
    var found: UnsafeMutablePointer<Glibc.group>?
    var name: String?
    _ = lookUp { buffer in
      let answer = getgrgid_r(number, &entry, buffer.baseAddress!, buffer.count, &found)
      if answer == 0, found != nil { name = String(cString: entry.gr_name) }
      return answer
    }
    return name ?? "\(number)"
  }

  package static func user(_ name: String) throws(OpenFailure) -> uid_t {
    if let number = UInt32(name), number != .max { return number }
    var entry = passwd()
    var found: UnsafeMutablePointer<passwd>?
    let answer = lookUp { getpwnam_r(name, &entry, $0.baseAddress!, $0.count, &found) }
    guard answer == 0, found != nil else { throw unknown("user", name, answer) }
    return entry.pw_uid
  }

  package static func group(_ name: String) throws(OpenFailure) -> gid_t {
    if let number = UInt32(name), number != .max { return number }
    var entry = Glibc.group()
    var found: UnsafeMutablePointer<Glibc.group>?
    let answer = lookUp { getgrnam_r(name, &entry, $0.baseAddress!, $0.count, &found) }
    guard answer == 0, found != nil else { throw unknown("group", name, answer) }
    return entry.gr_gid
  }

  /// Retries with a larger buffer while it is too small: a group may have thousands of members.
  private static func lookUp(_ call: (UnsafeMutableBufferPointer<CChar>) -> Int32) -> Int32 {
    var size = 4096
    while true {
      let answer = withUnsafeTemporaryAllocation(of: CChar.self, capacity: size) { call($0) }
      guard answer == ERANGE, size < 1 << 20 else { return answer }
      size *= 4
    }
  }

  private static func unknown(_ kind: String, _ name: String, _ errno: Int32) -> OpenFailure {
    OpenFailure(
      "look up \(kind) \(Suggestion.plain(name))", errno == 0 ? nil : SystemError("getpwnam", errno),
      advice: errno == 0 ? "this system has no such name" : nil)
  }
}
