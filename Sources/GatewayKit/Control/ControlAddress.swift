// The address of the control socket: the running gateway and the commands must compute the same one.

import ByteStreams
import Glibc
import StreamBrokerCore

package typealias ControlAddress = UnixAddress

extension UnixAddress {
  /// Nil if the control socket is off. `configPath` distinguishes gateways of one machine if no runtime folder does.
  /// `isAsking`: for a command, which may use a service's folder without write permission.
  package init?(
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
        self = Self.abstract(of: Self.absolute(configPath))
      }
    }
  }

  /// The group that may use a socket at a path, or that of its folder if only that can be looked at.
  package var group: String? {
    guard case .path(let path) = self else { return nil }
    var status = stat()
    guard stat(path, &status) == 0 || stat(Self.folder(of: path), &status) == 0 else { return nil }
    return NodeOwnership.name(ofGroup: status.st_gid)
  }

  // MARK: - When the configuration can't be read

  /// A second address for a control socket at a configured path, for commands that can't read the configuration. It is
  /// a link to the socket in the runtime folder, named after the configuration; without such a folder, an abstract
  /// address. Nil if commands look at the socket's own address anyway.
  static func socketLink(
    for address: UnixAddress, configPath: String, environment: [String: String]
  ) -> UnixAddress? {
    let usual = UnixAddress(.automatic, configPath: configPath, environment: environment)
    guard let usual, usual != address else { return nil }
    guard case .path(let path) = usual else { return usual }
    return .path(socketLink(in: folder(of: path), absolute(configPath)))
  }

  /// The addresses at which to look for the gateway of a configuration, in order. `socket` is the configured value; if
  /// it is nil because the configuration can't be read, some addresses may belong to another configuration's gateway.
  package static func addresses(
    _ socket: Config.Control.Socket?, configPath: String, environment: [String: String]
  ) -> [UnixAddress] {
    let said = socket.flatMap { UnixAddress($0, configPath: configPath, environment: environment, isAsking: true) }
    var addresses = said.map { [$0] } ?? []
    if socket != nil && said == nil { return [] }  // off
    let given = environment["RUNTIME_DIRECTORY"]?.split(separator: ":").first.map(String.init)
    let runtime = given ?? folder(of: service)
    // A gateway may have been started with another name of the file; the given one comes first.
    let names = [absolute(configPath), real(configPath)]
    addresses += names.map { .path(socketLink(in: runtime, $0)) }
    if socket == nil {
      addresses.append(.path("\(runtime)/control.sock"))
      let others = Self.names(in: runtime).filter { $0.hasPrefix(mark) && $0.hasSuffix(".sock") }
      if others.count == 1 { addresses.append(.path("\(runtime)/\(others[0])")) }
    }
    // The service's socket belongs to whatever configuration it was started with. An address that is named after this one
    // comes before it.
    if socket ?? .automatic == .automatic, given == nil { addresses = names.map { abstract(of: $0) } + addresses }
    addresses += names.map { abstract(of: $0) }
    return addresses.reduce(into: []) { if !$0.contains($1) { $0.append($1) } }
  }

  private static func socketLink(in folder: String, _ name: String) -> String {
    // FNV-1a: short, and stable across versions.
    let hash = name.utf8.reduce(0xCBF2_9CE4_8422_2325 as UInt64) { ($0 ^ UInt64($1)) &* 0x100_0000_01B3 }
    return "\(folder)/\(mark)\(String(hash, radix: 16)).sock"
  }

  private static func abstract(of name: String) -> UnixAddress {
    let owner = "\(prefix)/\(geteuid())/"
    // The end of a long path distinguishes more than its beginning.
    let end = name.utf8.suffix(100 - owner.utf8.count)
    return .abstract(owner + String(decoding: end, as: UTF8.self))
  }

  private static func folder(of path: String) -> String {
    String(path[..<(path.lastIndex(of: "/") ?? path.startIndex)])
  }

  /// The names in a folder; empty if it can't be read.
  static func names(in folder: String) -> [String] {
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

  /// Whether a name in the runtime folder is that of a control socket, or of a link to one.
  static func isOfControl(_ name: String) -> Bool {
    name == "control.sock" || name.hasPrefix(mark) && name.hasSuffix(".sock")
  }

  /// The user of the gateway that an abstract address names; nil if it names none.
  var owner: uid_t? {
    guard case .abstract(let name) = self else { return nil }
    let parts = name.split(separator: "/", maxSplits: 2, omittingEmptySubsequences: false)
    return parts.count == 3 && parts[0] == Self.prefix ? uid_t(parts[1]) : nil
  }

  /// The path as it was given, from the root on, without `.`, `..` and empty parts. Not what it leads to: a link may lead
  /// elsewhere while the gateway runs, as when Kubernetes swaps a ConfigMap.
  private static func absolute(_ path: String) -> String {
    var whole = path
    if !path.hasPrefix("/"), let folder = getcwd(nil, 0) {
      defer { free(folder) }
      whole = "\(String(cString: folder))/\(path)"
    }
    let parts = whole.split(separator: "/").reduce(into: [Substring]()) { parts, part in
      switch part {
      case ".": break
      case "..": _ = parts.popLast()
      default: parts.append(part)
      }
    }
    return "/" + parts.joined(separator: "/")
  }

  /// The path without symbolic links. Works for a file that was removed, too: commands must still find the gateway that
  /// read it.
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
