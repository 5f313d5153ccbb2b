// What `status` shows of an open serial line beside its settings: what holds up the output, and how many bytes the
// hardware has lost. It also starts output that XOFF has stopped, once that can be nobody's wish any more. Upstream owns
// one for each endpoint with a line.

import ByteStreams

/// Why the port sends nothing.
package struct OutputHold: Hashable, Sendable {
  package enum Cause: String, CaseIterable, Sendable { case xoff, cts }
  var cause: Cause
  /// On the lane's clock.
  var since: UInt64
}

protocol LineMeterOwner: AnyObject {
  /// The endpoint takes no more of what waits for it.
  var isBlocked: Bool { get }
  /// Bytes that the endpoint has taken.
  var taken: UInt64 { get }
}

final class LineMeter {
  private let line: any SerialLine
  private let poller: Poller
  private unowned let owner: any LineMeterOwner
  private(set) var hold: OutputHold?
  /// Bytes that the hardware or the driver lost since the port was opened; nil: the driver does not count.
  private(set) var overruns: UInt64?
  private var timer: Timers.Token?
  private var startTimer: Timers.Token?
  private var isAsked = false
  // The last look: when, and what waited.
  private var last: (time: UInt64, unsent: Int, taken: UInt64)?
  private var stuckSince: UInt64?

  private static let look = Duration.milliseconds(500)
  /// A shorter pause is the usual work of flow control.
  private static let longestPause = Duration.seconds(1)
  /// A USB adapter may need longer for an answer; `status` then shows the last one.
  private static let longestAnswer = Duration.milliseconds(300)

  init(_ line: any SerialLine, _ owner: any LineMeterOwner, on poller: Poller) {
    self.line = line
    self.owner = owner
    self.poller = poller
  }

  func end() {
    poller.timers.cancel(timer)
    poller.timers.cancel(startTimer)
    (timer, startTimer) = (nil, nil)
  }

  // MARK: - What holds up the output

  /// Bytes were written, or could not be. With flow control it looks from time to time until all are sent.
  func watchOutput() {
    guard timer == nil, !isAsked, line.settings.flowControl != .none else { return }
    timer = poller.timers.after(Self.look) { [weak self] in
      guard let self else { return }
      timer = nil
      isAsked = true
      line.unsent { [weak self] answer in
        guard let self else { return }
        isAsked = false
        looked((try? answer.get()) ?? 0)
      }
    }
  }

  private func looked(_ unsent: Int) {
    let (now, taken) = (poller.timers.now, owner.taken)
    let waits = unsent > 0 || owner.isBlocked
    if waits, let last, last.taken == taken, unsent >= last.unsent {
      stuckSince = stuckSince ?? last.time
    } else {
      stuckSince = nil
    }
    last = waits ? (now, unsent, taken) : nil
    guard let stuckSince, now &- stuckSince >= Self.longestPause.nanoseconds else {
      hold = nil
      if waits { watchOutput() }
      return
    }
    switch line.settings.flowControl {
    case .xonxoff: hold = OutputHold(cause: .xoff, since: stuckSince)
    case .none: hold = nil
    case .rtscts:
      isAsked = true
      return line.condition { [weak self] answer in
        guard let self else { return }
        isAsked = false
        let isOn = (try? answer.get())?.inputs?.contains(.cts) ?? false
        hold = isOn ? nil : OutputHold(cause: .cts, since: stuckSince)
        watchOutput()
      }
    }
    watchOutput()
  }

  // MARK: - Starting it

  /// No client's input is left, or a first client comes: an XOFF from before was meant for somebody else. If the port
  /// still holds bytes, they are due, unless nothing moves for `patience`.
  func startOutput(patience: Duration) {
    guard line.settings.flowControl == .xonxoff else { return }
    poller.timers.cancel(startTimer)
    startTimer = nil
    startOutput(patience, unless: nil)
  }

  private func startOutput(_ patience: Duration, unless before: Int?) {
    line.unsent { [weak self] answer in
      guard let self else { return }
      let unsent = (try? answer.get()) ?? 0
      if unsent > 0, before.map({ unsent < $0 }) ?? true {
        guard startTimer == nil else { return }
        startTimer = poller.timers.after(patience) { [weak self] in
          self?.startTimer = nil
          self?.startOutput(patience, unless: unsent)
        }
        return
      }
      line.startOutput { [weak self] _ in
        self?.hold = nil
        self?.stuckSince = nil
      }
    }
  }

  // MARK: - Lost bytes

  /// Asks the driver, and calls `done` in any case.
  func refresh(_ done: @escaping () -> Void) {
    var isDone = false
    let once = {
      guard !isDone else { return }
      isDone = true
      done()
    }
    let limit = poller.timers.after(Self.longestAnswer, once)
    line.condition { [weak self, poller] answer in
      poller.timers.cancel(limit)
      if case .success(let condition) = answer {
        self?.overruns = condition.counts.map { UInt64($0.overruns) &+ UInt64($0.bufferOverruns) }
      }
      once()
    }
  }
}
