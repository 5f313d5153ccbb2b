// The time of what runs on a dispatch queue instead of a lane. Tests advance a clock of their own.

import ByteStreams
import Dispatch

struct QueueClock: Sendable {
  /// Nanoseconds since some fixed moment; never goes back.
  let now: @Sendable () -> UInt64
  /// Runs a body on a queue at a moment of this clock, or soon if that is over.
  let run: @Sendable (_ time: UInt64, _ queue: DispatchQueue, _ body: @escaping @Sendable () -> Void) -> Void

  /// CLOCK_MONOTONIC.
  static let monotonic = QueueClock(now: monotonicNanoseconds) { time, queue, body in
    let now = monotonicNanoseconds()
    queue.asyncAfter(deadline: .now() + .nanoseconds(Int(clamping: time &- min(now, time))), execute: body)
  }
}
