// Ends sessions that carry no byte for `idle-timeout`. Costs a byte nothing: a timer compares counters four times
// in that period, so the end comes at most a quarter late. A SessionGroup has one.

import ByteStreams

/// What `IdleWatch` keeps of one session.
struct IdleRecord {
  fileprivate var timer: Timers.Token?
}

final class IdleWatch {
  private let timers: Timers
  private static let shortestLook = Duration.milliseconds(10)

  init(_ timers: Timers) { self.timers = timers }

  /// Ends the session after `limit` without a byte in either direction; nil: never.
  func watch(_ session: Session, _ limit: Duration?) {
    stop(session)
    guard !session.isOver, let limit else { return }
    look(at: session, every: max(limit / 4, Self.shortestLook), limit, since: timers.now, session.activity)
  }

  func stop(_ session: Session) {
    timers.cancel(session.idle.timer)
    session.idle.timer = nil
  }

  private func look(
    at session: Session, every pause: Duration, _ limit: Duration, since: UInt64, _ activity: UInt64
  ) {
    session.idle.timer = timers.after(pause) { [weak self, session] in
      // A session that is ending has a deadline of its own.
      guard let self, !session.isOver, session.leaving == nil else { return }
      let now = timers.now
      if session.activity != activity {
        look(at: session, every: pause, limit, since: now, session.activity)
      } else if now &- since < limit.nanoseconds {
        look(at: session, every: pause, limit, since: since, activity)
      } else {
        session.hub.end(session, Ending(.idle))
      }
    }
  }
}
