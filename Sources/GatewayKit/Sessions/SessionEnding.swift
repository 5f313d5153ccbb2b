// How far one session is in ending: how each side ended, which end was passed on, and which timers run. A value in the
// session, from which `Settlement` decides and the hub acts. Times are nanoseconds on the lane's clock.

import ByteStreams

struct SessionEnding {
  private(set) var isOver = false
  /// A mistake of ours in the session's state: it ends as `internal`.
  private(set) var fault: (any Error)?
  /// The end of the side that ended first.
  private(set) var first: Ending?

  // While the session is being ended.
  /// The session ends with this once the client has received what is kept for it, and its input is delivered.
  private(set) var leaving: Ending?
  private(set) var leavingSince: UInt64?
  /// Position in the hub's output up to which the client still receives. Later output must not delay the end.
  private(set) var leavesAt: UInt64 = 0
  /// The most input that is delivered, in bytes since the session began.
  private(set) var mostSent: UInt64 = 0

  // The client's end.
  /// The client sends no more or is gone; its end is not read yet.
  private(set) var hasSentLastByte = false
  /// When the client's FIN arrived, even if bytes before it are not delivered yet.
  private(set) var finishedAt: UInt64?
  /// The error that ended the client's input, if it did not end in order.
  private(set) var inputError: (any Error)?
  /// The client broke off, or some of its input was dropped: its endpoint did not receive all of it.
  private(set) var isInputCut = false
  /// The client's input was given up after `device.drain`.
  private(set) var isGivenUp = false
  /// The client's end was passed on to its endpoint.
  private(set) var isPassedOn = false

  // The endpoint's end.
  /// The client was notified that no more output will come.
  private(set) var isNotifiedOfEnd = false
  /// On a shared link, when a byte was last sent to the half-closed client; before the first such byte, when its input
  /// was over.
  private(set) var receivedAt: UInt64?

  // The hub's timers.
  /// The session has to make progress within each `limit`.
  struct Deadline {
    let limit: Duration
    let timer: Timers.Token
    /// Bytes both ways when it was set.
    let progress: UInt64
    /// Bytes that the client had not acknowledged then; a smaller number later is progress as well.
    let unacknowledged: Int
  }
  var deadline: Deadline? { waits?.deadline }
  /// Runs while the client is half-closed on a shared link.
  var halfClose: (limit: Duration, timer: Timers.Token)? { waits?.halfClose }
  /// Nil until one of them is needed: few sessions have to be waited for.
  private var waits: Waits?

  private final class Waits {
    var deadline: Deadline?
    var halfClose: (limit: Duration, timer: Timers.Token)?
    /// Runs while the session is being ended and a read found nothing. When it fires, the input counts as over.
    var quietTimer: Timers.Token?
    /// Runs while the input waits, until the next check whether it moves.
    var endLook: Timers.Token?
  }

  private mutating func makeWaits() -> Waits {
    if let waits { return waits }
    let new = Waits()
    waits = new
    return new
  }

  /// The most that a client's own kernel may keep (net.ipv4.tcp_wmem) when its session begins to end. Without a limit,
  /// a client that stays could send for ever.
  private static let mostUnsentInput: UInt64 = 4 << 20

  mutating func leave(_ ending: Ending, at now: UInt64, upTo position: UInt64) {
    leaving = ending
    leavingSince = now
    leavesAt = position
  }

  /// `sent` bytes of the input were read so far.
  mutating func limitInput(after sent: UInt64) { mostSent = sent &+ Self.mostUnsentInput }

  mutating func inputEnded() { hasSentLastByte = true }

  mutating func inputFailed(_ error: (any Error)?, cutsInput: Bool) {
    inputError = inputError ?? error
    if cutsInput { isInputCut = true }
  }

  mutating func inputWasCut() { isInputCut = true }

  mutating func inputWasGivenUp() { isGivenUp = true }

  mutating func inputFinished(at now: UInt64) { finishedAt = finishedAt ?? now }

  mutating func ended(first ending: Ending) { first = ending }

  mutating func endPassesOn() { isPassedOn = true }

  mutating func isNotified() { isNotifiedOfEnd = true }

  mutating func failed(_ fault: InternalFault) { self.fault = self.fault ?? fault }

  /// The input is delivered or given up. The time without output counts from now, or from the FIN if input was given
  /// up.
  mutating func becomesHalfClosed(at now: UInt64) {
    if receivedAt == nil { receivedAt = isGivenUp ? finishedAt : now }
  }

  mutating func received(at now: UInt64) { receivedAt = now }

  /// How much longer a half-closed client is kept if nothing is sent to it.
  func timeout(_ limit: Duration, at now: UInt64) -> Duration {
    let (most, silence) = (limit.nanoseconds, now &- (receivedAt ?? 0))
    return .nanoseconds(Int64(clamping: silence < most ? most - silence : 0))
  }

  // MARK: - The hub's timers

  mutating func watch(until deadline: Deadline, _ timers: Timers) {
    stopWatching(timers)
    makeWaits().deadline = deadline
  }

  mutating func deadlineHasCome() -> Deadline? { waits?.deadline.take() }

  mutating func stopWatching(_ timers: Timers) { timers.cancel(waits?.deadline.take()?.timer) }

  mutating func awaitSilence(of limit: Duration, until timer: Timers.Token, _ timers: Timers) {
    timers.cancel(halfClose?.timer)
    makeWaits().halfClose = (limit, timer)
  }

  mutating func silenceIsOver() { waits?.halfClose = nil }

  var awaitsQuiet: Bool { waits?.quietTimer != nil }
  mutating func awaitQuiet(until timer: Timers.Token) { makeWaits().quietTimer = timer }
  mutating func quietIsOver() { waits?.quietTimer = nil }

  var looksForEnd: Bool { waits?.endLook != nil }
  mutating func lookForEnd(at timer: Timers.Token) { makeWaits().endLook = timer }
  mutating func endLookIsDue() { waits?.endLook = nil }

  /// The session is over: cancels all timers.
  mutating func end(_ timers: Timers) {
    isOver = true
    guard let waits else { return }
    timers.cancel(waits.deadline?.timer)
    timers.cancel(waits.halfClose?.timer)
    timers.cancel(waits.quietTimer)
    timers.cancel(waits.endLook)
  }
}
