// Where a unix socket is: a file, or a name of Linux's abstract namespace (unix(7)).

import Glibc

public enum UnixAddress: Hashable, Sendable {
  case path(String)
  /// Without its leading NUL. It needs no writable folder, and goes with its socket.
  case abstract(String)

  /// Bytes that a path may have: sun_path but for the NUL at its end.
  public static let mostBytes = 107

  /// Lends the address as bind(2) and connect(2) want it; ENAMETOOLONG for one that does not fit.
  public func withSockaddr<Result>(
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

  /// Where a socket is bound. Nil when it is no unix socket, or not bound.
  public init?(localOf descriptor: Int32) {
    var address = sockaddr_un()
    var length = socklen_t(MemoryLayout<sockaddr_un>.size)
    let answer = withUnsafeMutablePointer(to: &address) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { getsockname(descriptor, $0, &length) }
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
  public var description: String {
    switch self {
    case .path(let path): path
    case .abstract(let name): "@\(name)"
    }
  }
}
