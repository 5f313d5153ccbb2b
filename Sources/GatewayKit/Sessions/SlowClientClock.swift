// How long one client has delayed others. A value per session; SlowClients adds the time during which the hub cannot
// read on.

import ByteStreams

/// A healthy client must not be disconnected for one scheduling tick, and a client that reads a trickle must not
/// throttle the others. So there is one limit for a single stretch, and one for all stretches within some seconds.
struct SlowClientClock {
  /// The limit of one stretch, in nanoseconds. No client may delay another for more than 50 ms; SlowClients looks every
  /// 10 ms.
  static let mostAtOnce: UInt64 = 40_000_000
  static let tick = Duration.milliseconds(10)
  /// The limit of all stretches within `window`, in nanoseconds.
  static let mostInWindow: UInt64 = 150_000_000
  static let window: UInt64 = 5_000_000_000

  private struct Stretch {
    var end: UInt64
    var length: UInt64
  }

  private var stretches: [Stretch] = []
  private var current: UInt64 = 0
  private static let mostStretches = 32

  /// Adds `length` nanoseconds that ended at `now`. Returns whether the client is over a limit.
  mutating func charge(_ length: UInt64, at now: UInt64) -> Bool {
    current += length
    stretches.removeAll { $0.end + Self.window < now }
    if stretches.count == Self.mostStretches {  // merge the oldest two: a little strict, but bounded
      stretches[1].length += stretches[0].length
      stretches.removeFirst()
    }
    stretches.append(Stretch(end: now, length: length))
    return current >= Self.mostAtOnce || stretches.reduce(0) { $0 + $1.length } >= Self.mostInWindow
  }

  /// The hub reads on; later time is a new stretch.
  mutating func stretchEnded() { current = 0 }
}
