// A clock that tests advance by hand, for what runs on a dispatch queue.

import Dispatch
import Glibc
import StreamTestKit
import Synchronization

@testable import ByteStreams
@testable import GatewayKit

final class ManualQueueClock: Sendable {
  private struct Alarm {
    let time: UInt64
    let queue: DispatchQueue
    let body: @Sendable () -> Void
  }

  private struct State {
    var now: UInt64 = 1_000_000_000  // does not start at zero, like a real clock
    var alarms: [Alarm] = []
    var queues: [DispatchQueue] = []
  }

  private let state = Mutex(State())

  var clock: QueueClock {
    QueueClock(now: { [self] in state.withLock { $0.now } }) { [self] time, queue, body in
      state.withLock { state in
        if !state.queues.contains(where: { $0 === queue }) { state.queues.append(queue) }
        if time > state.now {
          state.alarms.append(Alarm(time: time, queue: queue, body: body))
        } else {
          queue.async(execute: body)
        }
      }
    }
  }

  /// Moves on to the new time at once, and returns when everything that is then due has run.
  func advance(by time: Duration) {
    state.withLock { state in
      state.now += time.nanoseconds
      let now = state.now
      let due = state.alarms.filter { $0.time <= now }.sorted { $0.time < $1.time }
      state.alarms.removeAll { $0.time <= now }
      for alarm in due { alarm.queue.async(execute: alarm.body) }
    }
    settle()
  }

  /// Returns when everything that is due has run.
  func settle() {
    for queue in state.withLock({ $0.queues }) { queue.sync {} }
  }

  /// Returns when something waits for a later time.
  func waitForAlarm() throws {
    let limit = monotonicNanoseconds() + Patience.nanoseconds
    while state.withLock({ $0.alarms.isEmpty }) {
      guard monotonicNanoseconds() < limit else { throw SystemError("waiting for an alarm", ETIMEDOUT) }
      usleep(1000)
    }
  }
}
