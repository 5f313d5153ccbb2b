// Lanes and their pollers, on real threads and descriptors.

import Dispatch
import Glibc
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams

@Suite("A lane", .timeLimit(.minutes(5)))
struct LaneTests {
  @Test("runs what many threads post, each thread's in its order")
  func manyThreads() async throws {
    let lane = try Lane("posts")
    defer { lane.stop() }
    let seen = Seen()
    let all = DispatchGroup()
    for thread in 0..<8 {
      all.enter()
      DispatchQueue(label: "poster").async {
        for number in 0..<2000 { lane.post { _ in seen.note(thread, number) } }
        all.leave()
      }
    }
    try await onOwnThread { all.wait() }
    await onLane(lane) { _ in }
    #expect(seen.total == 16_000)
    #expect(seen.isInOrder)
  }

  private final class Seen: Sendable {
    private let state = Mutex((last: [Int](repeating: -1, count: 8), total: 0, isInOrder: true))
    func note(_ thread: Int, _ number: Int) {
      state.withLock {
        if number != $0.last[thread] + 1 { $0.isInOrder = false }
        $0.last[thread] = number
        $0.total += 1
      }
    }
    var total: Int { state.withLock { $0.total } }
    var isInOrder: Bool { state.withLock { $0.isInOrder } }
  }

  @Test("runs posts at once while it lingers", .timed)
  func linger() async throws {
    let lane = try Lane("linger")
    defer { lane.stop() }
    let time = try await onOwnThread {
      let start = monotonicNanoseconds()
      for _ in 0..<100 {
        let answered = DispatchSemaphore(value: 0)
        lane.post { _ in answered.signal() }
        answered.wait()
      }
      return monotonicNanoseconds() - start
    }
    // A wake-up that waits for the linger time takes 20 ms, so a hundred would take 2 s; a hundred immediate ones take
    // a few ms.
    #expect(time < 1_000_000_000)
  }

  @Test("fires deadlines though a post always posts the next one")
  func postsOnly() async throws {
    let lane = try Lane("posts")
    defer { lane.stop() }
    let posts = EndlessPosts()
    await withCheckedContinuation { continuation in
      lane.post { lane in
        lane.poller.timers.after(.milliseconds(1)) {
          posts.isOver.store(true, ordering: .relaxed)
          continuation.resume()
        }
      }
      posts.post(on: lane)
    }
  }

  private final class EndlessPosts: Sendable {
    let isOver = Atomic(false)
    func post(on lane: Lane) {
      lane.post { [self] lane in if !isOver.load(ordering: .relaxed) { post(on: lane) } }
    }
  }

  @Test("runs posts between turns though a stream always has more")
  func busy() async throws {
    let lane = try Lane("busy")
    defer { lane.stop() }
    let always = Restless()
    await onLane(lane) { lane in
      always.use { $0.start(on: lane.poller) }
    }
    for _ in 0..<100 { await onLane(lane) { _ in } }
    await onLane(lane) { _ in always.use { $0.stop() } }
  }

  @Test("is not woken again and again by a hang-up without a waiting handler, and reports it when a handler waits")
  func hangUp() async throws {
    let (one, other) = try FarEnd.pair()
    try await onLane { lane in
      let descriptor = try one.take()
      let gate = Gate()
      let handler = Counter()
      try lane.poller.add(descriptor.raw, handler: handler, for: [])
      other.close()
      lane.poller.timers.after(.milliseconds(50)) { gate.open() }
      await gate.wait(on: lane)
      #expect(handler.events.count <= 1)
      let reported = Gate()
      handler.onEvent = { _ in
        lane.poller.remove(descriptor.raw)
        reported.open()
      }
      lane.poller.change(descriptor.raw, to: .readable)
      await reported.wait(on: lane)
      #expect(handler.events.last.map { !$0.isDisjoint(with: .hangUp) } == true)
    }
  }

  @Test("gives a new descriptor no events of an earlier one with the same number")
  func staleEvents() async throws {
    let (a, farA) = try FarEnd.pair()
    let (b, farB) = try FarEnd.pair()
    let (fresh, farFresh) = try FarEnd.pair()
    try farA.send([1])
    try farB.send([1])
    try await onLane { lane in
      let poller = lane.poller
      let first = try a.take()
      let second = try b.take()
      let new = try fresh.take()
      let newcomer = Counter()
      let handlers = [Counter(), Counter()]
      let reported = Gate()
      // The handler that is called first replaces the other's descriptor, whose event has already been fetched.
      for (handler, other) in [(handlers[0], second.raw), (handlers[1], first.raw)] {
        handler.onEvent = { _ in
          poller.remove(other)
          #expect(dup2(new.raw, other) == other)
          #expect(throws: Never.self) { try poller.add(other, handler: newcomer, for: .readable) }
          for one in handlers { one.onEvent = nil }
          reported.open()
        }
      }
      try poller.add(first.raw, handler: handlers[0], for: .readable)
      try poller.add(second.raw, handler: handlers[1], for: .readable)
      await reported.wait(on: lane)
      #expect(newcomer.events.isEmpty)
      #expect(handlers.count { $0.events.isEmpty } == 1)
      poller.remove(first.raw)
      poller.remove(second.raw)
    }
    farFresh.close()
  }

  @Test("does work elsewhere and continues with the result, without waiting for it")
  func offload() async throws {
    try await onLane { lane in
      let queue = DispatchQueue(label: "slow")
      let mayEnd = DispatchSemaphore(value: 0)
      let gate = Gate()
      var result = 0
      lane.poller.offload(to: queue) {
        mayEnd.wait()
        return 42
      } then: { answer in
        lane.assertIsolated()
        result = answer
        gate.open()
      }
      #expect(result == 0)
      mayEnd.signal()
      await gate.wait(on: lane)
      #expect(result == 42)
    }
  }

  @Test("calls `again` handlers in the next round, never at once")
  func again() async throws {
    try await onLane { lane in
      let gate = Gate()
      let stream = ScriptedStream()
      let recorder = EventRecorder { _ in gate.open() }
      stream.delegate = recorder
      lane.poller.again(stream)
      #expect(recorder.events.isEmpty)
      await gate.wait(on: lane)
      #expect(recorder.events == [.hasBytesAvailable])
    }
  }

  @Test("leaves no descriptor open after it was stopped")
  func stopping() async throws {
    try await expectNoDescriptorLeak {
      for _ in 0..<20 { try await onLane { lane in _ = lane.poller.timers.after(.seconds(60)) {} } }
      for _ in 0..<20 { try Lane("never used").stop() }
      // A peer watch, a next turn and an offloaded result are still pending when the lane stops.
      try await onLane { lane in
        let (near, far) = try FarEnd.tcpPair()
        let stream = try near.stream(on: lane.poller, isTCP: true)
        _ = try stream.write([1])
        stream.close()
        far.close()
        lane.poller.again(stream)
        _ = lane.poller.expect { (_: Int) in stream.close() }
      }
    }
  }
}

/// Records its events.
private final class Counter: PollHandler {
  var events: [PollEvents] = []
  var onEvent: ((PollEvents) -> Void)?
  func ready(_ events: PollEvents) {
    self.events.append(events)
    onEvent?(events)
  }
}

/// A stream that is always ready, kept so that a test can use it in two visits to the lane.
private final class Restless: Sendable {
  final class Loop: ByteStreamDelegate {
    let stream = ScriptedStream()
    private var poller: Poller?
    func start(on poller: Poller) {
      self.poller = poller
      stream.delegate = self
      poller.again(stream)
    }
    func stop() { stream.close() }
    func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) { poller?.again(stream) }
  }
  nonisolated(unsafe) private let loop = Loop()  // used on its lane only
  func use(_ body: (Loop) -> Void) { body(loop) }
}
