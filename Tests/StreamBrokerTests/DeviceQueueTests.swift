import ByteStreams
import Dispatch
import Glibc
import StreamTestKit
import Synchronization
import Testing

import StreamBroker
@testable import StreamBrokerCore

@Suite("A device's queue", .timeLimit(.minutes(5)))
struct DeviceQueueTests {
  /// Counts how a test's attempts ended.
  private final class Account: Sendable {
    let opened = Atomic<Int>(0)
    let undone = Atomic<Int>(0)
    let settled = Atomic<Bool>(false)
  }

  @Test("undoes an opening that was given up, although its lane stops before it gets the result")
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
      // Blocks the lane meanwhile, so that nothing receives the result.
      #expect(eventuallyHere { account.opened.load(ordering: .relaxed) == 1 })
      opening.cancel()
      opening.cancel()
    }
    #expect(await eventually { account.undone.load(ordering: .relaxed) == 1 })
  }

  @Test("undoes an opening that finishes after it was given up, and the process's end waits for that")
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
      PendingCleanups.settle([lane.closings], within: .seconds(30), on: lane.poller) {
        account.settled.store(true, ordering: .relaxed)
      }
      hang.signal()
      #expect(await eventually { account.settled.load(ordering: .relaxed) })
      #expect(account.undone.load(ordering: .relaxed) == 1)
    }
    lane.stop()
  }

  @Test("is the same also when a later user has left unfinished work, too")
  func severalWhoLeft() async throws {
    let name = "severalWhoLeft"
    let (first, second) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
    let account = Account()
    let queue: DispatchQueue
    do {
      let device = DeviceQueue.of(name)
      queue = device.queue
      device.queue.async { first.wait() }
    }
    do {
      let device = DeviceQueue.of(name)
      device.queue.async {
        account.opened.add(1, ordering: .relaxed)
        second.wait()
      }
    }
    first.signal()
    #expect(await eventually { account.opened.load(ordering: .relaxed) == 1 })
    #expect(DeviceQueue.isKnown(name) && DeviceQueue.of(name).queue === queue)
    second.signal()
    #expect(await eventually { !DeviceQueue.isKnown(name) })
  }

  @Test("is the same for the next user while its work is unfinished, though it is no longer referenced")
  func outlivesItsUsers() async throws {
    let name = "outlivesItsUsers"
    let (hang, account) = (DispatchSemaphore(value: 0), Account())
    do {
      let first = DeviceQueue.of(name)
      first.queue.async {
        hang.wait()
        account.undone.store(1, ordering: .sequentiallyConsistent)
      }
    }
    for _ in 0..<2 {  // the second uses the queue that the first one left
      DeviceQueue.of(name).queue.async {
        account.opened.add(account.undone.load(ordering: .sequentiallyConsistent), ordering: .sequentiallyConsistent)
      }
    }
    #expect(DeviceQueue.isKnown(name) && account.opened.load(ordering: .sequentiallyConsistent) == 0)
    hang.signal()
    #expect(await eventually { account.opened.load(ordering: .sequentiallyConsistent) == 2 })
    // The queues' list does not grow.
    #expect(await eventually { !DeviceQueue.isKnown(name) })
  }

  @Test("is the previous one while its work is unfinished, and shared by users at the same time")
  func sameQueue() async throws {
    let name = "sameQueue"
    let hang = DispatchSemaphore(value: 0)
    let queue: DispatchQueue
    do {
      let first = DeviceQueue.of(name)
      queue = first.queue
      first.queue.async { hang.wait() }
    }
    #expect(DeviceQueue.of(name).queue === queue)
    let last = DeviceQueue.of(name)
    #expect(last.queue === queue && DeviceQueue.of(name) === last)
    hang.signal()
    // Waits for everything that the released references had queued.
    await withCheckedContinuation { done in queue.async { done.resume() } }
    #expect(DeviceQueue.isKnown(name) && DeviceQueue.of(name) === last)
  }

  @Test("counts hanging openings also for the next user")
  func attemptsThatHang() async throws {
    let name = "attemptsThatHang"
    let hang = DispatchSemaphore(value: 0)
    try await onLane { lane in
      let account = Account()
      for number in 0..<2 {
        let opening = DeviceQueue.of(name).open("it", on: lane.poller) {
          account.opened.add(1, ordering: .relaxed)
          hang.wait()
          return .success(1)
        } undo: { _ in
        } _: { (_: Result<Int, OpenFailure>) in
        }
        // An attempt that is given up before it starts does not hang.
        if number == 0 { #expect(await eventually { account.opened.load(ordering: .relaxed) == 1 }) }
        opening.cancel()
      }
      var refusal: OpenFailure?
      _ = DeviceQueue.of(name).open("it", on: lane.poller) {
        .success(1)
      } undo: { _ in
      } _: { (result: Result<Int, OpenFailure>) in
        if case .failure(let failure) = result { refusal = failure }
      }
      #expect(refusal?.advice?.contains("earlier attempts still hang") == true)
      hang.signal()
      hang.signal()
      #expect(await eventually { !DeviceQueue.isKnown(name) })
    }
  }

  @Test("is kept by the stream of a port, and by its close, after the connector has gone")
  func streams() async throws {
    let pair = try TTYPair()
    let url = try EndpointURL("tty://\(pair.path)")
    let hang = DispatchSemaphore(value: 0)
    try await onLane { lane in
      let stream = try await Broker(Schemes.standard).open("tty://\(pair.path)", on: lane)
      #expect(DeviceQueue.isKnown(url.target))
      DeviceQueue.of(url.target).queue.async { hang.wait() }
      stream.close()
      // A new route opens the port while the close hangs.
      let next = Gate()
      var failure: OpenFailure?
      let connector = try TTYConnector(url)
      let opening = connector.open(OpenRequest(discardsInput: false), on: lane.poller) { result in
        switch result {
        case .success(let stream): stream.close()
        case .failure(let error): failure = error
        }
        next.open()
      }
      usleep(50_000)
      hang.signal()
      await next.wait(on: lane)
      #expect(failure == nil, "both ran side by side")
      withExtendedLifetime(opening) {}
    }
    #expect(await eventually { !DeviceQueue.isKnown(url.target) })
  }

  /// Blocks the lane it is called on.
  private func eventuallyHere(_ condition: () -> Bool) -> Bool {
    let began = monotonicNanoseconds()
    while !condition() && monotonicNanoseconds() - began < 10_000_000_000 {}
    return condition()
  }
}
