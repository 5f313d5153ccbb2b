// A lane's deadlines, behind one timerfd in its epoll set. Tests advance a clock of their own.

import CLinux
import Glibc

/// The source of a lane's time. `.monotonic` is CLOCK_MONOTONIC of clock_gettime(2).
public struct LaneClock: Sendable {
  /// Nanoseconds since some fixed moment; never goes back.
  public let now: @Sendable () -> UInt64
  // The kernel knows no other clock: a timerfd set to one would fire at the wrong time, or again and again.
  fileprivate let hasAlarm: Bool

  /// A clock that shows `now()`, for tests. It wakes no lane: what is due runs with the lane's next
  /// `Timers.fireDue()`.
  public init(now: @escaping @Sendable () -> UInt64) { self.init(now, hasAlarm: false) }

  private init(_ now: @escaping @Sendable () -> UInt64, hasAlarm: Bool) { (self.now, self.hasAlarm) = (now, hasAlarm) }

  /// CLOCK_MONOTONIC.
  public static let monotonic = LaneClock(monotonicNanoseconds, hasAlarm: true)
}

/// Nanoseconds of CLOCK_MONOTONIC: the clock of all lanes, comparable between them.
package func monotonicNanoseconds() -> UInt64 {
  var time = timespec()
  clock_gettime(CLOCK_MONOTONIC, &time)
  return UInt64(time.tv_sec) &* 1_000_000_000 &+ UInt64(time.tv_nsec)
}

extension Duration {
  /// Whole nanoseconds: 0 for a negative duration, the maximum for one that does not fit.
  package var nanoseconds: UInt64 {
    let (seconds, attoseconds) = components
    guard seconds >= 0, attoseconds >= 0 else { return 0 }
    let (product, overflow) = UInt64(seconds).multipliedReportingOverflow(by: 1_000_000_000)
    return overflow ? .max : product &+ UInt64(attoseconds / 1_000_000_000)
  }
}

/// The deadlines of a lane. Lives on the lane; every call is made there. Times come from CLOCK_MONOTONIC, behind one
/// timerfd(2).
public final class Timers: PollHandler {
  /// Identifies a deadline; of no use once it has fired or was cancelled.
  public struct Token: Hashable, Sendable {
    fileprivate let number: UInt64
  }

  private struct Deadline: Comparable {
    let time: UInt64
    let token: Token

    /// Of deadlines for the same moment, the one that was set first fires first.
    static func < (one: Deadline, other: Deadline) -> Bool {
      (one.time, one.token.number) < (other.time, other.token.number)
    }
  }

  // A binary heap, earliest first. Cancelled deadlines stay in it until they come up: only those in `actions` are
  // valid.
  private var heap: [Deadline] = []
  private var actions: [Token: () -> Void] = [:]
  private var lastNumber: UInt64 = 0
  private var alarm: UInt64 = 0  // what the timerfd is set to; 0 = not set
  private let timer: Descriptor
  private let clock: LaneClock

  package init(clock: LaneClock) throws(SystemError) {
    let raw = timerfd_create(CLOCK_MONOTONIC, Int32(TFD_NONBLOCK | TFD_CLOEXEC))
    guard raw >= 0 else { throw SystemError("timerfd_create") }
    timer = Descriptor(owning: raw)
    self.clock = clock
  }

  var descriptor: Int32 { timer.raw }

  /// Nanoseconds on the lane's clock.
  public var now: UInt64 { clock.now() }

  /// The earliest moment at which something can be due, for tests that advance the clock from one to the next.
  var nextMoment: UInt64? { heap.first?.time }

  /// Calls `action` on the lane once `delay` has passed, never earlier and never before `after` returns. Keeps `action`
  /// until then, or until `cancel`. A negative delay counts as zero.
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

  /// Calls `action` on the lane at `time`, in nanoseconds on the lane's clock; soon if that is over.
  @discardableResult
  package func at(_ time: UInt64, _ action: @escaping () -> Void) -> Token {
    let now = now
    return after(.nanoseconds(Int64(clamping: time > now ? time &- now : 0)), action)
  }

  /// Cancels the deadline. Does nothing if it has fired.
  public func cancel(_ token: Token?) {
    guard let token, actions.removeValue(forKey: token) != nil else { return }
    // Most of the heap is cancelled: remove those, or a busy lane would carry each until its time comes.
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

  /// Runs what is due. The poller calls it through the timerfd, and a test on the lane after it has advanced the
  /// clock.
  public func fireDue() {
    let now = now
    // Deadlines that an action sets for now wait for the next round, or the action could occupy the lane for ever.
    let last = lastNumber
    while let first = heap.first,
      actions[first.token] == nil || (first.time <= now && first.token.number <= last)
    {
      let deadline = pop()
      actions.removeValue(forKey: deadline.token)?()
    }
    setAlarm()
  }

  /// Called by the poller.
  public func ready(_ events: PollEvents) {
    var expirations: UInt64 = 0
    _ = read(timer.raw, &expirations, 8)
    alarm = 0
    fireDue()
  }

  private func setAlarm() {
    // An alarm that is still set fires once and finds nothing.
    guard clock.hasAlarm, let next = heap.first?.time else { return }
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
