// A lane's deadlines, behind one timerfd in its epoll set. Tests turn the clock by hand instead.

import CLinux
import Glibc

/// Where a lane's time comes from. `.monotonic` is CLOCK_MONOTONIC of clock_gettime(2).
public struct LaneClock {
  /// Nanoseconds since some fixed moment; never goes back.
  public let now: () -> UInt64
  public init(now: @escaping () -> UInt64) { self.now = now }

  public static var monotonic: LaneClock { LaneClock(now: monotonicNanoseconds) }
}

/// Nanoseconds of CLOCK_MONOTONIC: the clock of all lanes, comparable between them.
public func monotonicNanoseconds() -> UInt64 {
  var time = timespec()
  clock_gettime(CLOCK_MONOTONIC, &time)
  return UInt64(time.tv_sec) &* 1_000_000_000 &+ UInt64(time.tv_nsec)
}

extension Duration {
  /// Whole nanoseconds; negative counts as none, and what does not fit as the most that does.
  public var nanoseconds: UInt64 {
    let (seconds, attoseconds) = components
    guard seconds >= 0, attoseconds >= 0 else { return 0 }
    let (product, overflow) = UInt64(seconds).multipliedReportingOverflow(by: 1_000_000_000)
    return overflow ? .max : product &+ UInt64(attoseconds / 1_000_000_000)
  }
}

public final class Timers: PollHandler {
  /// Names a deadline that was set; of no further use once it has fired or was cancelled.
  public struct Token: Hashable, Sendable {
    fileprivate let number: UInt64
  }

  private struct Deadline: Comparable {
    let time: UInt64
    let token: Token

    /// Who was set first fires first among those for the same moment.
    static func < (one: Deadline, other: Deadline) -> Bool {
      (one.time, one.token.number) < (other.time, other.token.number)
    }
  }

  // A binary heap, earliest first. Cancelled deadlines stay in it until they come up: `actions` is the truth.
  private var heap: [Deadline] = []
  private var actions: [Token: () -> Void] = [:]
  private var lastNumber: UInt64 = 0
  private var alarm: UInt64 = 0  // what the timerfd is set to; 0 = not set
  private let timer: Descriptor
  private let clock: LaneClock

  public init(clock: LaneClock) throws(SystemError) {
    let raw = timerfd_create(CLOCK_MONOTONIC, Int32(TFD_NONBLOCK | TFD_CLOEXEC))
    guard raw >= 0 else { throw SystemError("timerfd_create") }
    timer = Descriptor(owning: raw)
    self.clock = clock
  }

  var descriptor: Int32 { timer.raw }

  /// Nanoseconds on the lane's clock.
  public var now: UInt64 { clock.now() }

  /// The earliest moment at which something can be due, for tests that turn the clock from one to the next.
  var nextMoment: UInt64? { heap.first?.time }

  /// Calls `action` on the lane once `delay` has passed.
  @discardableResult
  public func after(_ delay: Duration, _ action: @escaping () -> Void) -> Token {
    let (time, overflow) = now.addingReportingOverflow(delay.nanoseconds)
    lastNumber += 1
    let token = Token(number: lastNumber)
    actions[token] = action
    push(Deadline(time: overflow ? .max : time, token: token))
    setAlarm()
    return token
  }

  /// Takes the deadline back. Nothing happens if it has fired.
  public func cancel(_ token: Token?) {
    guard let token, actions.removeValue(forKey: token) != nil else { return }
    // Mostly cancelled deadlines: sweep them out, or a busy lane would carry them for their whole time.
    if heap.count > 64, heap.count > 4 * actions.count {
      let left = heap.filter { actions[$0.token] != nil }
      heap.removeAll(keepingCapacity: true)
      for deadline in left { push(deadline) }
    }
  }

  func forgetAll() {
    heap = []
    actions = [:]
  }

  /// Runs what is due. The poller calls it through the timerfd, tests after they have turned the clock.
  public func fireDue() {
    let now = now
    // What an action sets for at once waits for the next round, or it could keep the lane for good.
    let last = lastNumber
    while let first = heap.first,
      actions[first.token] == nil || (first.time <= now && first.token.number <= last)
    {
      let deadline = pop()
      actions.removeValue(forKey: deadline.token)?()
    }
    setAlarm()
  }

  public func ready(_ events: PollEvents) {
    var expirations: UInt64 = 0
    _ = read(timer.raw, &expirations, 8)
    alarm = 0
    fireDue()
  }

  private func setAlarm() {
    guard let next = heap.first?.time else { return }  // an alarm for nothing fires once and finds nothing
    guard alarm == 0 || next < alarm else { return }
    alarm = next
    var setting = itimerspec()
    setting.it_value.tv_sec = Int(truncatingIfNeeded: min(next / 1_000_000_000, UInt64(Int32.max)))
    setting.it_value.tv_nsec = Int(next % 1_000_000_000)
    timerfd_settime(timer.raw, Int32(TFD_TIMER_ABSTIME), &setting, nil)
  }

  private func push(_ deadline: Deadline) {
    heap.append(deadline)
    var child = heap.count - 1
    while child > 0 {
      let parent = (child - 1) / 2
      guard heap[child] < heap[parent] else { break }
      heap.swapAt(child, parent)
      child = parent
    }
  }

  private func pop() -> Deadline {
    let first = heap[0]
    let last = heap.removeLast()
    guard !heap.isEmpty else { return first }
    heap[0] = last
    var parent = 0
    while true {
      var least = parent
      for child in [2 * parent + 1, 2 * parent + 2] where child < heap.count && heap[child] < heap[least] {
        least = child
      }
      guard least != parent else { return first }
      heap.swapAt(parent, least)
      parent = least
    }
  }
}
