// Calls on a run loop from other threads. `RunLoop.perform` does not wake a run loop on Linux, and its CFRunLoop cannot
// be had; a timer that is added does wake it. So each call is a timer that is due at once.

import Foundation
import Synchronization

/// Calls one function on a run loop, in one mode, each time it is rung. Rings before the call count once.
final class RunLoopBell: @unchecked Sendable {  // unchecked: RunLoop.add and Timer.invalidate take CFRunLoop's lock
  let runLoop: RunLoop
  let mode: RunLoop.Mode
  private let rung: @Sendable () -> Void
  private let isRung = Atomic(false)
  /// Keeps the run loop from returning because it has nothing to wait for. Is never due.
  private let keeper = Timer(fire: .distantFuture, interval: 0, repeats: false) { _ in }

  init(_ runLoop: RunLoop, _ mode: RunLoop.Mode, _ rung: @escaping @Sendable () -> Void) {
    self.runLoop = runLoop
    self.mode = mode
    self.rung = rung
    runLoop.add(keeper, forMode: mode)
  }

  deinit { keeper.invalidate() }

  /// Can be called on any thread.
  func ring() {
    guard !isRung.exchange(true, ordering: .acquiringAndReleasing) else { return }
    let timer = Timer(fire: Date(), interval: 0, repeats: false) { [weak self] _ in
      guard let self else { return }
      isRung.store(false, ordering: .sequentiallyConsistent)
      rung()
    }
    runLoop.add(timer, forMode: mode)
  }
}

/// Runs functions on a run loop, in order.
final class RunLoopQueue: Sendable {
  private let waiting: Waiting
  private let bell: RunLoopBell

  private final class Waiting: Sendable {
    let bodies = Mutex<[@Sendable () -> Void]>([])
  }

  init(_ runLoop: RunLoop, mode: RunLoop.Mode) {
    let waiting = Waiting()
    self.waiting = waiting
    bell = RunLoopBell(runLoop, mode) {
      let bodies = waiting.bodies.withLock { bodies in
        defer { bodies = [] }
        return bodies
      }
      for body in bodies { body() }
    }
  }

  /// Can be called on any thread. The queue lives until the last function has run.
  func post(_ body: @escaping @Sendable () -> Void) {
    waiting.bodies.withLock { bodies in
      bodies.append { withExtendedLifetime(self) { body() } }
    }
    bell.ring()
  }
}

/// The run loops and modes that a stream is scheduled in.
final class RunLoopSchedule: Sendable {
  private let bells = Mutex<[RunLoopBell]>([])

  func add(_ runLoop: RunLoop, _ mode: RunLoop.Mode, _ rung: @escaping @Sendable () -> Void) {
    remove(runLoop, mode)
    let bell = RunLoopBell(runLoop, mode, rung)
    bells.withLock { $0.append(bell) }
  }

  func remove(_ runLoop: RunLoop, _ mode: RunLoop.Mode) {
    bells.withLock { $0.removeAll { $0.runLoop === runLoop && $0.mode == mode } }
  }

  func removeAll() { bells.withLock { $0 = [] } }

  /// The first of them that runs takes the call; the others find nothing to do.
  func ring() {
    for bell in bells.withLock({ $0 }) { bell.ring() }
  }
}
