// The client side of the control socket, for commands: sends a request and reads the whole answer, within one time
// limit. Blocks.

import ByteStreams
import CLinux
import Glibc

package enum ControlClient {
  /// Bytes of the longest answer: enough for some 200,000 clients.
  private static let most = 64 << 20

  /// The gateway's answer to a request line, without the line end. Errors: ETIMEDOUT, not complete in time; EACCES,
  /// this user may not ask the gateway; EADDRINUSE, another user has the abstract address; ECONNRESET, the answer was
  /// cut off.
  package static func ask(
    _ request: String, at address: ControlAddress, within limit: Duration = .seconds(2)
  ) throws(SystemError) -> [UInt8] {
    let deadline = monotonicNanoseconds() &+ limit.nanoseconds
    let socket = try begin(request, at: address, deadline)
    return try receive(from: socket.raw, deadline)
  }

  private static func begin(
    _ request: String, at address: ControlAddress, _ deadline: UInt64
  ) throws(SystemError) -> Descriptor {
    let socket = try connect(to: address, deadline)
    try send(Array((request + "\n").utf8), to: socket.raw, deadline)
    return socket
  }

  /// A connection that has sent the request; for an answer without an end, which `follow` reads.
  package static func begin(
    _ request: String, at address: ControlAddress, within limit: Duration
  ) throws(SystemError) -> DescriptorParcel {
    DescriptorParcel(try begin(request, at: address, monotonicNanoseconds() &+ limit.nanoseconds))
  }

  /// Hands each piece of the answer to `take`, as it comes, until that returns false. It gets nil when the connection has
  /// ended. Returns when nobody reads from `output`, a pipe, any more, even if nothing comes.
  package static func follow(
    _ socket: consuming Descriptor, until output: Int32, _ take: ([UInt8]?) throws -> Bool
  ) throws {
    var buffer = [UInt8](repeating: 0, count: 65536)
    while true {
      var two = [pollfd(fd: socket.raw, events: Int16(POLLIN), revents: 0), pollfd(fd: output, events: 0, revents: 0)]
      guard poll(&two, 2, -1) > 0 else { continue }
      if two[1].revents & Int16(POLLERR | POLLHUP) != 0 { return }
      let count = recv(socket.raw, &buffer, buffer.count, 0)
      if count > 0 {
        guard try take(Array(buffer.prefix(count))) else { return }
      } else if count == 0 || errno != EAGAIN && errno != EINTR {
        _ = try take(nil)
        return
      }
    }
  }

  /// The process that listens at an address, which it is not asked anything; zero if it is in another PID namespace.
  /// Errors as of `ask`.
  static func peer(at address: ControlAddress) throws(SystemError) -> pid_t {
    let socket = try connect(to: address, monotonicNanoseconds() &+ 1_000_000_000)
    var (process, user) = (pid_t(), uid_t())
    guard linux_peer_process(socket.raw, &process, &user) == 0 else { throw SystemError("getsockopt") }
    return process
  }

  private static func connect(to address: ControlAddress, _ deadline: UInt64) throws(SystemError) -> Descriptor {
    let raw = linux_socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
    guard raw >= 0 else { throw SystemError("socket") }
    let socket = Descriptor(owning: raw)
    try connect(socket.raw, to: address, deadline)
    if case .abstract = address { try check(socket.raw, address) }
    return socket
  }

  private static func connect(_ socket: Int32, to address: ControlAddress, _ deadline: UInt64) throws(SystemError) {
    while try address.withSockaddr({ Glibc.connect(socket, $0, $1) }) != 0 {
      // EAGAIN: the server's queue is full, and no event reports when that ends (unix(7)).
      guard errno == EAGAIN || errno == EINTR else { throw SystemError("connect") }
      guard monotonicNanoseconds() < deadline else { throw SystemError("connect", ETIMEDOUT) }
      usleep(10_000)
    }
  }

  /// Any user can bind any abstract name, and could so pretend to be the gateway. So the name contains the gateway's
  /// user, and the kernel reports which user has bound it: it must be that user or root, even if root asks.
  private static func check(_ socket: Int32, _ address: ControlAddress) throws(SystemError) {
    var user = uid_t()
    guard linux_peer_user(socket, &user) == 0 else { throw SystemError("connect") }
    guard user == 0 || user == address.owner ?? geteuid() else { throw SystemError("connect", EADDRINUSE) }
    // The gateway would close without an answer (ControlSocket.admits); EACCES is the clearer error.
    guard geteuid() == 0 || geteuid() == user else { throw SystemError("connect", EACCES) }
  }

  private static func send(_ line: [UInt8], to socket: Int32, _ deadline: UInt64) throws(SystemError) {
    var sent = 0
    while sent < line.count {
      let count = line.withUnsafeBytes {
        Glibc.send(socket, $0.baseAddress! + sent, line.count - sent, Int32(MSG_NOSIGNAL))
      }
      if count > 0 {
        sent += count
      } else if errno == EAGAIN {
        try wait(socket, POLLOUT, deadline)
      } else if errno != EINTR {
        throw SystemError("send")
      }
    }
  }

  private static func receive(from socket: Int32, _ deadline: UInt64) throws(SystemError) -> [UInt8] {
    var answer: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 65536)
    while true {
      // Checked even while bytes arrive: a server that sends slowly must not block us for ever.
      guard monotonicNanoseconds() < deadline else { throw SystemError("recv", ETIMEDOUT) }
      let count = recv(socket, &buffer, buffer.count, 0)
      if count > 0 {
        answer += buffer.prefix(count)
        guard answer.count <= most else { throw SystemError("recv", EMSGSIZE) }
      } else if count == 0 {
        guard answer.last == UInt8(ascii: "\n") else { throw SystemError("recv", ECONNRESET) }
        return Array(answer.dropLast())
      } else if errno == EAGAIN {
        try wait(socket, POLLIN, deadline)
      } else if errno == ECONNRESET, answer.last == UInt8(ascii: "\n") {
        return Array(answer.dropLast())  // the gateway closed before it had read all of our request (unix(7))
      } else if errno != EINTR {
        throw SystemError("recv")
      }
    }
  }

  private static func wait(_ socket: Int32, _ event: Int32, _ deadline: UInt64) throws(SystemError) {
    let now = monotonicNanoseconds()
    guard now < deadline else { throw SystemError(event == POLLIN ? "recv" : "send", ETIMEDOUT) }
    var one = pollfd(fd: socket, events: Int16(event), revents: 0)
    poll(&one, 1, Int32(clamping: (deadline - now) / 1_000_000 + 1))
  }
}
