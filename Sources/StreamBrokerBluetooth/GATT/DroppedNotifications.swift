// Counts the notifications that the kernel dropped because nobody read them in time. It looks a second after a reader
// had much to read or paused, and again while the reader pauses. A link that is read in time has no timer.

internal import CBluetooth
import ByteStreams

/// Lives on the lane of its stream.
final class DroppedNotifications {
  // While a reader pauses, each interval is twice the one before. A reader that pauses for a day, or is too slow, need
  // not be reported every second.
  private static let pauses = (shortest: Duration.seconds(1), longest: Duration.seconds(60))

  private let socket: Int32
  private let timers: Timers
  private let report: (Int) -> Void
  private var reported: Int32 = 0
  private var timer: Timers.Token?
  private var pause = pauses.shortest
  private var isReading = false
  private var isOver = false

  /// `report` is called with the number of drops since its last call.
  init(of socket: Int32, on timers: Timers, _ report: @escaping (Int) -> Void) {
    (self.socket, self.timers, self.report) = (socket, timers, report)
  }

  /// A read returned as many messages as it could: there may have been more than the socket's buffer holds.
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

  /// Call it before the socket is closed.
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
      // `report` may have closed the stream.
      guard !isReading, !isOver else { return }
      pause = min(pause * 2, Self.pauses.longest)
      wait()
    }
  }

  private func count() {
    let now = bluetooth_drops(socket)
    let new = now > reported ? Int(now - reported) : 0
    reported = now
    if new > 0 { report(new) }
  }
}
