// What a lane has closed and what still goes on behind that: ttys that drain, links and lock files to be removed, programs that
// were asked to end. Who ends the process waits for it, for a while, or it would be left behind.

import Dispatch
import Synchronization

/// Belongs to a poller; asked from anywhere.
public final class Closings: Sendable {
  private struct State {
    var lastNumber = 0
    /// What ends each at once.
    var underWay: [Int: @Sendable () -> Void] = [:]
    var waiters: [@Sendable () -> Void] = []
    var isGivenUp = false
  }
  private let state = Mutex(State())

  /// Names what goes on until it is ended.
  public struct Token: Sendable {
    fileprivate let number: Int
  }

  public init() {}

  /// Runs the last work on something that is closed.
  public func run(on queue: DispatchQueue, _ work: @escaping @Sendable () -> Void) {
    let token = begin {}
    queue.async { [self] in
      work()
      end(token)
    }
  }

  /// For what ends by itself, later: `end` it then. `giveUp` ends it at once where there is no time left, or was none before; it must
  /// not block for long, and is not called once it was ended.
  public func begin(givingUpBy giveUp: @escaping @Sendable () -> Void) -> Token {
    state.withLock { state in
      state.lastNumber += 1
      state.underWay[state.lastNumber] = giveUp
      if state.isGivenUp { giveUp() }
      return Token(number: state.lastNumber)
    }
  }

  /// Does nothing the second time.
  public func end(_ token: Token) {
    let waiters = state.withLock { state -> [@Sendable () -> Void] in
      guard state.underWay.removeValue(forKey: token.number) != nil, state.underWay.isEmpty else { return [] }
      defer { state.waiters = [] }
      return state.waiters
    }
    for waiter in waiters { waiter() }
  }

  /// Calls `done` on the lane of `poller` when nothing of `all` goes on any more. After `limit` what is left is given up: a
  /// driver may hang for minutes.
  public static func settle(
    _ all: [Closings], within limit: Duration, on poller: Poller, then done: @escaping () -> Void
  ) {
    var left = all.count
    var whenDone: (() -> Void)? = done
    let finish = {
      whenDone?()
      whenDone = nil
    }
    let deadline = poller.timers.after(limit) {
      for closings in all { closings.giveUp() }
      finish()
    }
    for closings in all {
      let answer = poller.expect { (_: Bool) in
        left -= 1
        guard left == 0 else { return }
        poller.timers.cancel(deadline)
        finish()
      }
      closings.whenEmpty { answer(true) }
    }
  }

  private func whenEmpty(_ call: @escaping @Sendable () -> Void) {
    let isEmpty = state.withLock { state in
      if !state.underWay.isEmpty { state.waiters.append(call) }
      return state.underWay.isEmpty
    }
    if isEmpty { call() }
  }

  /// Ends at once all that goes on, and what may begin behind that.
  // Under the lock: nothing is given up that was ended, and whose name may be another's by now.
  public func giveUp() {
    state.withLock { state in
      state.isGivenUp = true
      for end in state.underWay.values { end() }
    }
  }
}
