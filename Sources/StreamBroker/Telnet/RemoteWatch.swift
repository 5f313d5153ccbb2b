// Reports the condition of a remote line to its observer, 100 times a second at most.

import ByteStreams

final class RemoteWatch {
  private let poller: Poller
  private var reported: ((LineCondition) -> Void)?
  private var condition = LineCondition()
  private var last: LineCondition?
  private var lastTime: UInt64 = 0
  private var timer: Timers.Token?

  private static let shortest = Duration.milliseconds(10)
  /// The first report waits this long for the modem's lines, since not every server sends them.
  private static let longestFirst = Duration.milliseconds(500)

  init(on poller: Poller, _ reported: @escaping (LineCondition) -> Void) {
    self.poller = poller
    self.reported = reported
  }

  deinit { poller.timers.cancel(timer) }

  func begin(_ condition: LineCondition) {
    self.condition = condition
    report(after: Self.longestFirst)
  }

  func end() {
    reported = nil
    poller.timers.cancel(timer)
    timer = nil
  }

  func changed(to condition: LineCondition) {
    self.condition = condition
    if last == nil { return report(after: .zero) }
    guard timer == nil else { return }
    let rest = Int64(clamping: poller.timers.now &- lastTime)
    report(after: max(.zero, Self.shortest - .nanoseconds(rest)))
  }

  // The observer is never called in the middle of a read.
  private func report(after pause: Duration) {
    poller.timers.cancel(timer)
    timer = poller.timers.after(pause) { [weak self] in
      guard let self, let reported else { return }
      timer = nil
      guard condition != last else { return }
      last = condition
      lastTime = poller.timers.now
      reported(condition)
    }
  }
}
