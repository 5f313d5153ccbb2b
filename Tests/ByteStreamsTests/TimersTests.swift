// Deadlines on a manual clock.

import StreamTestKit
import Testing

@testable import ByteStreams

@Suite("Timers", .timeLimit(.minutes(5)))
struct TimersTests {
  private let clock = ManualClock()

  @Test("fire when due and not before, the earliest first")
  func order() throws {
    let timers = try Timers(clock: clock.clock)
    var fired: [Int] = []
    for delay in [30, 10, 20, 40] { timers.after(.milliseconds(delay)) { fired.append(delay) } }
    timers.fireDue()
    #expect(fired == [])
    clock.advance(by: .milliseconds(20))
    timers.fireDue()
    #expect(fired == [10, 20])
    clock.advance(by: .seconds(1))
    timers.fireDue()
    #expect(fired == [10, 20, 30, 40])
  }

  @Test("for the same moment fire in the order they were set")
  func sameMoment() throws {
    let timers = try Timers(clock: clock.clock)
    var fired: [Int] = []
    for number in 0..<100 { timers.after(.seconds(1)) { fired.append(number) } }
    clock.advance(by: .seconds(1))
    timers.fireDue()
    #expect(fired == Array(0..<100))
  }

  @Test("do not fire after they were cancelled, also from inside another")
  func cancelling() throws {
    let timers = try Timers(clock: clock.clock)
    var fired: [String] = []
    let gone = timers.after(.seconds(1)) { fired.append("gone") }
    let later = timers.after(.seconds(3)) { fired.append("later") }
    timers.after(.seconds(2)) {
      fired.append("in between")
      timers.cancel(later)
    }
    timers.cancel(gone)
    timers.cancel(gone)
    timers.cancel(nil)
    clock.advance(by: .seconds(9))
    timers.fireDue()
    #expect(fired == ["in between"])
  }

  @Test("set for at once by an action wait for the next round")
  func chain() throws {
    let timers = try Timers(clock: clock.clock)
    var rounds = 0
    func again() {
      rounds += 1
      timers.after(.zero) { again() }
    }
    timers.after(.zero) { again() }
    timers.fireDue()
    #expect(rounds == 1)
    timers.fireDue()
    #expect(rounds == 2)
  }

  @Test("keep their order through thousands of cancelled ones")
  func sweeping() throws {
    var random = SeededRandom()
    let timers = try Timers(clock: clock.clock)
    var fired: [Int] = []
    var expected: [Int] = []
    for _ in 0..<5000 {
      let delay = Int.random(in: 1...1_000_000, using: &random)
      let token = timers.after(.microseconds(delay)) { fired.append(delay) }
      if Int.random(in: 0..<10, using: &random) == 0 { expected.append(delay) } else { timers.cancel(token) }
    }
    clock.advance(by: .seconds(2))
    timers.fireDue()
    #expect(fired == expected.sorted(), "\(random)")
  }

  @Test("accept a delay that never ends")
  func endless() throws {
    let timers = try Timers(clock: clock.clock)
    var hasFired = false
    timers.after(.seconds(Int64.max)) { hasFired = true }
    clock.advance(by: .seconds(1_000_000))
    timers.fireDue()
    #expect(!hasFired)
  }

  @Test("wake their lane")
  func onTheLane() async throws {
    try await onLane { lane in
      let gate = Gate()
      let start = monotonicNanoseconds()
      lane.poller.timers.after(.milliseconds(30)) { gate.open() }
      await gate.wait(on: lane)
      #expect(monotonicNanoseconds() - start >= 30_000_000)
    }
  }
}
