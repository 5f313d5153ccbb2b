// How long one client has kept the others waiting. A value per session; the hub charges it while it can't read on.

import ByteStreams

/// Healthy clients must not be thrown out for one scheduling tick, and a trickling one must not throttle the rest:
/// so there is a limit for one stretch, and one for all stretches of some seconds together.
struct SlowClock {
  /// One stretch, in nanoseconds. No client may hold up another for more than 50 ms; the hub looks every 10 ms.
  static let mostAtOnce: UInt64 = 40_000_000
  static let tick = Duration.milliseconds(10)
  /// All stretches within `window`, in nanoseconds.
  static let mostInWindow: UInt64 = 150_000_000
  static let window: UInt64 = 5_000_000_000

  private struct Stretch {
    var end: UInt64
    var length: UInt64
  }

  private var stretches: [Stretch] = []
  private var current: UInt64 = 0
  private static let mostStretches = 32

  /// Adds `length` nanoseconds that ended at `now`. Whether that is too much.
  mutating func charge(_ length: UInt64, at now: UInt64) -> Bool {
    current += length
    stretches.removeAll { $0.end + Self.window < now }
    if stretches.count == Self.mostStretches {  // the oldest two become one; a little strict, and bounded
      stretches[1].length += stretches[0].length
      stretches.removeFirst()
    }
    stretches.append(Stretch(end: now, length: length))
    return current >= Self.mostAtOnce || stretches.reduce(0) { $0 + $1.length } >= Self.mostInWindow
  }

  /// The hub reads on: the next stretch is a new one.
  mutating func stretchEnded() { current = 0 }
}
