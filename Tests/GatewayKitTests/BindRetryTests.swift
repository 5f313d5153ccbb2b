// When a listener tries to bind again, and which failures it reports.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("Binding again")
struct BindRetryTests {
  private let clock = ManualClock()
  private let timers: Timers
  private var retry: BindRetry
  private let tries = Count()

  private final class Count { var value = 0 }

  init() throws {
    timers = try Timers(clock: clock.clock)
    retry = BindRetry(timers)
  }

  private static let taken = OpenFailure("bind", SystemError("bind", EADDRINUSE))
  private static let missing = OpenFailure("bind", SystemError("bind", EADDRNOTAVAIL))
  private static let lost = OpenFailure.lost(SystemError("accept", EINVAL))

  private func advance(by time: Duration) {
    clock.advance(by: time)
    timers.fireDue()
  }

  @Test("happens after a second, and each reason is reported once")
  mutating func failures() {
    let again = { [tries] in tries.value += 1 }
    let failures = [Self.taken, Self.taken, Self.missing, Self.missing, Self.taken]
    var reported: [Bool] = []
    for (index, failure) in failures.enumerated() {
      reported.append(retry.failed(failure, again: again))
      #expect(retry.failure == failure && retry.isWaiting)
      advance(by: BindRetry.pause - .milliseconds(1))
      #expect(tries.value == index)
      advance(by: .milliseconds(1))
      #expect(tries.value == index + 1)
    }
    #expect(reported == [true, false, true, false, true])
  }

  @Test("reports the same reason again once it has listened in between")
  mutating func anew() {
    let first = retry.failed(Self.taken, again: {})
    retry.succeeded()
    #expect(retry.failure == nil && !retry.isWaiting)
    let second = retry.failed(Self.taken, again: {})
    #expect(first && second)
  }

  @Test("waits twice as long after each loss, up to 30 s, and one second again after the socket has worked for a while")
  mutating func losses() {
    let again = { [tries] in tries.value += 1 }
    var pauses: [Int] = []
    for _ in 0..<7 {
      let pause = retry.lost(Self.lost, again: again)
      pauses.append(Int(pause.components.seconds))
      advance(by: pause)
      retry.succeeded()
    }
    #expect(pauses == [1, 2, 4, 8, 16, 30, 30] && tries.value == 7)
    advance(by: .seconds(61))
    let pause = retry.lost(Self.lost, again: again)
    #expect(pause == .seconds(1))
  }

  @Test("does not happen after a cancel, nor twice when two failures follow each other")
  mutating func cancelled() {
    let again = { [tries] in tries.value += 1 }
    _ = retry.failed(Self.taken, again: again)
    retry.cancel()
    advance(by: .seconds(60))
    #expect(tries.value == 0 && retry.failure == Self.taken)
    _ = retry.failed(Self.taken, again: again)
    _ = retry.lost(Self.lost, again: again)
    advance(by: .seconds(60))
    #expect(tries.value == 1)
  }
}
