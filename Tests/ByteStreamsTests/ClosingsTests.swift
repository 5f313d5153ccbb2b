// What is waited for before a process ends.

import ByteStreams
import Dispatch
import StreamTestKit
import Synchronization
import Testing

@Suite("What is closed", .timeLimit(.minutes(1)))
struct ClosingsTests {
  /// Whether `all` has settled by the time that `meanwhile` is done.
  private func settles(
    _ all: [Closings], within limit: Duration, meanwhile: @escaping @Sendable () -> Void = {}
  ) async throws {
    try await onLane { lane in
      let settled = Gate()
      Closings.settle(all, within: limit, on: lane.poller) { settled.open() }
      meanwhile()
      await settled.wait(on: lane)
    }
  }

  @Test("is waited for until all of it is over, and not longer")
  func waits() async throws {
    let (one, other) = (Closings(), Closings())
    let mayEnd = DispatchSemaphore(value: 0)
    let isOver = Atomic<Bool>(false)
    one.run(on: DispatchQueue(label: "closing")) {
      mayEnd.wait()
      isOver.store(true, ordering: .relaxed)
    }
    let token = other.begin { Issue.record("it was given up") }
    try await settles([one, Closings(), other], within: .seconds(3600)) {
      other.end(token)
      mayEnd.signal()
    }
    let wasAwaited = isOver.load(ordering: .relaxed)
    #expect(wasAwaited)
    other.end(token)
    try await settles([one, other], within: .seconds(3600))
  }

  @Test("is given up when it takes too long, but for what is over")
  func givesUp() async throws {
    let closings = Closings()
    let given = Mutex<[String]>([])
    let over = closings.begin { given.withLock { $0.append("over") } }
    let hanging = closings.begin { given.withLock { $0.append("hanging") } }
    closings.end(over)
    try await settles([closings], within: .milliseconds(20))
    #expect(given.withLock { $0 } == ["hanging"])
    closings.end(hanging)
  }
}
