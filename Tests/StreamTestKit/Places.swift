// Where test code runs: on a lane, or on a thread of its own when it blocks.

import ByteStreams
import Dispatch
import Glibc

/// Runs `body` on a lane of its own, which is stopped afterwards. What `body` opened it must have closed.
@discardableResult
public func onLane<Result: Sendable>(
  _ label: String = #function, _ body: @Sendable (isolated Lane) async throws -> Result
) async throws -> Result {
  let lane = try Lane(label)
  defer { lane.stop() }
  return try await onLane(lane, body)
}

/// Runs `body` on `lane` and waits for its result.
@discardableResult
public func onLane<Result: Sendable>(
  _ lane: Lane, _ body: @Sendable (isolated Lane) async throws -> Result
) async rethrows -> Result {
  try await body(lane)
}

/// Runs `work`, which may block, on a thread of its own: the tests' pool has one thread per core, and who blocks in it
/// starves what he waits for.
public func onOwnThread<Result: Sendable>(_ work: @escaping @Sendable () throws -> Result) async throws -> Result {
  try await withCheckedThrowingContinuation { continuation in
    DispatchQueue(label: "test helper").async { continuation.resume(with: Swift.Result(catching: work)) }
  }
}

/// Waits until `condition` holds, which nobody tells of: asks every millisecond, on a thread of its own, for ten seconds at most
/// unless told otherwise. Whether it came to hold.
public func eventually(within seconds: UInt64 = 10, _ condition: @escaping @Sendable () -> Bool) async -> Bool {
  await withCheckedContinuation { continuation in
    DispatchQueue(label: "test helper").async {
      let began = monotonicNanoseconds()
      // Asked once each time: what held may not hold a moment later.
      var holds = condition()
      while !holds && monotonicNanoseconds() - began < seconds * 1_000_000_000 {
        usleep(1000)
        holds = condition()
      }
      continuation.resume(returning: holds)
    }
  }
}

/// Lets a test wait for something that happens on its lane. Both belong to that lane.
public final class Gate {
  private var isOpen = false
  private var waiting: [CheckedContinuation<Void, Never>] = []

  public init() {}

  /// Lets through who waits and who comes.
  public func open() {
    isOpen = true
    let all = waiting
    waiting = []
    for one in all { one.resume() }
  }

  /// A test whose time is over waits no longer: its task is cancelled, and that opens the gate.
  public func wait(on lane: isolated Lane) async {
    if isOpen { return }
    let gate = Resident(self, on: lane)
    await withTaskCancellationHandler {
      await withCheckedContinuation { continuation in
        lane.preconditionIsolated()
        // To come here may have taken a turn of the lane.
        if isOpen { continuation.resume() } else { waiting.append(continuation) }
      }
    } onCancel: {
      gate.post { _, gate in gate.open() }
    }
  }
}

/// Writes down a stream's events; `onEvent` may act on them.
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
