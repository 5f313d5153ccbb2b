// Before other settings come into force, what was sent before goes out at the old ones.

import ByteStreams

extension SerialLine {
  /// As far as a port that can't send may hold up the change.
  static var longestWait: Duration { .seconds(1) }

  /// Calls `done` on `poller`'s lane when everything that was sent has left, or the port does not say, or a second is over.
  func whenSent(on poller: Poller, then done: @escaping () -> Void) {
    whenSent(on: poller, before: poller.timers.now &+ Self.longestWait.nanoseconds, done)
  }

  private func whenSent(on poller: Poller, before limit: UInt64, _ done: @escaping () -> Void) {
    unsent { [weak poller] answer in
      guard let poller, case .success(let count) = answer, count > 0, poller.timers.now < limit else { return done() }
      poller.timers.after(.milliseconds(10)) { [weak poller] in
        if let poller { self.whenSent(on: poller, before: limit, done) } else { done() }
      }
    }
  }
}
