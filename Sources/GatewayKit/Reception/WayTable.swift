// The ways through one entrance, in the order in which they came. A port may have thousands: finding, adding and removing one takes the
// same time however many there are.

import StreamBroker
import StreamTLS

struct WayTable: Sequence {
  private var byNumber: [UInt64: Way] = [:]
  /// Those that have gone stay in here until they are half of it.
  private var order: [UInt64] = []
  /// Index of the first in `order` that is here still.
  private var head = 0
  private var byName: [String?: Names] = [:]
  private var bySettings: [TLSServerSettings: Set<UInt64>] = [:]
  private var keepingAlive = 0
  private var sharing = 0

  private struct Names {
    var all: Set<UInt64> = []
    /// Of WebSockets.
    var paths: [String: Set<UInt64>] = [:]
  }

  var count: Int { byNumber.count }
  var isEmpty: Bool { byNumber.isEmpty }
  var first: Way? { head < order.count ? byNumber[order[head]] : nil }
  var keepsAlive: Bool { keepingAlive > 0 }
  var limitsUnsent: Bool { sharing > 0 }

  subscript(number: UInt64) -> Way? { byNumber[number] }

  func makeIterator() -> AnyIterator<Way> {
    var numbers = order[head...].makeIterator()
    return AnyIterator {
      while let number = numbers.next() { if let way = byNumber[number] { return way } }
      return nil
    }
  }

  // MARK: - Changes

  /// Adds a way, or takes this one in place of the one with its number.
  mutating func set(_ way: Way) {
    if let old = byNumber[way.number] { forget(old) } else { order.append(way.number) }
    byNumber[way.number] = way
    var names = byName.removeValue(forKey: way.serverName) ?? Names()
    names.all.insert(way.number)
    if way.listen.usesWebSocket { names.paths[way.listen.url.path, default: []].insert(way.number) }
    byName[way.serverName] = names
    if let settings = way.tls { bySettings[settings, default: []].insert(way.number) }
    if way.keepsAlive { keepingAlive += 1 }
    if way.isShared { sharing += 1 }
  }

  mutating func remove(_ number: UInt64) {
    guard let way = byNumber.removeValue(forKey: number) else { return }
    forget(way)
    while head < order.count, byNumber[order[head]] == nil { head += 1 }
    if order.count > 2 * byNumber.count + 16 {
      order = order.filter { byNumber[$0] != nil }
      head = 0
    }
  }

  private mutating func forget(_ way: Way) {
    if var names = byName.removeValue(forKey: way.serverName) {
      names.all.remove(way.number)
      let path = way.listen.url.path
      names.paths[path]?.remove(way.number)
      if names.paths[path]?.isEmpty ?? false { names.paths[path] = nil }
      if !names.all.isEmpty { byName[way.serverName] = names }
    }
    if let settings = way.tls {
      bySettings[settings]?.remove(way.number)
      if bySettings[settings]?.isEmpty ?? false { bySettings[settings] = nil }
    }
    if way.keepsAlive { keepingAlive -= 1 }
    if way.isShared { sharing -= 1 }
  }

  // MARK: - What clients ask for

  /// Whether some way has these settings.
  func contains(_ settings: TLSServerSettings) -> Bool { bySettings[settings] != nil }

  /// The numbers of those that show the same certificates by the same rules.
  func numbers(with settings: TLSServerSettings) -> [UInt64] { (bySettings[settings] ?? []).sorted() }

  /// Where a client may go that has asked for `name` (SNI), in lower case: ways of that name, else of a wildcard's, else those of any.
  private func names(for name: String?) -> Names? {
    if let name {
      if let exact = byName[name] { return exact }
      if let wildcard = TLSServerContext.wildcard(of: name), let those = byName[wildcard] { return those }
    }
    return byName[nil]
  }

  /// The only one for `name`; nil where there is none, or a choice.
  func only(for name: String?) -> Way? {
    guard let all = names(for: name)?.all, all.count == 1 else { return nil }
    return all.first.flatMap { byNumber[$0] }
  }

  /// One of those for `name`, the first of them that `number` accepts.
  func first(for name: String?, where isRight: (UInt64) -> Bool = { _ in true }) -> Way? {
    guard let all = names(for: name)?.all else { return nil }
    return all.first(where: isRight).flatMap { byNumber[$0] }
  }

  /// The WebSocket's way for `name` with this path.
  func webSocket(for name: String?, path: String) -> Way? {
    names(for: name)?.paths[path]?.min().flatMap { byNumber[$0] }
  }
}
