// Whom a node that we make belongs to, and who may use it: `mode`, `owner` and `group` of a URL. Ptys have it, and
// listeners' sockets. Looking names up can block: for a queue, never for a lane.

import ByteStreams
import CLinux
import Glibc

public struct NodeOwnership: Hashable, Sendable {
  /// Permission bits.
  public var mode: mode_t
  /// By name or number; nil leaves it with who makes the node.
  public var owner: String?
  public var group: String?

  public init(mode: mode_t = 0o660, owner: String? = nil, group: String? = nil) {
    self.mode = mode
    self.owner = owner
    self.group = group
  }

  /// The three parameters of a URL whose scheme has them.
  public init(_ url: EndpointURL) {
    self.init(
      mode: url.string("mode").flatMap { mode_t($0, radix: 8) } ?? 0o660, owner: url.string("owner"),
      group: url.string("group"))
  }

  /// Gives the open node to them, which errors call `path`. By its descriptor, which may be of O_PATH: what has the name by now may be
  /// another user's. The mode last: nobody gets in by it whom the node does not belong to yet.
  public func apply(to node: Int32, at path: String) throws(OpenFailure) {
    let user = try owner.map { name throws(OpenFailure) in try Self.user(name) } ?? uid_t.max
    let group = try group.map { name throws(OpenFailure) in try Self.group(name) } ?? gid_t.max
    // The highest number leaves it as it is.
    if user != .max || group != .max, linux_change_owner(node, user, group) != 0 {
      throw OpenFailure("chown \(path)", SystemError("chown"), advice: "only root may give nodes away")
    }
    guard linux_change_mode(node, mode) == 0 else {
      let error = SystemError("chmod")
      throw OpenFailure("chmod \(path)", error, advice: error.errno == ENOENT ? "it takes /proc" : nil)
    }
  }

  public static func user(_ name: String) throws(OpenFailure) -> uid_t {
    if let number = UInt32(name), number != .max { return number }
    var entry = passwd()
    var found: UnsafeMutablePointer<passwd>?
    let answer = lookUp { getpwnam_r(name, &entry, $0.baseAddress!, $0.count, &found) }
    guard answer == 0, found != nil else { throw unknown("user", name, answer) }
    return entry.pw_uid
  }

  public static func group(_ name: String) throws(OpenFailure) -> gid_t {
    if let number = UInt32(name), number != .max { return number }
    var entry = Glibc.group()
    var found: UnsafeMutablePointer<Glibc.group>?
    let answer = lookUp { getgrnam_r(name, &entry, $0.baseAddress!, $0.count, &found) }
    guard answer == 0, found != nil else { throw unknown("group", name, answer) }
    return entry.gr_gid
  }

  /// With more room while it does not suffice: a group may have thousands of members.
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
      advice: errno == 0 ? "there is none of this name here" : nil)
  }
}
