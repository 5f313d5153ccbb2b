// A clock that tests turn by hand, for `Timers(clock:)`.

import ByteStreams

public final class ManualClock {
  /// Nanoseconds; starts off zero, as a machine's clock has.
  public private(set) var now: UInt64 = 1_000_000_000

  public init() {}

  public var clock: LaneClock { LaneClock { [self] in now } }

  public func advance(by time: Duration) { now += time.nanoseconds }
}
