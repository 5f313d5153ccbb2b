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
        let real = realpath(configPath, nil)
        defer { free(real) }
        let name = "baudway/\(geteuid())/\(real.map { String(cString: $0) } ?? configPath)"
        // The end of a long path says more than its beginning.
        self = .abstract(String(decoding: name.utf8.suffix(100), as: UTF8.self))
      }
    }
  }

  private static let service = "/run/baudway/control.sock"
}
