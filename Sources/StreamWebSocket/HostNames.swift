// The names under which a server may be reached by pages of the same origin. The defence against DNS rebinding: the owner of a
// page can let its own name resolve to an address inside your network, so that Origin and Host agree; it can't make it one of these.

import ByteStreams

public struct HostNames: Equatable, Sendable {
  /// In lower case; "*.example.org" stands for one label, "*" for every name.
  public var names: Set<String>

  public init(_ names: some Sequence<String>) { self.names = Set(names.map(Self.normal)) }

  /// Whether `host`, as a Host field writes it, with or without a port, is one of the names, an address in digits, or localhost.
  public func contains(_ host: String) -> Bool {
    if names.contains("*") { return true }
    // "[::1]:8080": the brackets are part of the field, and inside them there are only addresses.
    if host.utf8.first == UInt8(ascii: "[") {
      guard let end = host.firstIndex(of: "]") else { return false }
      let address = String(host[host.index(after: host.startIndex)..<end].prefix { $0 != "%" })
      return SocketAddress(numeric: address, port: 0) != nil
    }
    let name = Self.normal(String(host.prefix { $0 != ":" }))
    if name == "localhost" || SocketAddress(numeric: name, port: 0) != nil { return true }
    if names.contains(name) { return true }
    guard let dot = name.firstIndex(of: "."), dot != name.startIndex else { return false }
    return names.contains("*" + name[dot...])
  }

  /// ASCII letters in lower case, and without the root's dot.
  private static func normal(_ name: String) -> String {
    let name = lowercased(name)
    return name.hasSuffix(".") ? String(name.dropLast()) : name
  }
}
