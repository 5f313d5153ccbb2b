// The address of a unix socket: a file, or a name in Linux's abstract namespace (unix(7)).

import Glibc

package enum UnixAddress: Hashable, Sendable {
  case path(String)
  /// Without its leading NUL. It needs no writable folder, and disappears with its socket.
  case abstract(String)

  /// The longest path in bytes: sun_path without the NUL at its end.
  package static let mostBytes = 107

  /// Hands `body` the address in the form of bind(2) and connect(2); throws ENAMETOOLONG if it does not fit.
  package func withSockaddr<Result>(
    _ body: (UnsafePointer<sockaddr>, socklen_t) -> Result
  ) throws(SystemError) -> Result {
    var address = sockaddr_un()
    address.sun_family = sa_family_t(AF_UNIX)
    let bytes: [UInt8] =
      switch self {
      case .path(let path): Array(path.utf8)
      case .abstract(let name): [0] + Array(name.utf8)
      }
    guard bytes.count <= Self.mostBytes else { throw SystemError("bind", ENAMETOOLONG) }
    withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: bytes) }
    let length = MemoryLayout<sockaddr_un>.offset(of: \.sun_path)! + bytes.count
    return withUnsafePointer(to: &address) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { body($0, socklen_t(length)) }
    }
  }

  /// The address that a socket is bound to. Nil if it is not a unix socket, or not bound.
  package init?(localOf descriptor: Int32) { self.init { getsockname(descriptor, $0, $1) } }

  /// The address that the other side is bound to. Nil if it is not a unix socket, or the other side not bound.
  package init?(peerOf descriptor: Int32) { self.init { getpeername(descriptor, $0, $1) } }

  private init?(asked call: (UnsafeMutablePointer<sockaddr>, UnsafeMutablePointer<socklen_t>) -> Int32) {
    var address = sockaddr_un()
    var length = socklen_t(MemoryLayout<sockaddr_un>.size)
    let answer = withUnsafeMutablePointer(to: &address) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { call($0, &length) }
    }
    let start = MemoryLayout<sockaddr_un>.offset(of: \.sun_path)!
    guard answer == 0, Int32(address.sun_family) == AF_UNIX, Int(length) > start else { return nil }
    let bytes = withUnsafeBytes(of: &address.sun_path) { Array($0.prefix(Int(length) - start)) }
    self =
      bytes[0] == 0
      ? .abstract(String(decoding: bytes.dropFirst(), as: UTF8.self))
      : .path(String(decoding: bytes.prefix { $0 != 0 }, as: UTF8.self))
  }
}

extension UnixAddress: CustomStringConvertible {
  package var description: String {
    switch self {
    case .path(let path): path
    case .abstract(let name): "@\(name)"
    }
  }
}
