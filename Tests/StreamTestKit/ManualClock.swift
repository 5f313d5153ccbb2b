// A clock that tests advance by hand, for `Timers(clock:)`.

import ByteStreams

public final class ManualClock {
  /// Nanoseconds; does not start at zero, like a real clock.
  public private(set) var now: UInt64 = 1_000_000_000

  public init() {}

  public var clock: LaneClock { LaneClock { [self] in now } }

  public func advance(by time: Duration) { now += time.nanoseconds }
}
