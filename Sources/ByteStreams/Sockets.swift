// The options of all our TCP sockets, opened or accepted, and how a socket is opened. Listeners and connectors use it.

import CLinux
import Glibc

package enum SocketOptions {
  /// How many unsent bytes the kernel may keep before a socket counts as full. Without this limit the kernel keeps 4
  /// MiB for a slow client, and we react minutes late; a fixed send buffer would cost 30 % of the speed. The limit
  /// wakes the sender more often, so sockets that delay no others do not have it.
  package static let notSentLowWater: Int32 = 128 * 1024

  /// Sets the options of a socket that carries bytes. Accepted sockets inherit them from their listener (tcp(7)), so a
  /// client costs no call. Throws the error of setsockopt(2): a mistake of ours, or the socket is gone. `limitsUnsent`
  /// is for clients that may delay each other: `notSentLowWater`.
  package static func applyStream(
    to descriptor: Int32, keepalive: Bool, limitsUnsent: Bool
  ) throws(SystemError) {
    try set(descriptor, Int32(IPPROTO_TCP), TCP_NODELAY, 1)  // each byte is sent at once
    if limitsUnsent { try set(descriptor, Int32(IPPROTO_TCP), TCP_NOTSENT_LOWAT, notSentLowWater) }
    if keepalive { try applyKeepalive(to: descriptor) }
  }

  /// Makes the kernel find an idle peer that vanished, in 10 + 3 × 5 seconds. `PeerWatch` finds busy ones.
  package static func applyKeepalive(to descriptor: Int32) throws(SystemError) {
    try set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1)
    try set(descriptor, Int32(IPPROTO_TCP), TCP_KEEPIDLE, 10)
    try set(descriptor, Int32(IPPROTO_TCP), TCP_KEEPINTVL, 5)
    try set(descriptor, Int32(IPPROTO_TCP), TCP_KEEPCNT, 3)
  }

  /// Sets an integer option. Listeners use it for SO_REUSEADDR and IPV6_V6ONLY.
  package static func set(
    _ descriptor: Int32, _ level: Int32, _ option: Int32, _ value: Int32
  ) throws(SystemError) {
    var value = value
    guard setsockopt(descriptor, level, option, &value, socklen_t(MemoryLayout<Int32>.size)) == 0 else {
      throw SystemError("setsockopt")
    }
  }

  /// The value of an integer option; nil if it can't be read.
  package static func value(_ descriptor: Int32, _ level: Int32, _ option: Int32) -> Int32? {
    var value: Int32 = 0
    var length = socklen_t(MemoryLayout<Int32>.size)
    return getsockopt(descriptor, level, option, &value, &length) == 0 ? value : nil
  }

  /// The error that broke the socket; reading it clears it (SO_ERROR of socket(7)). Nil for none.
  package static func takeError(of descriptor: Int32, _ call: String) -> SystemError? {
    var number: Int32 = 0
    var length = socklen_t(MemoryLayout<Int32>.size)
    guard getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &number, &length) == 0 else { return SystemError(call) }
    return number == 0 ? nil : SystemError(call, number)
  }
}

extension Descriptor {
  /// A non-blocking, close-on-exec socket.
  package static func socket(
    _ family: SocketAddress.Family, type: Int32 = Int32(SOCK_STREAM.rawValue)
  ) throws(SystemError) -> Descriptor {
    let raw = linux_socket(family.domain, type, 0)
    guard raw >= 0 else { throw SystemError("socket") }
    return Descriptor(owning: raw)
  }
}
