// Decides what follows from the state of one session: which end is passed on, how long the hub waits for what, when the
// session is over and why. A value: facts in, one step out; the hub acts (Hub+Endings.swift). It uses no stream and no
// clock.

enum Settlement {
  /// On per-client links: how long one side may be silent after the other's end. Also how long a slow client may keep
  /// its last bytes waiting. On shared links `Policy.halfClose` limits how long a client receives after its FIN.
  static let halfClosedLimit = Duration.seconds(30)

  /// Whether a stream still holds a unit that it has taken. The ring may be empty while the stream is not.
  enum Output: Equatable {
    case isPending
    /// Nothing is held. `canHalfClose`: the other side can learn of the end and still send.
    case isOut(canHalfClose: Bool)
  }

  struct Facts {
    /// A mistake of ours in the session's state.
    var isBroken = false
    /// The session is being ended: it is over once its output and its input are out.
    var isLeaving = false

    // The client's input.
    var inputHasEnded = false
    /// Bytes were read and are not delivered.
    var keepsInput = false
    /// The client sends no more or is gone; its end is not read yet.
    var hasSentLastByte = false
    /// The client's stream broke.
    var inputHasFailed = false
    /// While it is being ended: it has sent more than could have been on its way.
    var hasSentTooMuch = false
    /// While it is being ended: the last read found nothing more, and no timer runs for that.
    var inputMayBeOver = false
    /// The endpoint was notified of the client's end.
    var isEndPassedOn = false

    // The endpoint's output.
    var takesOutput = true
    /// The client's stream has taken all output that is for it.
    var hasAllOutput = true
    /// The client was notified that no more output will come.
    var isNotifiedOfEnd = false
    /// The policy allows the client to be slow.
    var mayBeSlow = false

    // Answers of streams. Asking costs calls, so a step requests it.
    var client: Output?
    var endpoint: Output?

    // The link.
    var isShared = false
    var hasEndpoint = true
    var endpointHasEnded = false
    /// Another client waits for the slot of this half-closed client.
    var slotIsWanted = false
    /// A deadline runs.
    var isWatched = false
    /// `device.drain`.
    var drain = Duration.seconds(5)
    /// `clients.half-close`.
    var halfClose: Duration?

    var inputIsDelivered: Bool { inputHasEnded && !keepsInput }
    /// The client's stream has taken the endpoint's last byte.
    var outputIsOver: Bool { endpointHasEnded && hasAllOutput }
    /// On a per-client link the client may still wait for an answer, so its endpoint gets more time.
    var drainLimit: Duration { isShared ? drain : max(drain, halfClosedLimit) }
  }

  enum Reason: Equatable {
    case fault
    /// The ending that the session is being ended with.
    case dismissal
    case inputError
    /// The end of the side that ended first.
    case firstEnd
    case clientLeft
  }

  /// What the hub does next. If a step leaves something to decide, the hub asks again.
  enum Step: Equatable {
    /// Check whether the stream has pending output, and set the answer in the facts. If it has, request an event for
    /// when it is out.
    case askClient, askEndpoint
    /// Read no more; the input so far is all.
    case endInput
    /// Treat the input as over once nothing arrives for a moment.
    case awaitQuiet
    /// Finish writing to the client; the endpoint has ended.
    case endOutput
    /// Finish writing to the endpoint; the client has ended.
    case passEndOn
    case stopWatching
    /// The endpoint takes none of the client's last bytes: drop them, and do not read the rest.
    case giveUpInput

    // After one of these the hub does nothing until something changes.
    /// End the session unless it makes progress within each such time.
    case watch(Duration)
    /// The client is half-closed: end the session once it was sent nothing for this long.
    case awaitSilence(Duration)
    /// End the session once the client has received what is kept for it, and its input is delivered.
    case leave(Reason)
    case end(Reason)
    case nothing
  }

  static func step(_ facts: Facts) -> Step {
    if facts.isBroken { return .end(.fault) }
    if facts.isLeaving { return stepWhileLeaving(facts) }
    if facts.outputIsOver && !facts.inputIsDelivered, let step = stepAtEndOfOutput(facts) { return step }
    return facts.inputIsDelivered ? stepAfterInput(facts) : stepDuringInput(facts)
  }

  /// The step when a deadline has passed without progress.
  static func stepWithoutProgress(_ facts: Facts) -> Step {
    if facts.isLeaving { return .end(.dismissal) }
    return facts.keepsInput && facts.isShared ? .giveUpInput : .end(.firstEnd)
  }

  /// Input is read until nothing arrives for a moment, since the client's machine sends what it keeps only once ours
  /// has room. The bound is the amount that can have been on its way.
  private static func stepWhileLeaving(_ facts: Facts) -> Step {
    if !facts.inputHasEnded {
      if facts.hasSentTooMuch { return .endInput }
      if facts.inputMayBeOver { return .awaitQuiet }
    }
    let limit = facts.hasAllOutput || !facts.mayBeSlow ? facts.drain : halfClosedLimit
    guard facts.hasAllOutput && facts.inputIsDelivered else { return .watch(limit) }
    guard facts.takesOutput else { return .end(.dismissal) }
    guard let client = facts.client else { return .askClient }
    return client == .isPending ? .watch(limit) : .end(.dismissal)
  }

  /// The client may go on sending. It is notified of the end once its stream holds nothing.
  private static func stepAtEndOfOutput(_ facts: Facts) -> Step? {
    guard facts.takesOutput, !facts.isNotifiedOfEnd else { return nil }
    switch facts.client {
    case nil: return .askClient
    case .isPending: return nil
    case .isOut(let canHalfClose):
      // A client that cannot be notified while it still sends, as on a pty, would wait for nothing.
      return canHalfClose ? .endOutput : .leave(.firstEnd)
    }
  }

  private static func stepDuringInput(_ facts: Facts) -> Step {
    if facts.inputHasEnded || facts.hasSentLastByte { return .watch(facts.drainLimit) }
    return facts.outputIsOver ? .watch(halfClosedLimit) : .nothing
  }

  /// The client has ended, and all its input is delivered.
  private static func stepAfterInput(_ facts: Facts) -> Step {
    if facts.inputHasFailed { return .end(.inputError) }
    if !facts.takesOutput { return .end(.clientLeft) }
    if facts.isShared { return stepWhileHalfClosed(facts) }
    guard facts.outputIsOver else { return stepBeforeAnswer(facts) }
    guard let client = facts.client else { return .askClient }
    return client == .isPending ? .watch(halfClosedLimit) : .end(.firstEnd)
  }

  /// Over TCP, shutdown(2) and close(2) of the client look the same. So a client of a shared link receives for a while
  /// after its FIN.
  private static func stepWhileHalfClosed(_ facts: Facts) -> Step {
    if facts.slotIsWanted { return .end(.clientLeft) }
    return facts.halfClose.map { .awaitSilence($0) } ?? .leave(.clientLeft)
  }

  /// The endpoint of a per-client link is notified of the client's end, and may take time to answer.
  private static func stepBeforeAnswer(_ facts: Facts) -> Step {
    if facts.isWatched { return .stopWatching }
    guard !facts.isEndPassedOn, facts.hasEndpoint else { return .nothing }
    switch facts.endpoint {
    case nil: return .askEndpoint
    case .isPending: return .nothing
    case .isOut(let canHalfClose): return canHalfClose ? .passEndOn : .leave(.clientLeft)
    }
  }

  // MARK: - Sessions that are being ended

  /// What happens to the input of a session that is being ended.
  enum LastInput: Equatable {
    /// It is read and delivered.
    case isRead
    /// Input read before is delivered; no more is read.
    case isKept
    case isDropped
  }

  static func lastInput(canReachEndpoint: Bool, isFlushed: Bool, mayWrite: Bool) -> LastInput {
    if !canReachEndpoint || isFlushed { return .isDropped }
    return mayWrite ? .isRead : .isKept
  }
}
