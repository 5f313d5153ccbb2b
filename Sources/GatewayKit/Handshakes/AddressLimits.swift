// Limits per client address: unfinished handshakes, connections per second, slots of a route. One address must not lock
// out the others. These are values: the caller reports each connection and its end, and gets the verdict back.

import ByteStreams
import Synchronization

/// Unfinished handshakes, by address. Clients above the limit wait in the order they connected; when too many wait, the
/// next is refused.
struct AddressLimits {
  enum Verdict: Hashable { case proceed, wait, refuse }

  private struct Crowd {
    /// Client number → start of its handshake, in nanoseconds.
    var underWay: [UInt64: UInt64] = [:]
    var waiting: [UInt64] = []
    var count: Int { underWay.count + waiting.count }
  }

  /// Unfinished handshakes per address. Lowering it disconnects no client.
  private(set) var most: Int
  /// At most this many times `most` wait per address: each costs a descriptor, and one address must not use them all.
  static let waitingPerSlot = 5
  private var crowds: [SocketAddress: Crowd] = [:]
  private var waiting = 0
  /// Addresses by the size of their crowd (clients that handshake or wait); `largest` is the size of the largest crowd.
  private var bySize: [Int: Set<SocketAddress>] = [:]
  private var largest = 0

  init(most: Int) { self.most = most }

  /// Whether the handshake of client `number` may begin now. After `.wait`, a later `leave` or `set` returns its
  /// number, or the caller calls `leave` for it. `now` is in nanoseconds.
  mutating func enter(_ number: UInt64, from address: SocketAddress, at now: UInt64 = 0) -> Verdict {
    let rateLimitKey = address.rateLimitKey
    var crowd = crowds[rateLimitKey] ?? Crowd()
    if crowd.underWay.count < most && crowd.waiting.isEmpty {
      crowd.underWay[number] = now
      keep(crowd, of: rateLimitKey)
      return .proceed
    }
    guard crowd.waiting.count < most * Self.waitingPerSlot else { return .refuse }
    crowd.waiting.append(number)
    waiting += 1
    keep(crowd, of: rateLimitKey)
    return .wait
  }

  /// The handshake of client `number` is over, or its wait. Returns the client whose handshake begins in its place.
  mutating func leave(_ number: UInt64, from address: SocketAddress, at now: UInt64 = 0) -> UInt64? {
    let rateLimitKey = address.rateLimitKey
    guard var crowd = crowds[rateLimitKey] else { return nil }
    if crowd.underWay.removeValue(forKey: number) == nil {
      waiting -= crowd.waiting.count
      crowd.waiting.removeAll { $0 == number }
      waiting += crowd.waiting.count
    }
    var next: UInt64?
    if crowd.underWay.count < most, !crowd.waiting.isEmpty {
      let first = crowd.waiting.removeFirst()
      waiting -= 1
      crowd.underWay[first] = now
      next = first
    }
    keep(crowd, of: rateLimitKey)
    return next
  }

  private mutating func keep(_ crowd: Crowd, of rateLimitKey: SocketAddress) {
    let (before, count) = (crowds[rateLimitKey]?.count ?? 0, crowd.count)
    crowds[rateLimitKey] = count == 0 ? nil : crowd
    guard count != before else { return }
    if before > 0 { bySize[before]?.remove(rateLimitKey) }
    if count > 0 { bySize[count, default: []].insert(rateLimitKey) }
    largest = max(largest, count)
    while largest > 0, bySize[largest]?.isEmpty ?? true {
      bySize[largest] = nil
      largest -= 1
    }
  }

  /// The client to disconnect when a new one from `address` makes too many in all. It comes from the largest crowd: the
  /// last client that waits there, else the one with the longest handshake. If no crowd has more than one client, it is
  /// `oldest`. Nil means to refuse the new client: no crowd is larger than its own.
  func toMakeRoom(for address: SocketAddress?, oldest: @autoclosure () -> UInt64?) -> UInt64? {
    let own = address.flatMap { crowds[$0.rateLimitKey]?.count } ?? 0
    guard largest > own else { return largest == 0 ? oldest() : nil }
    guard largest > 1, let rateLimitKey = bySize[largest]?.first, let crowd = crowds[rateLimitKey] else {
      return oldest()
    }
    return crowd.waiting.last ?? crowd.underWay.min { ($0.value, $0.key) < ($1.value, $1.key) }?.key
  }

  /// Frees the tables' memory once they are empty: they keep the size of the largest wave.
  mutating func shrink() {
    guard crowds.isEmpty else { return }
    crowds = [:]
    bySize = [:]
  }

  /// Changes the limit per address. Returns the clients whose handshakes may begin now, in the order they connected.
  mutating func set(most: Int, at now: UInt64 = 0) -> [UInt64] {
    self.most = most
    var letIn: [UInt64] = []
    for (rateLimitKey, crowd) in crowds where !crowd.waiting.isEmpty && crowd.underWay.count < most {
      var crowd = crowd
      let next = crowd.waiting.prefix(most - crowd.underWay.count)
      for number in next { crowd.underWay[number] = now }
      crowd.waiting.removeFirst(next.count)
      waiting -= next.count
      crowds[rateLimitKey] = crowd
      letIn += next
    }
    return letIn.sorted()
  }

  /// Whether a client of any address waits.
  var isCrowded: Bool { waiting > 0 }

  /// Clients whose handshakes have lasted `share` nanoseconds or more while others of their address wait. Per address:
  /// the longest handshake first, and at most as many as wait.
  func overdue(at now: UInt64, after share: UInt64) -> [UInt64] {
    crowds.values.filter { !$0.waiting.isEmpty }.flatMap { crowd in
      crowd.underWay.filter { now &- $0.value >= share }.sorted { ($0.value, $0.key) < ($1.value, $1.key) }
        .prefix(crowd.waiting.count).map(\.key)
    }
  }

  /// Addresses with at least one client.
  var count: Int { crowds.count }
}

/// Connections per second and address: a token bucket per address that holds one second's tokens.
struct ConnectRate {
  private struct Bucket {
    var left: Double
    var since: UInt64
  }

  /// Connections per second; nil for no limit.
  var limit: Int? { didSet { if limit != oldValue { buckets = [:] } } }
  private var buckets: [SocketAddress: Bucket] = [:]
  /// At this many buckets the full ones are dropped, and all of them if that is not enough.
  private static let mostKept = 16384

  init(limit: Int?) { self.limit = limit }

  /// Whether one more client from `address` is within the limit; `now` is in nanoseconds.
  mutating func admits(_ address: SocketAddress, at now: UInt64) -> Bool {
    guard let limit else { return true }
    if buckets.count >= Self.mostKept { forget(at: now) }
    let rateLimitKey = address.rateLimitKey
    let bucket = buckets[rateLimitKey] ?? Bucket(left: Double(limit), since: now)
    let gained = Double(now &- bucket.since) / 1e9 * Double(limit)
    let left = min(Double(limit), bucket.left + gained)
    buckets[rateLimitKey] = Bucket(left: left < 1 ? left : left - 1, since: now)
    return left >= 1
  }

  private mutating func forget(at now: UInt64) {
    buckets = buckets.filter { now &- $0.value.since < 1_000_000_000 }
    if buckets.count >= Self.mostKept { buckets = [:] }
  }

  var count: Int { buckets.count }
}

/// The connection rate of the whole gateway, checked by listeners on all lanes.
final class ConnectRates: Sendable {
  private let isLimited = Atomic(false)
  private let rate = Mutex(ConnectRate(limit: nil))

  func set(_ limit: Int?) {
    rate.withLock { $0.limit = limit }
    isLimited.store(limit != nil, ordering: .relaxed)
  }

  /// `now` is in nanoseconds, on the clock of all lanes.
  func admits(_ address: SocketAddress?, at now: UInt64) -> Bool {
    guard let address, isLimited.load(ordering: .relaxed) else { return true }
    return rate.withLock { $0.admits(address, at: now) }
  }
}

/// The networks under `proxies`. Routes on all lanes check them, and a reload changes them.
final class ProxyNetworks: Sendable {
  private let networks = Mutex<[AddressBlock]>([])

  func set(_ networks: [AddressBlock]) { self.networks.withLock { $0 = networks } }
  func contains(_ address: SocketAddress) -> Bool { networks.withLock { $0.contains { $0.contains(address) } } }
}

/// Clients that have a slot on a route, by address: `clients.per-address`.
struct AddressCrowds {
  private var counts: [SocketAddress: Int] = [:]

  /// A client got a slot.
  mutating func enter(from address: SocketAddress?) {
    if let address { counts[address.rateLimitKey, default: 0] += 1 }
  }

  mutating func leave(from address: SocketAddress?) {
    guard let rateLimitKey = address?.rateLimitKey, let count = counts[rateLimitKey] else { return }
    counts[rateLimitKey] = count > 1 ? count - 1 : nil
  }

  /// How many clients have the same rate-limit key as `address`.
  func count(of address: SocketAddress) -> Int { counts[address.rateLimitKey] ?? 0 }
}

/// Why a client ends as `full` although the route has free slots.
struct AddressIsFull: Error, CustomStringConvertible {
  let host: String
  let count: Int
  var description: String {
    "\(host) already has \(count == 1 ? "a client" : "\(count) clients") (clients.per-address)"
  }
}
