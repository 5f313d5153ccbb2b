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
        self = Self.abstract(of: configPath)
      }
    }
  }

  // MARK: - When the configuration does not say it

  /// A second place for a control socket at a path of its own, for commands that can't read that path in the configuration: a link to the
  /// socket in the runtime folder, named after the configuration; where there is no such folder, an abstract address. Nil when the
  /// socket is where commands look anyway.
  static func signpost(
    for address: UnixAddress, configPath: String, environment: [String: String]
  ) -> UnixAddress? {
    let usual = UnixAddress(.automatic, configPath: configPath, environment: environment)
    guard let usual, usual != address else { return nil }
    guard case .path(let path) = usual else { return usual }
    return .path(signpost(in: folder(of: path), configPath))
  }

  /// Where to look for the gateway of a configuration, one after the other. `socket` is what that says, nil when it can't be read: then
  /// also a gateway that is perhaps another configuration's.
  public static func places(
    _ socket: Config.Control.Socket?, configPath: String, environment: [String: String]
  ) -> [UnixAddress] {
    let said = socket.flatMap { UnixAddress($0, configPath: configPath, environment: environment, isAsking: true) }
    var places = said.map { [$0] } ?? []
    if socket != nil && said == nil { return [] }  // off
    let given = environment["RUNTIME_DIRECTORY"]?.split(separator: ":").first.map(String.init)
    let runtime = given ?? folder(of: service)
    places.append(.path(signpost(in: runtime, configPath)))
    if socket == nil {
      places.append(.path("\(runtime)/control.sock"))
      let others = names(in: runtime).filter { $0.hasPrefix(mark) && $0.hasSuffix(".sock") }
      if others.count == 1 { places.append(.path("\(runtime)/\(others[0])")) }
    }
    places.append(abstract(of: configPath))
    return places.reduce(into: []) { if !$0.contains($1) { $0.append($1) } }
  }

  private static func signpost(in folder: String, _ configPath: String) -> String {
    // FNV-1a: short, and the same in every version.
    let hash = real(configPath).utf8.reduce(0xCBF2_9CE4_8422_2325 as UInt64) { ($0 ^ UInt64($1)) &* 0x100_0000_01B3 }
    return "\(folder)/\(mark)\(String(hash, radix: 16)).sock"
  }

  private static func abstract(of configPath: String) -> UnixAddress {
    let owner = "\(prefix)/\(geteuid())/"
    // The end of a long path says more than its beginning.
    let end = real(configPath).utf8.suffix(100 - owner.utf8.count)
    return .abstract(owner + String(decoding: end, as: UTF8.self))
  }

  private static func folder(of path: String) -> String {
    String(path[..<(path.lastIndex(of: "/") ?? path.startIndex)])
  }

  private static func names(in folder: String) -> [String] {
    guard let directory = opendir(folder) else { return [] }
    defer { closedir(directory) }
    var names: [String] = []
    while let entry = readdir(directory) {
      names.append(
        withUnsafePointer(to: &entry.pointee.d_name) {
          $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
        })
    }
    return names
  }

  private static let mark = "control-"

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
