import ByteStreams
import Dispatch
import StreamTestKit
import Synchronization
import Testing

@testable import StreamBroker

@Suite("A device's queue", .timeLimit(.minutes(1)))
struct DeviceQueueTests {
  /// What the attempts of a test have come to.
  private final class Account: Sendable {
    let opened = Atomic<Int>(0)
    let undone = Atomic<Int>(0)
    let settled = Atomic<Bool>(false)
  }

  @Test("undoes what was opened and given up, although its lane stops before it hears of it")
  func stoppedLane() async throws {
    let account = Account()
    try await onLane { lane in
      let opening = DeviceQueue("test").open("it", on: lane.poller) {
        account.opened.add(1, ordering: .relaxed)
        return .success(1)
      } undo: { _ in
        account.undone.add(1, ordering: .relaxed)
      } _: { (_: Result<Int, OpenFailure>) in
        Issue.record("was given up")
      }
      // Keeps the lane meanwhile, so that the result stays with nobody.
      #expect(eventuallyHere { account.opened.load(ordering: .relaxed) == 1 })
      opening.cancel()
      opening.cancel()
    }
    #expect(await eventually { account.undone.load(ordering: .relaxed) == 1 })
  }

  @Test("undoes what is opened after it was given up, and whoever ends the process waits for that")
  func underWay() async throws {
    let account = Account()
    let hang = DispatchSemaphore(value: 0)
    let lane = try Lane("test")
    await onLane(lane) { lane in
      let opening = DeviceQueue("test").open("it", on: lane.poller) {
        account.opened.add(1, ordering: .relaxed)
        hang.wait()
        return .success(1)
      } undo: { _ in
        if account.settled.load(ordering: .relaxed) { Issue.record("nobody waited") }
        account.undone.add(1, ordering: .relaxed)
      } _: { (_: Result<Int, OpenFailure>) in
        Issue.record("was given up")
      }
      #expect(await eventually { account.opened.load(ordering: .relaxed) == 1 })
      opening.cancel()
      Closings.settle([lane.closings], within: .seconds(30), on: lane.poller) {
        account.settled.store(true, ordering: .relaxed)
      }
      hang.signal()
      #expect(await eventually { account.settled.load(ordering: .relaxed) })
      #expect(account.undone.load(ordering: .relaxed) == 1)
    }
    lane.stop()
  }

  /// Blocks the lane it is called on.
  private func eventuallyHere(_ condition: () -> Bool) -> Bool {
    let began = monotonicNanoseconds()
    while !condition() && monotonicNanoseconds() - began < 10_000_000_000 {}
    return condition()
  }
}
