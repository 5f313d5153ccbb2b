// Who has failed to log in, how often, and how long the next try has to wait: a value, and bounded. Who guesses from one address
// is slowed down to one guess in some seconds, however many connections he makes.

import ByteStreams

struct LogInFailures {
  /// So many are forgiven at once: people mistype.
  static let free = 3
  /// The pause behind the first failure that counts; it doubles up to `longest`.
  static let first: UInt64 = 500_000_000
  static let longest: UInt64 = 4_000_000_000
  /// Who would have to wait longer is sent away: the greeting has 10 s.
  static let patience: UInt64 = 8_000_000_000
  /// One failure is forgotten in so long.
  static let memory: UInt64 = 60_000_000_000
  /// Addresses that are remembered; then the one that has failed longest ago is forgotten.
  static let most = 4096

  private struct Entry {
    var count: Int
    var last: UInt64
    /// When the next try may be made.
    var next: UInt64
  }
  private var entries: [SocketAddress: Entry] = [:]

  var count: Int { entries.count }

  /// When a try from `address` at `now` may be made, and reserves that moment; nil when too many wait already.
  mutating func next(from address: SocketAddress, at now: UInt64) -> UInt64? {
    let sender = address.household
    guard var entry = remembered(sender, at: now) else { return now }
    let pause = Self.pause(behind: entry.count)
    guard pause > 0 else { return now }
    let time = max(now, entry.next)
    if time - now > Self.patience { return nil }
    entry.next = time + pause
    entries[sender] = entry
    return time
  }

  /// Counts a failure. How many there are now.
  mutating func failed(from address: SocketAddress, at now: UInt64) -> Int {
    let sender = address.household
    var entry = remembered(sender, at: now) ?? Entry(count: 0, last: now, next: now)
    if entries[sender] == nil && entries.count == Self.most { forgetOldest() }
    entry.count = min(entry.count + 1, 1000)
    entry.last = now
    entry.next = max(entry.next, now + Self.pause(behind: entry.count))
    entries[sender] = entry
    return entry.count
  }

  private static func pause(behind count: Int) -> UInt64 {
    count < free ? 0 : min(first << UInt64(min(count - free, 8)), longest)
  }

  /// What is left of an address's failures at `now`; takes it out when that is nothing.
  private mutating func remembered(_ sender: SocketAddress, at now: UInt64) -> Entry? {
    guard var entry = entries[sender] else { return nil }
    let forgotten = Int(clamping: (now &- entry.last) / Self.memory)
    guard forgotten > 0 else { return entry }
    entry.count -= forgotten
    entry.last += UInt64(forgotten) * Self.memory
    entries[sender] = entry.count > 0 ? entry : nil
    return entries[sender]
  }

  private mutating func forgetOldest() {
    if let oldest = entries.min(by: { $0.value.last < $1.value.last }) { entries[oldest.key] = nil }
  }
}
