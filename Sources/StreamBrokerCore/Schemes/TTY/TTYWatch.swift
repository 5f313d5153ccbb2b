// Watches the state of a port's line while a client wants it: at once when the driver reports a change of a modem line,
// and ten times a second. A driver only counts breaks and errors and wakes no program for them, and some drivers can't
// wait for lines either.

import ByteStreams
import CLinux
import Glibc
import Synchronization

/// Lives on the lane, from the first look to `end()`.
final class TTYWatch: PollHandler {
  private let poller: Poller
  private let condition: (@escaping (Result<LineCondition, SystemError>) -> Void) -> Void
  private var reported: ((Result<LineCondition, SystemError>) -> Void)?
  private var last: LineCondition?
  private var lastLook: UInt64 = 0
  private var isLooking = false
  private var isWanted = false
  private var timer: Timers.Token?
  /// The thread that waits in the driver writes to it. Nil if no descriptor is left for it.
  let bell: Bell?

  static let interval = Duration.milliseconds(100)
  /// A line that changes all the time is not reported more often.
  static let shortest = Duration.milliseconds(10)

  /// `condition` asks the driver, off the lane.
  init(
    on poller: Poller, condition: @escaping (@escaping (Result<LineCondition, SystemError>) -> Void) -> Void,
    reported: @escaping (Result<LineCondition, SystemError>) -> Void
  ) {
    self.poller = poller
    self.condition = condition
    self.reported = reported
    bell = Bell()
    if let bell { try? poller.add(bell.raw, handler: self, for: .readable) }
  }

  func end() {
    guard reported != nil else { return }
    reported = nil
    poller.timers.cancel(timer)
    if let bell { poller.remove(bell.raw) }
  }

  func ready(_ events: PollEvents) {
    bell?.hush()
    if isLooking { return isWanted = true }
    let rest = poller.timers.now &- lastLook
    look(after: max(.zero, Self.shortest - .nanoseconds(Int64(clamping: rest))))
  }

  private func look(after pause: Duration) {
    poller.timers.cancel(timer)
    timer = poller.timers.after(pause) { [weak self] in self?.look() }
  }

  func look() {
    guard reported != nil, !isLooking else { return }
    isLooking = true
    isWanted = false
    condition { [weak self] result in
      guard let self else { return }
      isLooking = false
      lastLook = poller.timers.now
      guard let reported else { return }
      switch result {
      case .success(let now):
        look(after: isWanted ? Self.shortest : Self.interval)
        guard now != last else { return }
        last = now
      case .failure: end()
      }
      reported(result)
    }
  }
}

/// An eventfd(2) that a lane waits for and another thread writes to.
final class Bell: Sendable {
  private let descriptor: Descriptor

  init?() {
    let raw = eventfd(0, Int32(EFD_NONBLOCK | EFD_CLOEXEC))
    guard raw >= 0 else { return nil }
    descriptor = Descriptor(owning: raw)
  }

  var raw: Int32 { descriptor.raw }

  func hush() {
    var count: UInt64 = 0
    _ = read(raw, &count, 8)
  }
}

/// The thread that waits in a port's driver, at most one. Used on the port's queue, where it may block.
final class ModemWaits: Sendable {
  private struct State {
    var wait: (any ModemWait)?
    /// The thread writes to it, so it must not be closed before.
    var bell: Bell?
  }
  private let state = Mutex(State())

  func begin(_ calls: any TTYCalls, _ tty: Int32, _ bell: Bell) {
    end()
    let wait = try? calls.startModemWait(tty, ringing: bell.raw)
    state.withLock { $0 = State(wait: wait, bell: bell) }
  }

  func end() {
    let (wait, bell) = state.withLock { state in
      defer { state = State() }
      return (state.wait, state.bell)
    }
    wait?.end()
    withExtendedLifetime(bell) {}
  }
}
