// Where test code runs: on a lane, or on its own thread when it blocks.

import ByteStreams
import Dispatch
import Glibc

/// How long a test waits for what must happen before it gives up. It finds what hangs, and is no promise of a speed: a
/// machine may be slow and busy. The time limit of a suite is longer.
public enum Patience {
  public static let seconds = 60
  public static let milliseconds = seconds * 1000
  public static let nanoseconds = UInt64(seconds) * 1_000_000_000
}

/// Runs `body` on its own lane, which is stopped afterwards. `body` must close what it opens. With `isFast` the lane's
/// time passes a hundred times faster.
@discardableResult
public func onLane<Result: Sendable>(
  _ label: String = #function, isFast: Bool = false, _ body: @Sendable (isolated Lane) async throws -> Result
) async throws -> Result {
  let clock = isFast ? ManualClock() : nil
  let lane = try clock?.lane(label) ?? Lane(label)
  let passing = clock?.passes()
  defer {
    passing?.cancel()
    lane.stop()
  }
  return try await onLane(lane, body)
}

/// Runs `body` on `lane` and waits for its result.
@discardableResult
public func onLane<Result: Sendable>(
  _ lane: Lane, _ body: @Sendable (isolated Lane) async throws -> Result
) async rethrows -> Result {
  try await body(lane)
}

/// Runs `work`, which may block, on its own thread. The tests' thread pool has one thread per core, so a blocking call
/// in it can starve the task that it waits for.
public func onOwnThread<Result: Sendable>(_ work: @escaping @Sendable () throws -> Result) async throws -> Result {
  try await withCheckedThrowingContinuation { continuation in
    DispatchQueue(label: "test helper").async { continuation.resume(with: Swift.Result(catching: work)) }
  }
}

/// Waits until `condition` holds, for changes that are not reported: checks every millisecond on its own thread, for up
/// `Patience`. Returns whether it came to hold.
public func eventually(_ condition: @escaping @Sendable () -> Bool) async -> Bool {
  await withCheckedContinuation { continuation in
    DispatchQueue(label: "test helper").async {
      let began = monotonicNanoseconds()
      // Evaluated once per round: a condition that held may not hold a moment later.
      var holds = condition()
      while !holds && monotonicNanoseconds() - began < Patience.nanoseconds {
        usleep(1000)
        holds = condition()
      }
      continuation.resume(returning: holds)
    }
  }
}

/// Lets a test wait for an event on its lane. The gate and the test belong to that lane.
public final class Gate {
  private var isOpen = false
  private var waiting: [CheckedContinuation<Void, Never>] = []

  public init() {}

  /// Resumes all waiting tasks, and those that wait later.
  public func open() {
    isOpen = true
    let all = waiting
    waiting = []
    for one in all { one.resume() }
  }

  /// When a test's time limit cancels its task, the gate opens too.
  public func wait(on lane: isolated Lane) async {
    if isOpen { return }
    let gate = LaneRef(self, on: lane)
    await withTaskCancellationHandler {
      await withCheckedContinuation { continuation in
        lane.preconditionIsolated()
        // Getting here may have taken a turn of the lane.
        if isOpen { continuation.resume() } else { waiting.append(continuation) }
      }
    } onCancel: {
      gate.post { _, gate in gate.open() }
    }
  }
}

/// Records a stream's events; `onEvent` may act on them.
public final class EventRecorder: ByteStreamDelegate {
  public private(set) var events: [ByteStreamEvent] = []
  public var onEvent: ((ByteStreamEvent) -> Void)?

  public init(_ onEvent: ((ByteStreamEvent) -> Void)? = nil) { self.onEvent = onEvent }

  public func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    events.append(event)
    onEvent?(event)
  }

  public private(set) var closings = 0
  public func streamWasClosed(_ stream: any ByteStream) { closings += 1 }
}
