// How a port's line is watched: by a wait in the driver and by polling, with recorded calls.

import CLinux
import Glibc
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
import StreamBroker
@testable import StreamBrokerCore

@Suite("A watched line", .timeLimit(.minutes(5)))
final class TTYWatchTests: Sendable {
  private let lane: Lane
  private let tty: RecordedTTY
  private let reported = Told()

  init() throws {
    lane = try Lane("test")
    tty = try RecordedTTY()
    tty.state.withLock {
      $0.inputs = [.cts]
      $0.counts = linux_line_counts()
    }
  }

  deinit { lane.stop() }

  private final class Told: Sendable {
    let all = Mutex<[Result<LineCondition, SystemError>]>([])
    func add(_ one: Result<LineCondition, SystemError>) { all.withLock { $0.append(one) } }
    /// Waits until `count` conditions were reported, up to ten seconds.
    func wait(for count: Int) async -> [Result<LineCondition, SystemError>] {
      for _ in 0..<Patience.milliseconds / 10 where all.withLock({ $0.count }) < count {
        try? await Task.sleep(for: .milliseconds(10))
      }
      return all.withLock { $0 }
    }
    /// Waits until `one` was reported, up to ten seconds. A look in the middle of a change may report half of it
    /// before.
    func wait(until one: Result<LineCondition, SystemError>) async -> Bool {
      for _ in 0..<Patience.milliseconds / 10 where !all.withLock({ $0.contains(one) }) {
        try? await Task.sleep(for: .milliseconds(10))
      }
      return all.withLock { $0.contains(one) }
    }
  }

  private func watched() async throws -> OnLane<any ByteStream> {
    let stream = try await TTYConnector(tty).opened(on: lane).get()
    let reported = reported
    await on(stream) { $0.serialLine?.watch { reported.add($0) } }
    return stream
  }

  private func on(_ stream: OnLane<any ByteStream>, _ work: @escaping @Sendable (any ByteStream) -> Void) async {
    _ = await lane.ask { _, answer in
      work(stream.value)
      answer(true)
    }
  }

  private func waitForLog(_ call: String) async -> Bool {
    for _ in 0..<Patience.milliseconds / 10 where !tty.log.contains(call) {
      try? await Task.sleep(for: .milliseconds(10))
    }
    return tty.log.contains(call)
  }

  @Test("reports its state, then changes: breaks, which are only counted, and lines, for which the driver wakes")
  func changes() async throws {
    let stream = try await watched()
    #expect(await reported.wait(for: 1).first == .success(LineCondition(inputs: [.cts], counts: LineCounts())))
    tty.state.withLock { $0.counts?.breaks = 2 }
    #expect(await reported.wait(for: 2).last == .success(LineCondition(inputs: [.cts], counts: LineCounts(breaks: 2))))
    #expect(await waitForLog("TIOCMIWAIT"))
    tty.state.withLock {
      $0.inputs = [.cts, .dcd]
      $0.counts?.dcd = 1
    }
    tty.ring()
    let now = LineCondition(inputs: [.cts, .dcd], counts: LineCounts(breaks: 2), changes: 1)
    #expect(await reported.wait(until: .success(now)))
    await on(stream) { $0.close() }
    #expect(tty.closes())
  }

  @Test("has no thread waiting in the driver when it is closed, or no longer watched")
  func ends() async throws {
    let stream = try await watched()
    #expect(await waitForLog("TIOCMIWAIT"))
    await on(stream) { $0.serialLine?.endWatch() }
    #expect(await waitForLog("end of TIOCMIWAIT"))
    let reported = reported
    await on(stream) { $0.serialLine?.watch { reported.add($0) } }
    for _ in 0..<1000 where tty.log.filter({ $0 == "TIOCMIWAIT" }).count < 2 {
      try await Task.sleep(for: .milliseconds(10))
    }
    await on(stream) { $0.close() }
    #expect(tty.closes())
    let last = try #require(tty.log.lastIndex(of: "end of TIOCMIWAIT"))
    #expect(tty.log.filter { $0.hasSuffix("TIOCMIWAIT") }.count == 4 && last < tty.log.lastIndex(of: "letOthersIn")!)
  }

  @Test("that has no information reports that once, and is no longer polled")
  func tellsNothing() async throws {
    tty.state.withLock {
      $0.inputs = nil
      $0.counts = nil
    }
    let stream = try await watched()
    #expect(await reported.wait(for: 1) == [.failure(SystemError("ioctl TIOCGICOUNT", ENOTTY))])
    await on(stream) { $0.close() }
    #expect(tty.closes())
  }

  @Test("reports as much as its driver does", arguments: [true, false])
  func halfADriver(hasLines: Bool) async throws {
    tty.state.withLock { if hasLines { $0.counts = nil } else { $0.inputs = nil } }
    let stream = try await watched()
    let condition = hasLines ? LineCondition(inputs: [.cts]) : LineCondition(counts: LineCounts())
    #expect(await reported.wait(for: 1).first == .success(condition))
    await on(stream) { $0.close() }
    #expect(tty.closes())
  }
}

@Suite("A line's condition, by the lane's clock")
struct TTYWatchPaceTests {
  @Test("is polled ten times a second, sooner when the driver wakes, and at most a hundred times")
  func pace() throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    var looks = 0
    let watch = TTYWatch(on: poller) { done in
      looks += 1
      done(.success(LineCondition(changes: UInt32(looks))))
    } reported: { _ in
    }
    watch.look()
    func pass(_ milliseconds: Int, ringing: Bool = false) {
      for _ in 0..<milliseconds {
        if ringing { watch.ready(.readable) }
        clock.advance(by: .milliseconds(1))
        poller.timers.fireDue()
      }
    }
    pass(1000)
    #expect(looks == 11)
    watch.ready(.readable)
    pass(11)
    #expect(looks == 12)
    pass(1000, ringing: true)
    #expect((100...112).contains(looks))
    watch.end()
    let last = looks
    pass(1000)
    #expect(looks == last)
  }
}
