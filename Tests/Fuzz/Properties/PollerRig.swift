// A lane that the test drives: its epoll set, and a clock that only the test advances.

import CLinux
import Glibc

@testable import ByteStreams

/// One rig serves many inputs, because an epoll set costs more than all the rest. Not for two threads at once.
final class PollerRig {
  let poller: Poller
  private let clock = Clock()

  /// Ahead of the machine's clock, so that real timers do not fire.
  // Unchecked: read and set by the rig's one thread.
  private final class Clock: @unchecked Sendable { var now = PollerRig.start }
  private static let start: UInt64 = 1 << 60

  init() throws(Broken) {
    let clock = clock
    guard let poller = try? Poller(clock: LaneClock { clock.now }, post: { _ in }) else {
      throw Broken("no descriptors left: \(errno)")
    }
    self.poller = poller
  }

  func turn() {
    _ = poller.turn(waiting: 0)
    poller.runAgain()
    poller.timers.fireDue()
  }

  /// Nanoseconds.
  var now: UInt64 {
    get { clock.now }
    set { clock.now = newValue }
  }

  /// Forgets all handlers and timers, and sets the clock back.
  func restart() {
    poller.forgetAll()
    clock.now = Self.start
  }

  func pass(seconds: UInt64) { clock.now += seconds * 1_000_000_000 }

  /// Two non-blocking ends; the caller owns both.
  static func pair(_ kind: __socket_type) throws(Broken) -> (Int32, Int32) {
    var ends: [Int32] = [-1, -1]
    guard socketpair(AF_UNIX, Int32(kind.rawValue | SOCK_NONBLOCK.rawValue), 0, &ends) == 0 else {
      throw Broken("no descriptors left: \(errno)")
    }
    return (ends[0], ends[1])
  }
}
