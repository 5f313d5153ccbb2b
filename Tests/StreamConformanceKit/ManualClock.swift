// A clock that tests advance by hand, for `Timers(clock:)` and for lanes.

import ByteStreams
import Synchronization

public final class ManualClock: Sendable {
  // Nanoseconds; does not start at zero, like a real clock.
  private let time = Atomic<UInt64>(1_000_000_000)
  private let reads = Atomic<Int>(0)
  private let lanes = Mutex<[Lane]>([])

  public init() {}

  /// Nanoseconds.
  public var now: UInt64 { time.load(ordering: .sequentiallyConsistent) }

  /// How often lanes and timers have asked for the time.
  public var asked: Int { reads.load(ordering: .sequentiallyConsistent) }

  public var clock: LaneClock {
    LaneClock { [self] in
      reads.add(1, ordering: .sequentiallyConsistent)
      return now
    }
  }

  /// A lane that lives by this clock. The caller stops it.
  public func lane(_ label: String) throws(SystemError) -> Lane {
    let lane = try Lane(label, clock: clock)
    drives(lane)
    return lane
  }

  /// Runs what is due on `lane` from now on, which was made with `clock`.
  public func drives(_ lane: Lane) { lanes.withLock { $0.append(lane) } }

  /// Moves on to the new time at once. On the lanes of this clock, what is then due runs soon.
  public func advance(by duration: Duration) {
    time.add(duration.nanoseconds, ordering: .sequentiallyConsistent)
    for lane in lanes.withLock(\.self) { lane.post { $0.poller.timers.fireDue() } }
  }

  /// Lets time pass until the task is cancelled: a hundred times faster than the machine's, but never so fast that a
  /// lane falls behind.
  public func passes() -> Task<Void, Never> {
    Task {
      while !Task.isCancelled {
        advance(by: .milliseconds(100))
        for lane in lanes.withLock(\.self) { await hasRun(lane) }
        try? await Task.sleep(for: .milliseconds(1))
      }
    }
  }

  /// Returns when the lane has run all that was posted before, or has stopped.
  private func hasRun(_ lane: Lane) async {
    await withCheckedContinuation { over in
      let last = LastUse(over)
      lane.post { _ in withExtendedLifetime(last) {} }
    }
  }

  // A lane releases what is posted to it, whether it runs it or has stopped.
  private final class LastUse: Sendable {
    private let over: CheckedContinuation<Void, Never>
    init(_ over: CheckedContinuation<Void, Never>) { self.over = over }
    deinit { over.resume() }
  }
}
