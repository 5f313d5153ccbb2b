// Where the control socket is: the running gateway and the commands that ask it must come to the same place.

import ByteStreams
import CLinux
import Glibc

public enum ControlAddress: Hashable, Sendable {
  case path(String)
  /// A name of Linux's abstract namespace, without its leading NUL (unix(7)). It needs no writable folder.
  case abstract(String)

  /// `configPath` tells gateways of one machine apart when no folder does.
  public init?(_ socket: Config.Control.Socket, configPath: String, environment: [String: String]) {
    switch socket {
    case .off: return nil
    case .path(let path): self = .path(path)
    case .automatic:
      if let folder = environment["RUNTIME_DIRECTORY"]?.split(separator: ":").first {
        self = .path("\(folder)/control.sock")
      } else if access("/run/baudway", W_OK) == 0 {
        self = .path("/run/baudway/control.sock")
      } else {
        let real = realpath(configPath, nil)
        defer { free(real) }
        self = .abstract("baudway/\(geteuid())/\(real.map { String(cString: $0) } ?? configPath)")
      }
    }
  }

  public var description: String {
    switch self {
    case .path(let path): path
    case .abstract(let name): "@\(name)"
    }
  }

  /// Lends the address as bind(2) and connect(2) want it; ENAMETOOLONG for one that sun_path can't hold.
  func withSockaddr<Result>(
    _ body: (UnsafePointer<sockaddr>, socklen_t) -> Result
  ) throws(SystemError) -> Result {
    var address = sockaddr_un()
    address.sun_family = sa_family_t(AF_UNIX)
    let bytes: [UInt8] =
      switch self {
      case .path(let path): Array(path.utf8)
      case .abstract(let name): [0] + ControlAddress.fitting(name)
      }
    guard bytes.count < MemoryLayout.size(ofValue: address.sun_path) else { throw SystemError("bind", ENAMETOOLONG) }
    withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: bytes) }
    let length = MemoryLayout<sockaddr_un>.offset(of: \.sun_path)! + bytes.count
    return withUnsafePointer(to: &address) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { body($0, socklen_t(length)) }
    }
  }

  /// The end of a long path says more than its beginning.
  private static func fitting(_ name: String) -> [UInt8] { Array(name.utf8.suffix(100)) }
}
