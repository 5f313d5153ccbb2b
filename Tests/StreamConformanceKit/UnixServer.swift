// A test's server on a unix socket.

import ByteStreams
import CLinux
import Glibc
import Synchronization

public final class UnixServer: Sendable {
  public let path: String
  private let socket: DescriptorParcel
  private let raw: Int32

  /// With a `backlog` of 0 it is full after few connections that are not accepted. With nil it does not listen.
  public init(_ path: String, backlog: Int32? = 128) throws(SystemError) {
    raw = linux_socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
    guard raw >= 0 else { throw SystemError("socket") }
    socket = DescriptorParcel(Descriptor(owning: raw))
    self.path = path
    let raw = raw
    guard Self.withAddress(path, { bind(raw, $0, $1) }) == 0 else { throw SystemError("bind") }
    if let backlog { try listen(backlog) }
  }

  public func listen(_ backlog: Int32 = 128) throws(SystemError) {
    guard Glibc.listen(raw, backlog) == 0 else { throw SystemError("listen") }
  }

  /// Blocks for at most thirty seconds; call it in `onOwnThread`.
  public func accept() throws(SystemError) -> FarEnd {
    while true {
      let accepted = linux_accept(raw, nil, nil)
      if accepted >= 0 { return FarEnd(Descriptor(owning: accepted), isSocket: true) }
      guard errno == EAGAIN || errno == EINTR else { throw SystemError("accept") }
      var one = pollfd(fd: raw, events: Int16(POLLIN), revents: 0)
      guard poll(&one, 1, 30_000) != 0 else { throw SystemError("poll", ETIMEDOUT) }
    }
  }

  public func close() { _ = socket.take() }

  private static func withAddress(_ path: String, _ body: (UnsafePointer<sockaddr>, socklen_t) -> Int32) -> Int32 {
    var address = sockaddr_un()
    address.sun_family = sa_family_t(AF_UNIX)
    withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: Array(path.utf8)) }
    return withUnsafePointer(to: &address) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { body($0, socklen_t(MemoryLayout<sockaddr_un>.size)) }
    }
  }
}

/// Makes what a crash leaves at `path`: the file of a closed socket. A program that a parallel test starts holds a copy
/// of the socket until its exec: waits for that.
public func makeLeftOverSocket(at path: String) throws(SystemError) {
  let address = UnixAddress.path(path)
  let raw = linux_socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
  guard raw >= 0 else { throw SystemError("socket") }
  let socket = Descriptor(owning: raw)
  guard try address.withSockaddr({ bind(raw, $0, $1) }) == 0 else { throw SystemError("bind") }
  _ = consume socket
  let probe = Descriptor(owning: linux_socket(AF_UNIX, Int32(SOCK_DGRAM.rawValue), 0))
  for _ in 0..<5000 {
    // EPROTOTYPE while a process still has it open.
    if try address.withSockaddr({ connect(probe.raw, $0, $1) }) != 0, errno == ECONNREFUSED { return }
    usleep(1000)
  }
}
