// How many clients of one address are greeted at a time, and how fast they may come, so that one address keeps no other out.
// Values: who comes and goes is told, what may be done is answered.

import ByteStreams
import Synchronization

/// Clients who are being greeted, by address. Those beyond the limit wait in the order they came, and beyond that are refused.
struct AddressLimits {
  enum Verdict: Hashable { case greet, wait, refuse }

  private struct Crowd {
    /// And since when.
    var greeted: [UInt64: UInt64] = [:]
    var waiting: [UInt64] = []
    var count: Int { greeted.count + waiting.count }
  }

  /// One that is lowered sends nobody away.
  private(set) var most: Int
  /// So many times `most` may wait: each costs a descriptor, of which one address must not have all.
  static let waitingPerPlace = 5
  private var crowds: [SocketAddress: Crowd] = [:]
  private var waiting = 0
  /// Addresses by how many of each there are, and how many the largest crowd has.
  private var bySize: [Int: Set<SocketAddress>] = [:]
  private var largest = 0

  init(most: Int) { self.most = most }

  /// Whether client `number` may be greeted now. Who is told to wait is named by a `leave` later, or leaves himself.
  /// `now` is in nanoseconds.
  mutating func enter(_ number: UInt64, from address: SocketAddress, at now: UInt64 = 0) -> Verdict {
    let household = address.household
    var crowd = crowds[household] ?? Crowd()
    if crowd.greeted.count < most && crowd.waiting.isEmpty {
      crowd.greeted[number] = now
      keep(crowd, of: household)
      return .greet
    }
    guard crowd.waiting.count < most * Self.waitingPerPlace else { return .refuse }
    crowd.waiting.append(number)
    waiting += 1
    keep(crowd, of: household)
    return .wait
  }

  /// Client `number` is greeted, or gone. Who may be greeted in his place.
  mutating func leave(_ number: UInt64, from address: SocketAddress, at now: UInt64 = 0) -> UInt64? {
    let household = address.household
    guard var crowd = crowds[household] else { return nil }
    if crowd.greeted.removeValue(forKey: number) == nil {
      waiting -= crowd.waiting.count
      crowd.waiting.removeAll { $0 == number }
      waiting += crowd.waiting.count
    }
    var next: UInt64?
    if crowd.greeted.count < most, !crowd.waiting.isEmpty {
      let first = crowd.waiting.removeFirst()
      waiting -= 1
      crowd.greeted[first] = now
      next = first
    }
    keep(crowd, of: household)
    return next
  }

  private mutating func keep(_ crowd: Crowd, of household: SocketAddress) {
    let (before, count) = (crowds[household]?.count ?? 0, crowd.count)
    crowds[household] = count == 0 ? nil : crowd
    guard count != before else { return }
    if before > 0 { bySize[before]?.remove(household) }
    if count > 0 { bySize[count, default: []].insert(household) }
    largest = max(largest, count)
    while largest > 0, bySize[largest]?.isEmpty ?? true {
      bySize[largest] = nil
      largest -= 1
    }
  }

  /// Who goes for one more of `address`, where there are too many in all: of the address that has most the last to wait, else the one
  /// greeted longest; `oldest` where none has more than one. Nil when it is that address's own turn not to get in.
  func toMakeRoom(for address: SocketAddress?, oldest: @autoclosure () -> UInt64?) -> UInt64? {
    let own = address.flatMap { crowds[$0.household]?.count } ?? 0
    guard largest > own else { return largest == 0 ? oldest() : nil }
    guard largest > 1, let household = bySize[largest]?.first, let crowd = crowds[household] else { return oldest() }
    return crowd.waiting.last ?? crowd.greeted.min { ($0.value, $0.key) < ($1.value, $1.key) }?.key
  }

  /// Gives up the room of addresses that were many once.
  mutating func shrink() {
    guard crowds.isEmpty else { return }
    crowds = [:]
    bySize = [:]
  }

  /// As many of one address from now on. Who may be greeted at once, now that more may, in the order they came.
  mutating func set(most: Int, at now: UInt64 = 0) -> [UInt64] {
    self.most = most
    var letIn: [UInt64] = []
    for (household, crowd) in crowds where !crowd.waiting.isEmpty && crowd.greeted.count < most {
      var crowd = crowd
      let next = crowd.waiting.prefix(most - crowd.greeted.count)
      for number in next { crowd.greeted[number] = now }
      crowd.waiting.removeFirst(next.count)
      waiting -= next.count
      crowds[household] = crowd
      letIn += next
    }
    return letIn.sorted()
  }

  /// Whether anybody waits, of any address.
  var isCrowded: Bool { waiting > 0 }

  /// Those who have been greeted for longer than `share` while others of their address wait: the longest first, and not more
  /// than wait.
  func overdue(at now: UInt64, after share: UInt64) -> [UInt64] {
    crowds.values.filter { !$0.waiting.isEmpty }.flatMap { crowd in
      crowd.greeted.filter { now &- $0.value >= share }.sorted { ($0.value, $0.key) < ($1.value, $1.key) }
        .prefix(crowd.waiting.count).map(\.key)
    }
  }

  /// Addresses that somebody is from.
  var count: Int { crowds.count }
}

/// How many clients one address may send in a second. A bucket per address that holds one second's worth.
struct ConnectRate {
  private struct Bucket {
    var left: Double
    var since: UInt64
  }

  /// Per second; nil for any number.
  var limit: Int? { didSet { if limit != oldValue { buckets = [:] } } }
  private var buckets: [SocketAddress: Bucket] = [:]
  /// Whose bucket has filled up again is forgotten when so many are kept, and everybody if that is not enough.
  private static let mostKept = 16384

  init(limit: Int?) { self.limit = limit }

  /// Whether one more client from `address` is within the limit; `now` is in nanoseconds.
  mutating func admits(_ address: SocketAddress, at now: UInt64) -> Bool {
    guard let limit else { return true }
    if buckets.count >= Self.mostKept { forget(at: now) }
    let household = address.household
    let bucket = buckets[household] ?? Bucket(left: Double(limit), since: now)
    let gained = Double(now &- bucket.since) / 1e9 * Double(limit)
    let left = min(Double(limit), bucket.left + gained)
    buckets[household] = Bucket(left: left < 1 ? left : left - 1, since: now)
    return left >= 1
  }

  private mutating func forget(at now: UInt64) {
    buckets = buckets.filter { now &- $0.value.since < 1_000_000_000 }
    if buckets.count >= Self.mostKept { buckets = [:] }
  }

  var count: Int { buckets.count }
}

/// The rate of the whole gateway: listeners of all lanes ask it.
final class ConnectRates: Sendable {
  private let isLimited = Atomic(false)
  private let rate = Mutex(ConnectRate(limit: nil))

  func set(_ limit: Int?) {
    rate.withLock { $0.limit = limit }
    isLimited.store(limit != nil, ordering: .relaxed)
  }

  func admits(_ address: SocketAddress?) -> Bool {
    guard let address, isLimited.load(ordering: .relaxed) else { return true }
    return rate.withLock { $0.admits(address, at: monotonicNanoseconds()) }
  }
}

/// The networks under `proxies`: routes of all lanes ask, and a reload changes them.
final class ProxyNetworks: Sendable {
  private let networks = Mutex<[Network]>([])

  func set(_ networks: [Network]) { self.networks.withLock { $0 = networks } }
  func contains(_ address: SocketAddress) -> Bool { networks.withLock { $0.contains { $0.contains(address) } } }
}

/// Clients that have a place on a route, by address: `clients.per-address`.
struct AddressCrowds {
  private var households: [UInt64: SocketAddress] = [:]
  private var counts: [SocketAddress: Int] = [:]

  /// Session `number` has a place.
  mutating func enter(_ number: UInt64, from address: SocketAddress?) {
    guard let household = address?.household else { return }
    households[number] = household
    counts[household, default: 0] += 1
  }

  mutating func leave(_ number: UInt64) {
    guard let household = households.removeValue(forKey: number), let count = counts[household] else { return }
    counts[household] = count > 1 ? count - 1 : nil
  }

  /// How many clients have the address of this one, or another of the same household.
  func count(of address: SocketAddress) -> Int { counts[address.household] ?? 0 }
}

/// Why a client ends as `full` although the route has places.
struct AddressIsFull: Error, CustomStringConvertible {
  let host: String
  let count: Int
  var description: String { "\(count) of \(host) are here (clients.per-address)" }
}
