// Work that continues after a lane has closed something: ttys that drain, links and lock files to remove, programs that
// were asked to end, sockets that still connect. Before the process exits, it waits for this work for a bounded time;
// otherwise the work would be lost.

import Dispatch
import Synchronization

/// Belongs to a poller; can be used on any thread.
package final class PendingCleanups: Sendable {
  private struct State {
    var lastNumber = 0
    /// For each cleanup, the closure that ends it at once.
    var underWay: [Int: @Sendable () -> Void] = [:]
    /// Each waits for the cleanups with these numbers.
    var waiters: [(numbers: Range<Int>, call: @Sendable () -> Void)] = []
    var isGivenUp = false

    func isOver(_ numbers: Range<Int>) -> Bool { !underWay.keys.contains(where: numbers.contains) }
  }
  private let state = Mutex(State())

  /// Identifies a cleanup until it has ended.
  package struct Token: Sendable {
    fileprivate let number: Int
  }

  package init() {}

  /// Runs `work`, the cleanup of something that is closed, on `queue`.
  package func run(on queue: DispatchQueue, _ work: @escaping @Sendable () -> Void) {
    let token = begin {}
    queue.async { [self] in
      work()
      end(token)
    }
  }

  /// For a cleanup that ends later by itself: call `end` then. If time runs out, or has run out before, the closure
  /// `giveUp` ends it at once. The closure must not block for long, and is not called after `end`.
  package func begin(givingUpBy giveUp: @escaping @Sendable () -> Void) -> Token {
    state.withLock { state in
      state.lastNumber += 1
      state.underWay[state.lastNumber] = giveUp
      if state.isGivenUp { giveUp() }
      return Token(number: state.lastNumber)
    }
  }

  /// A second call does nothing.
  package func end(_ token: Token) {
    let waiters = state.withLock { state -> [@Sendable () -> Void] in
      guard state.underWay.removeValue(forKey: token.number) != nil, !state.waiters.isEmpty else { return [] }
      let waiters = state.waiters
      state.waiters = waiters.filter { !state.isOver($0.numbers) }
      return waiters.filter { state.isOver($0.numbers) }.map(\.call)
    }
    for waiter in waiters { waiter() }
  }

  /// Calls `done` on the lane of `poller` when no cleanup of `all` is left. After `limit` the rest is given up: a
  /// driver may hang for minutes.
  package static func settle(
    _ all: [PendingCleanups], within limit: Duration, on poller: Poller, then done: @escaping () -> Void
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

  private func whenEmpty(_ call: @escaping @Sendable () -> Void) { wait({ _ in 0..<Int.max }, call) }

  /// A moment: how many cleanups have begun before it.
  package struct Mark: Sendable {
    fileprivate let count: Int
  }
  package var mark: Mark { state.withLock { Mark(count: $0.lastNumber) } }

  /// Whether all cleanups that began since `mark` have ended.
  package func isOver(since mark: Mark) -> Bool { state.withLock { $0.isOver(mark.count + 1..<$0.lastNumber + 1) } }

  /// Calls `call` when all cleanups that began between `mark` and now have ended, on any thread.
  package func whenTheseEnd(since mark: Mark, _ call: @escaping @Sendable () -> Void) {
    wait({ mark.count + 1..<$0.lastNumber + 1 }, call)
  }

  private func wait(_ numbers: (State) -> Range<Int>, _ call: @escaping @Sendable () -> Void) {
    let isOver = state.withLock { state in
      let numbers = numbers(state)
      let isOver = state.isOver(numbers)
      if !isOver { state.waiters.append((numbers, call)) }
      return isOver
    }
    if isOver { call() }
  }

  /// Ends all cleanups at once, and also those that begin later.
  // Under the lock: a cleanup that has ended must not be given up, since its process ID may belong to another process
  // by now.
  package func giveUp() {
    state.withLock { state in
      state.isGivenUp = true
      for end in state.underWay.values { end() }
    }
  }
}
