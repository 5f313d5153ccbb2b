// Sends notifications to systemd, or to another manager with the same protocol: sd_notify(3) without its library. A
// message is one datagram of lines NAME=value.

import ByteStreams
import CLinux
import Glibc

struct NotifySocket: ~Copyable, Sendable {
  private let socket: Descriptor
  private let path: [UInt8]

  enum Outcome {
    case sent
    /// The manager's queue is full; a later try may succeed.
    case full
    /// The manager does not listen any more.
    case failed
  }

  /// `address` as in NOTIFY_SOCKET: an absolute path, or `@` and a name in the abstract namespace. Nil for anything
  /// else.
  init?(_ address: String) {
    var path = Array(address.utf8)
    guard path.count > 1, path.count < MemoryLayout.size(ofValue: sockaddr_un().sun_path) else { return nil }
    switch path[0] {
    case UInt8(ascii: "/"): break
    case UInt8(ascii: "@"): path[0] = 0  // unix(7)
    default: return nil
    }
    let raw = linux_socket(AF_UNIX, Int32(SOCK_DGRAM.rawValue), 0)
    guard raw >= 0 else { return nil }
    socket = Descriptor(owning: raw)
    self.path = path
  }

  /// Sends without waiting. The socket is not connected, so a restarted manager with the same address is found.
  func send(_ message: String) -> Outcome {
    var address = sockaddr_un()
    address.sun_family = sa_family_t(AF_UNIX)
    withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: path) }
    let length = socklen_t(MemoryLayout<sockaddr_un>.offset(of: \.sun_path)! + path.count)
    let raw = socket.raw
    let bytes = Array(message.utf8)
    let count = withUnsafePointer(to: &address) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
        sendto(raw, bytes, bytes.count, Int32(MSG_DONTWAIT | MSG_NOSIGNAL), $0, length)
      }
    }
    if count >= 0 { return .sent }
    return [EAGAIN, ENOBUFS, EINTR].contains(errno) ? .full : .failed
  }
}
