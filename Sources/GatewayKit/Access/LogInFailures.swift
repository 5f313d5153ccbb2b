// Failed log-ins per address, and how long the next try must wait: a value of bounded size. It limits guessing from one
// address to one try in some seconds, however many connections the address opens.

import ByteStreams

struct LogInFailures {
  /// Tries without a pause, because people mistype: from this number of failures on, the next try must wait.
  static let free = 3
  /// The first pause, in nanoseconds; it doubles with each failure, up to `longest`.
  static let first: UInt64 = 500_000_000
  static let longest: UInt64 = 4_000_000_000
  /// A try that would have to wait longer is refused: the whole handshake has 10 s.
  static let timeout: UInt64 = 8_000_000_000
  /// One failure is forgotten after each period of this length, in nanoseconds.
  static let memory: UInt64 = 60_000_000_000
  /// Addresses that are kept. Beyond that, the one whose last failure is oldest is dropped.
  static let most = 4096

  private struct Entry {
    var count: Int
    var last: UInt64
    /// When the next try may be made.
    var next: UInt64
  }
  private var entries: [SocketAddress: Entry] = [:]

  var count: Int { entries.count }

  /// Reserves the time at which a try from `address` may be made and returns it; nil if it is too far ahead.
  mutating func next(from address: SocketAddress, at now: UInt64) -> UInt64? {
    let sender = address.rateLimitKey
    guard var entry = remembered(sender, at: now) else { return now }
    let pause = Self.pause(behind: entry.count)
    guard pause > 0 else { return now }
    let time = max(now, entry.next)
    if time - now > Self.timeout { return nil }
    entry.next = time + pause
    entries[sender] = entry
    return time
  }

  /// Counts a failure. Returns the address's failures so far.
  mutating func failed(from address: SocketAddress, at now: UInt64) -> Int {
    let sender = address.rateLimitKey
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

  /// An address's failures that are not forgotten at `now`; removes the entry if there are none.
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
