// Cleanups that must finish before the process ends.

import ByteStreams
import Dispatch
import StreamTestKit
import Synchronization
import Testing

@Suite("A pending cleanup", .timeLimit(.minutes(5)))
struct PendingCleanupsTests {
  /// Whether `all` has settled by the time `meanwhile` returns.
  private func settles(
    _ all: [PendingCleanups], within limit: Duration, meanwhile: @escaping @Sendable () -> Void = {}
  ) async throws {
    try await onLane { lane in
      let settled = Gate()
      PendingCleanups.settle(all, within: limit, on: lane.poller) { settled.open() }
      meanwhile()
      await settled.wait(on: lane)
    }
  }

  @Test("is waited for until it is over, and not longer")
  func waits() async throws {
    let (one, other) = (PendingCleanups(), PendingCleanups())
    let mayEnd = DispatchSemaphore(value: 0)
    let isOver = Atomic<Bool>(false)
    one.run(on: DispatchQueue(label: "closing")) {
      mayEnd.wait()
      isOver.store(true, ordering: .relaxed)
    }
    let token = other.begin { Issue.record("it was given up") }
    try await settles([one, PendingCleanups(), other], within: .seconds(3600)) {
      other.end(token)
      mayEnd.signal()
    }
    let wasAwaited = isOver.load(ordering: .relaxed)
    #expect(wasAwaited)
    other.end(token)
    try await settles([one, other], within: .seconds(3600))
  }

  @Test("is waited for by those that asked for its time, and not by others")
  func since() {
    let closings = PendingCleanups()
    let over = Mutex<[String]>([])
    let earlier = closings.begin {}
    let mark = closings.mark
    closings.whenTheseEnd(since: mark) { over.withLock { $0.append("none") } }
    let own = closings.begin {}
    closings.whenTheseEnd(since: mark) { over.withLock { $0.append("own") } }
    let later = closings.begin {}
    #expect(over.withLock { $0 } == ["none"])
    closings.end(own)
    #expect(over.withLock { $0 } == ["none", "own"])
    closings.end(later)
    closings.end(earlier)
    #expect(over.withLock { $0 } == ["none", "own"])
  }

  @Test("is given up when it takes too long")
  func givesUp() async throws {
    let closings = PendingCleanups()
    let given = Mutex<[String]>([])
    let over = closings.begin { given.withLock { $0.append("over") } }
    let hanging = closings.begin { given.withLock { $0.append("hanging") } }
    closings.end(over)
    try await settles([closings], within: .milliseconds(20))
    #expect(given.withLock { $0 } == ["hanging"])
    closings.end(hanging)
  }
}
