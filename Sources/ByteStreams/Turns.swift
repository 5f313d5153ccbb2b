// A lock that tasks wait for in order, without blocking a thread: two tasks that send through one stream take turns.

import Glibc
import Synchronization

/// Admits one task at a time, in the order of their calls.
package final class Turns: Sendable {
  private struct State {
    var isTaken = false
    var lastNumber = 0
    var queue: [(number: Int, continuation: CheckedContinuation<Bool, Never>)] = []
  }
  private let state = Mutex(State())

  package init() {}

  /// Waits for the turn, which `pass()` ends. Throws without having the turn: `CancellationError`, or ETIMEDOUT after
  /// the closure that `limit` gets is called. `limit` is called only if there is a wait, at its beginning.
  package func take(_ limit: (@escaping @Sendable () -> Void) -> Void = { _ in }) async throws {
    try Task.checkCancellation()
    let number = state.withLock { state -> Int? in
      guard state.isTaken else {
        state.isTaken = true
        return nil
      }
      state.lastNumber += 1
      return state.lastNumber
    }
    guard let number else { return }
    let hasTurn = await withTaskCancellationHandler {
      await withCheckedContinuation { continuation in
        let isFree = state.withLock { state in
          let isFree = !state.isTaken
          state.isTaken = true
          if !isFree { state.queue.append((number, continuation)) }
          return isFree
        }
        if isFree { return continuation.resume(returning: true) }
        limit { [self] in drop(number) }
        // Cancelled before it was in the queue: the handler did not find it.
        if Task.isCancelled { drop(number) }
      }
    } onCancel: {
      drop(number)
    }
    guard !hasTurn else { return }
    try Task.checkCancellation()
    throw SystemError("wait", ETIMEDOUT)
  }

  private func drop(_ number: Int) {
    let dropped = state.withLock { state -> CheckedContinuation<Bool, Never>? in
      guard let index = state.queue.firstIndex(where: { $0.number == number }) else { return nil }
      return state.queue.remove(at: index).continuation
    }
    dropped?.resume(returning: false)
  }

  /// Gives the turn to the task that has waited longest.
  package func pass() {
    let next = state.withLock { state -> CheckedContinuation<Bool, Never>? in
      guard !state.queue.isEmpty else {
        state.isTaken = false
        return nil
      }
      return state.queue.removeFirst().continuation
    }
    next?.resume(returning: true)
  }
}
