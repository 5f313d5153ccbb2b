// The route bindings of one shared listen socket, in the order they were added. A port can have thousands: finding,
// adding and removing one takes constant time.

import StreamBroker
import StreamTLS

struct RouteBindingTable: Sequence {
  private var byNumber: [UInt64: RouteBinding] = [:]
  /// Numbers of removed bindings stay in here until they are about half of it.
  private var order: [UInt64] = []
  /// Index in `order` of the first binding that still exists.
  private var head = 0
  private var byName: [String?: Names] = [:]
  private var bySettings: [TLSServerSettings: Set<UInt64>] = [:]

  private struct Names {
    var all: Set<UInt64> = []
    /// WebSocket bindings by URL path.
    var paths: [String: Set<UInt64>] = [:]
    /// The bindings of the admin listener; a valid configuration has one at most.
    var admin: Set<UInt64> = []
  }

  var count: Int { byNumber.count }
  var isEmpty: Bool { byNumber.isEmpty }
  var first: RouteBinding? { head < order.count ? byNumber[order[head]] : nil }

  subscript(number: UInt64) -> RouteBinding? { byNumber[number] }

  func makeIterator() -> AnyIterator<RouteBinding> {
    var numbers = order[head...].makeIterator()
    return AnyIterator {
      while let number = numbers.next() { if let binding = byNumber[number] { return binding } }
      return nil
    }
  }

  // MARK: - Changes

  /// Adds a binding, or replaces the one with its number.
  mutating func set(_ binding: RouteBinding) {
    if let old = byNumber[binding.number] { forget(old) } else { order.append(binding.number) }
    byNumber[binding.number] = binding
    var names = byName.removeValue(forKey: binding.serverName) ?? Names()
    names.all.insert(binding.number)
    if binding.listen.usesWebSocket {
      names.paths[Self.normal(binding.listen.url.path), default: []].insert(binding.number)
    }
    if binding.listen.isAdmin { names.admin.insert(binding.number) }
    byName[binding.serverName] = names
    if let settings = binding.tls { bySettings[settings, default: []].insert(binding.number) }
  }

  mutating func remove(_ number: UInt64) {
    guard let binding = byNumber.removeValue(forKey: number) else { return }
    forget(binding)
    while head < order.count, byNumber[order[head]] == nil { head += 1 }
    if order.count > 2 * byNumber.count + 16 {
      order = order.filter { byNumber[$0] != nil }
      head = 0
    }
  }

  private mutating func forget(_ binding: RouteBinding) {
    if var names = byName.removeValue(forKey: binding.serverName) {
      names.all.remove(binding.number)
      names.admin.remove(binding.number)
      let path = Self.normal(binding.listen.url.path)
      names.paths[path]?.remove(binding.number)
      if names.paths[path]?.isEmpty ?? false { names.paths[path] = nil }
      if !names.all.isEmpty { byName[binding.serverName] = names }
    }
    if let settings = binding.tls {
      bySettings[settings]?.remove(binding.number)
      if bySettings[settings]?.isEmpty ?? false { bySettings[settings] = nil }
    }
  }

  // MARK: - What clients ask for

  /// Whether a binding has these settings.
  func contains(_ settings: TLSServerSettings) -> Bool { bySettings[settings] != nil }

  /// Numbers of the bindings with the same TLS settings.
  func numbers(with settings: TLSServerSettings) -> [UInt64] { (bySettings[settings] ?? []).sorted() }

  /// The bindings for a client that asks for `name` (SNI, in lower case): those of this name, else of its wildcard,
  /// else those without a name.
  private func names(for name: String?) -> Names? {
    if let name {
      if let exact = byName[name] { return exact }
      if let wildcard = TLSServerContext.wildcard(of: name), let those = byName[wildcard] { return those }
    }
    return byName[nil]
  }

  /// The only binding for `name`; nil if there is none or several.
  func only(for name: String?) -> RouteBinding? {
    guard let all = names(for: name)?.all, all.count == 1 else { return nil }
    return all.first.flatMap { byNumber[$0] }
  }

  /// A binding for `name` whose number `isRight` accepts; if there are several, any of them.
  func first(for name: String?, where isRight: (UInt64) -> Bool = { _ in true }) -> RouteBinding? {
    guard let all = names(for: name)?.all else { return nil }
    return all.first(where: isRight).flatMap { byNumber[$0] }
  }

  /// The admin listener for `name`.
  func admin(for name: String?) -> RouteBinding? { names(for: name)?.admin.min().flatMap { byNumber[$0] } }

  /// `/gps/` is `/gps`: proxies and people add the slash.
  static func normal(_ path: String) -> String {
    path.count > 1 && path.hasSuffix("/") ? String(path.dropLast()) : path
  }

  /// The WebSocket binding for `name` with this path; the oldest if there are several.
  func webSocket(for name: String?, path: String) -> RouteBinding? {
    names(for: name)?.paths[Self.normal(path)]?.min().flatMap { byNumber[$0] }
  }
}
