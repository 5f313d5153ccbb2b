// The other side of the control socket, for commands: asks, waits for the line, at most a few seconds. Blocks.

import ByteStreams
import CLinux
import Glibc

public enum ControlClient {
  /// The gateway's answer to `request`, without its line end. EACCES when somebody else has taken an abstract address, which
  /// any user can.
  public static func ask(_ request: String, at address: ControlAddress) throws(SystemError) -> String {
    let raw = socket(AF_UNIX, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
    guard raw >= 0 else { throw SystemError("socket") }
    let socket = Descriptor(owning: raw)
    var limit = timeval(tv_sec: 2, tv_usec: 0)
    for option in [SO_RCVTIMEO, SO_SNDTIMEO] {
      setsockopt(socket.raw, SOL_SOCKET, option, &limit, socklen_t(MemoryLayout<timeval>.size))
    }
    guard try address.withSockaddr({ connect(raw, $0, $1) }) == 0 else { throw SystemError("connect") }
    if case .abstract = address {
      var user = uid_t()
      guard linux_peer_user(raw, &user) == 0, user == 0 || user == geteuid() else {
        throw SystemError("connect", EACCES)
      }
    }
    let line = Array((request + "\n").utf8)
    guard send(socket.raw, line, line.count, Int32(MSG_NOSIGNAL)) == line.count else { throw SystemError("send") }
    var answer: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 4096)
    while answer.count < 1 << 20 {
      let count = recv(socket.raw, &buffer, buffer.count, 0)
      guard count >= 0 else { throw SystemError("recv") }
      if count == 0 { break }
      answer += buffer.prefix(count)
      if answer.last == UInt8(ascii: "\n") { break }
    }
    return String(decoding: answer.dropLast(), as: UTF8.self)
  }
}
