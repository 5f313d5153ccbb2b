// What every TCP socket of ours is set to, opened or accepted, and how one is opened. Listeners and connectors use it.

import CLinux
import Glibc

public enum SocketOptions {
  /// How many unsent bytes the kernel may keep before a socket counts as full. Without it a slow client hides 4 MiB, and
  /// what is to be done about him comes minutes late; a fixed send buffer would cost 30 % of the speed. It wakes the sender
  /// more often, so sockets that nobody else waits for go without.
  public static let notSentLowWater: Int32 = 128 * 1024

  /// Sets what carries bytes. On a listener it is inherited by all it accepts (tcp(7)), so that a client costs no call.
  /// Throws what setsockopt(2) says; that is a mistake of ours, or the socket's end.
  /// `limitsUnsent` is for clients who may hold up each other: `notSentLowWater`.
  public static func applyStream(
    to descriptor: Int32, keepalive: Bool, limitsUnsent: Bool
  ) throws(SystemError) {
    try set(descriptor, Int32(IPPROTO_TCP), TCP_NODELAY, 1)  // a byte leaves at once
    if limitsUnsent { try set(descriptor, Int32(IPPROTO_TCP), TCP_NOTSENT_LOWAT, notSentLowWater) }
    if keepalive { try applyKeepalive(to: descriptor) }
  }

  /// Has the kernel find an idle peer that vanished in 10 + 3 × 5 seconds. Busy ones are `PeerWatch`'s.
  public static func applyKeepalive(to descriptor: Int32) throws(SystemError) {
    try set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1)
    try set(descriptor, Int32(IPPROTO_TCP), TCP_KEEPIDLE, 10)
    try set(descriptor, Int32(IPPROTO_TCP), TCP_KEEPINTVL, 5)
    try set(descriptor, Int32(IPPROTO_TCP), TCP_KEEPCNT, 3)
  }

  /// Sets an integer option. For listeners' own: SO_REUSEADDR, IPV6_V6ONLY.
  public static func set(
    _ descriptor: Int32, _ level: Int32, _ option: Int32, _ value: Int32
  ) throws(SystemError) {
    var value = value
    guard setsockopt(descriptor, level, option, &value, socklen_t(MemoryLayout<Int32>.size)) == 0 else {
      throw SystemError("setsockopt")
    }
  }

  /// What broke the socket, taken from it: SO_ERROR of socket(7). Nil for nothing.
  public static func takeError(of descriptor: Int32, _ call: String) -> SystemError? {
    var number: Int32 = 0
    var length = socklen_t(MemoryLayout<Int32>.size)
    guard getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &number, &length) == 0 else { return SystemError(call) }
    return number == 0 ? nil : SystemError(call, number)
  }
}

extension Descriptor {
  /// A non-blocking, close-on-exec socket.
  public static func socket(
    _ family: SocketAddress.Family, type: Int32 = Int32(SOCK_STREAM.rawValue)
  ) throws(SystemError) -> Descriptor {
    let raw = linux_socket(family.domain, type, 0)
    guard raw >= 0 else { throw SystemError("socket") }
    return Descriptor(owning: raw)
  }
}
