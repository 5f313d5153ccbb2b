// Notifications that the kernel has dropped because they were not taken in time: counted a second after a reader had much to take, or
// began to pause, and while he does. A link that is read in time has no timer.

internal import CBluetooth
import ByteStreams

/// Lives on the lane of its stream.
final class LossWatch {
  // While a reader pauses each look is twice as late as the one before: who does not read for a day, or not fast enough, need not hear
  // of it each second.
  private static let pauses = (shortest: Duration.seconds(1), longest: Duration.seconds(60))

  private let socket: Int32
  private let timers: Timers
  private let tell: (Int) -> Void
  private var told: Int32 = 0
  private var timer: Timers.Token?
  private var pause = pauses.shortest
  private var isReading = false
  private var isOver = false

  /// `tell` hears how many there were since it was called last.
  init(of socket: Int32, on timers: Timers, _ tell: @escaping (Int) -> Void) {
    (self.socket, self.timers, self.tell) = (socket, timers, tell)
  }

  /// As much was there as could be taken at once: there may have been more than the socket keeps.
  func readerHadMuch() {
    guard !isOver, timer == nil else { return }
    pause = Self.pauses.shortest
    wait()
  }

  func readerChanged(isReading: Bool) {
    self.isReading = isReading
    guard !isOver, timer == nil ? !isReading : isReading && pause > Self.pauses.shortest else { return }
    pause = Self.pauses.shortest
    wait()
  }

  /// Before the socket is closed.
  func end() {
    count()
    isOver = true
    timers.cancel(timer)
  }

  private func wait() {
    timers.cancel(timer)
    timer = timers.after(pause) { [weak self] in
      guard let self else { return }
      timer = nil
      count()
      // Who hears of it may have closed the stream.
      guard !isReading, !isOver else { return }
      pause = min(pause * 2, Self.pauses.longest)
      wait()
    }
  }

  private func count() {
    let now = bluetooth_drops(socket)
    let new = now > told ? Int(now - told) : 0
    told = now
    if new > 0 { tell(new) }
  }
}
