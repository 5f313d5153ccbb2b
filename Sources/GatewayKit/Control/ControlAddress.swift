// Where the control socket is: the running gateway and the commands that ask it must come to the same place.

import ByteStreams
import Glibc

public typealias ControlAddress = UnixAddress

extension UnixAddress {
  /// Nil when there is none. `configPath` tells gateways of one machine apart when no folder does.
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
        let name = "baudway/\(geteuid())/\(real.map { String(cString: $0) } ?? configPath)"
        // The end of a long path says more than its beginning.
        self = .abstract(String(decoding: name.utf8.suffix(100), as: UTF8.self))
      }
    }
  }
}
