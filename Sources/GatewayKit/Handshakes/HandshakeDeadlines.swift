// Limits handshakes in time: one timeout covers all steps (PROXY header, TLS, HTTP, log-in), from accept(2) on,
// whatever the client sends. A value: HandshakeServer has the timer, and ends the pending connections that are returned
// here.

import ByteStreams

/// All handshakes have the same timeout, so they time out in the order they began, and one timer serves them all.
struct HandshakeDeadlines {
  let timeout: Duration
  // In the order they began; many entries are of handshakes that have finished.
  private var deadlines: [(pending: UInt64, time: UInt64)] = []
  /// Index of the first entry that is not forgotten. Forgotten ones stay until they are half of all, so that each costs
  /// constant time, also in a flood.
  private var head = 0

  init(_ timeout: Duration) { self.timeout = timeout }

  /// A handshake that takes longer is refused while others of its address wait.
  var share: Duration { timeout * 3 / 20 }

  mutating func add(_ pending: UInt64, at now: UInt64) { deadlines.append((pending, now &+ timeout.nanoseconds)) }

  /// The time until the next deadline; nil if there is none.
  func next(at now: UInt64) -> Duration? {
    guard let time = deadlines[head...].first?.time else { return nil }
    return .nanoseconds(Int64(clamping: time &- min(now, time)))
  }

  /// The pending connections whose time is over, each returned once.
  mutating func expired(at now: UInt64) -> [UInt64] {
    let expired = deadlines[head...].prefix { $0.time <= now }.map(\.pending)
    dropFirst(expired.count)
    return expired
  }

  /// Forgets the handshakes that have finished, up to the first that has not.
  mutating func forget(unless isPending: (UInt64) -> Bool) {
    let finished = deadlines[head...].prefix { !isPending($0.pending) }.count
    dropFirst(finished)
  }

  private mutating func dropFirst(_ count: Int) {
    head += count
    guard head > deadlines.count / 2 else { return }
    deadlines.removeFirst(head)
    head = 0
  }

  /// The handshake that began first, of those that have not finished. Forgets those before it: while a flood makes room
  /// for itself, they become many.
  mutating func oldest(where isPending: (UInt64) -> Bool) -> UInt64? {
    forget(unless: isPending)
    return deadlines[head...].first?.pending
  }

  /// Frees the memory of the largest wave.
  mutating func shrink() { if deadlines.isEmpty { deadlines = [] } }
}
