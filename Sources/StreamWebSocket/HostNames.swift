// The names by which pages of the same origin may reach a server. This protects against DNS rebinding: the owner of a
// page can let its own name resolve to an address inside your network, so that Origin and Host agree. But its name
// can't be one of these.

import ByteStreams

package struct HostNames: Equatable, Sendable {
  /// In lower case; "*.example.org" matches one label, "*" matches every name.
  package var names: Set<String>

  package init(_ names: some Sequence<String>) { self.names = Set(names.map(Self.normal)) }

  /// Whether `host`, as in a Host field, with or without a port, is one of the names, a numeric address, or localhost.
  package func contains(_ host: String) -> Bool {
    if names.contains("*") { return true }
    // "[::1]:8080": the brackets are part of the field, and contain only addresses.
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

  /// ASCII letters in lower case, without the dot of the root.
  private static func normal(_ name: String) -> String {
    let name = lowercased(name)
    return name.hasSuffix(".") ? String(name.dropLast()) : name
  }
}
