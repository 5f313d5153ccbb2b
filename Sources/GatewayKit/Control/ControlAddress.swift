// Where the control socket is: the running gateway and the commands that ask it must come to the same place.

import ByteStreams
import Glibc

public typealias ControlAddress = UnixAddress

extension UnixAddress {
  /// Nil when there is none. `configPath` tells gateways of one machine apart when no folder does. Who only asks may find the
  /// gateway of a service in a folder that is not his to write to.
  public init?(
    _ socket: Config.Control.Socket, configPath: String, environment: [String: String], isAsking: Bool = false
  ) {
    switch socket {
    case .off: return nil
    case .path(let path): self = .path(path)
    case .automatic:
      if let folder = environment["RUNTIME_DIRECTORY"]?.split(separator: ":").first {
        self = .path("\(folder)/control.sock")
      } else if access("/run/baudway", W_OK) == 0 || (isAsking && access(Self.service, F_OK) == 0) {
        self = .path(Self.service)
      } else {
        let owner = "\(Self.prefix)/\(geteuid())/"
        // The end of a long path says more than its beginning.
        let end = Self.real(configPath).utf8.suffix(100 - owner.utf8.count)
        self = .abstract(owner + String(decoding: end, as: UTF8.self))
      }
    }
  }

  /// Whose gateway an abstract address is made for. Nil when it does not say.
  var owner: uid_t? {
    guard case .abstract(let name) = self else { return nil }
    let parts = name.split(separator: "/", maxSplits: 2, omittingEmptySubsequences: false)
    return parts.count == 3 && parts[0] == Self.prefix ? uid_t(parts[1]) : nil
  }

  /// The path without links, also of a file that has gone since: the gateway that read it is asked all the same.
  private static func real(_ path: String) -> String {
    if let real = realpath(path, nil) {
      defer { free(real) }
      return String(cString: real)
    }
    guard path != ".", path != "/", !path.isEmpty else { return path }
    let slash = path.lastIndex(of: "/")
    let folder = slash.map { path[..<$0].isEmpty ? "/" : String(path[..<$0]) } ?? "."
    let name = slash.map { path[path.index(after: $0)...] } ?? path[...]
    return "\(real(folder))/\(name)"
  }

  private static let prefix = "baudway"
  private static let service = "/run/baudway/control.sock"
}
