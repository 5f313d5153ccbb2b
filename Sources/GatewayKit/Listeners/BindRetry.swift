// Decides when to bind again an address that could not be bound or whose socket was lost. Listeners and the control
// socket use it.

import ByteStreams
import StreamBroker

struct BindRetry {
  private let timers: Timers
  private var timer: Timers.Token?
  /// Why the address is not bound; nil while it is, and before the first try.
  private(set) var failure: OpenFailure?
  private var lastLoss: (time: UInt64, pause: Duration)?

  /// Time between two tries.
  static let pause = Duration.seconds(1)
  private static let longestPause = Duration.seconds(30)

  init(_ timers: Timers) { self.timers = timers }

  var isWaiting: Bool { timer != nil }

  /// Tries again after `pause`. Returns whether to report this failure: it differs from the last.
  mutating func failed(_ failure: OpenFailure, again: @escaping () -> Void) -> Bool {
    defer { self.failure = failure }
    schedule(after: Self.pause, again)
    return failure != self.failure
  }

  /// Binds again after the returned pause: twice the last one, at most 30 s, unless the socket has worked for a while.
  /// A socket that is shut down repeatedly must neither cause a busy loop nor fill the log.
  mutating func lost(_ failure: OpenFailure, again: @escaping () -> Void) -> Duration {
    let now = timers.now
    var pause = Self.pause
    if let lastLoss, now &- lastLoss.time < (lastLoss.pause + Self.longestPause).nanoseconds {
      pause = min(lastLoss.pause * 2, Self.longestPause)
    }
    lastLoss = (now, pause)
    self.failure = failure
    schedule(after: pause, again)
    return pause
  }

  private mutating func schedule(after pause: Duration, _ again: @escaping () -> Void) {
    timers.cancel(timer)
    timer = timers.after(pause, again)
  }

  /// The address is bound.
  mutating func succeeded() {
    cancel()
    failure = nil
  }

  /// Cancels the next try.
  mutating func cancel() {
    timers.cancel(timer)
    timer = nil
  }
}

extension OpenFailure {
  /// The failure of a listener whose socket was bound and then lost.
  static func lost(_ error: SystemError) -> OpenFailure {
    OpenFailure(
      error.call, error,
      advice: "its socket was shut down, perhaps by another process that shares it; binding it again")
  }
}
