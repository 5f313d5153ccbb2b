// When sessions are over. Carries out what `Settlement` decides: passes ends on, waits, ends sessions.

import ByteStreams

extension Hub {
  private static let quietTimer = Duration.milliseconds(20)
  private static let endLook = Duration.seconds(1)

  /// Ends all sessions with `ending` once their clients have received what is kept for them, and their input is
  /// delivered.
  func leaveAll(_ ending: Ending) {
    upstream.withoutHeir { for session in sessions { leave(session, ending) } }
  }

  func leave(_ session: Session, _ ending: Ending) {
    guard session.leaving == nil, !session.isOver else { return }
    session.ending.leave(ending, at: poller.timers.now, upTo: head)
    session.requestGuard?.forwardHeld()
    guard !session.isOver else { return }
    let input = Settlement.lastInput(
      canReachEndpoint: upstream.canReachEndpoint, isFlushed: policy.flushesAfterLast, mayWrite: session.up.mayWrite)
    if input != .isRead { session.pump.endSource() }
    if input == .isDropped { session.countDropped(UInt64(session.pump.discard())) }
    session.ending.limitInput(after: session.pump.moved &+ UInt64(session.pump.count))
    if !session.pump.sourceEnded { upstream.takeInput(of: session) }
    guard !session.isOver else { return }
    downstream.giveBeginning(to: session)
    evaluate(session)
    if !session.isOver { downstream.freeWhatFollows() }
  }

  /// Carries out the steps that follow from the state of a session. Call it after any change of that state.
  func evaluate(_ session: Session) {
    guard !session.isOver else { return }
    if session.ending.fault == nil { noteEnds(of: session) }
    guard !session.isOver else { return }
    var facts = facts(of: session)
    while follow(Settlement.step(facts), of: session, &facts) {}
  }

  private func noteEnds(of session: Session) {
    let inputHasEnded = session.pump.sourceEnded
    let isFinished = inputHasEnded || session.ending.hasSentLastByte
    if isFinished && session.ending.finishedAt == nil { session.ending.inputFinished(at: poller.timers.now) }
    if inputHasEnded && session.pump.count == 0 { upstream.inputIsOver(session) }
    if session.ending.first == nil && (inputHasEnded || endpointHasEnded) {
      session.ending.ended(first: inputHasEnded ? Ending(.clientLeft) : Ending(.endpointLeft, endpointReason))
    }
    if isFinished && session.leaving == nil { flushIfAllHaveFinished() }
  }

  /// With `flushesAfterLast`: once all clients have finished sending, drops input that the endpoint has not taken.
  private func flushIfAllHaveFinished() {
    guard policy.flushesAfterLast, sessions.allSatisfy({ $0.pump.sourceEnded || $0.ending.hasSentLastByte }) else {
      return
    }
    let left = sessions.filter { !$0.up.isFlushed }
    guard !left.isEmpty else { return }
    for session in left {
      session.up.flushed()
      upstream.dropKept(of: session)
    }
    delegate.allClientsFinished()
    for session in left where session.pump.sourceEnded { evaluate(session) }
  }

  private func facts(of session: Session) -> Settlement.Facts {
    var facts = Settlement.Facts()
    let (pump, isLeaving) = (session.pump, session.isLeaving)
    facts.isBroken = session.ending.fault != nil
    facts.isLeaving = isLeaving
    facts.inputHasEnded = pump.sourceEnded
    facts.keepsInput = pump.count > 0
    facts.hasSentLastByte = session.ending.hasSentLastByte
    facts.inputHasFailed = session.ending.inputError != nil
    facts.isEndPassedOn = session.ending.isPassedOn
    facts.takesOutput = session.down.takesOutput
    facts.hasAllOutput = session.down.hasAll(upTo: isLeaving ? session.ending.leavesAt : head)
    facts.isNotifiedOfEnd = session.ending.isNotifiedOfEnd
    facts.isShared = policy.isShared
    facts.hasEndpoint = endpoint != nil
    facts.endpointHasEnded = endpointHasEnded
    facts.slotIsWanted = endsHalfClosed
    facts.isWatched = session.ending.deadline != nil
    facts.drain = policy.drain
    facts.halfClose = policy.halfClose
    guard isLeaving else { return facts }
    let isAlone = !sessions.contains { $0 !== session && !$0.accepted.yields }
    facts.mayBeSlow = policy.slow == .block || (policy.slow == .automatic && isAlone)
    facts.hasSentTooMuch = pump.moved &+ UInt64(pump.count) >= session.ending.mostSent
    facts.inputMayBeOver =
      !session.ending.awaitsQuiet && pump.sourceIsDry && !session.client.readerWaits.isEmpty
    return facts
  }

  /// Carries out a step. Returns whether another may follow; `facts` are new then.
  private func follow(_ step: Settlement.Step, of session: Session, _ facts: inout Settlement.Facts) -> Bool {
    switch step {
    case .askClient:
      facts.client = output(of: session.client)
      return true
    case .askEndpoint:
      facts.endpoint = endpoint.map { output(of: $0) }
      return true
    case .endInput: session.pump.endSource()
    case .awaitQuiet: awaitQuiet(session)
    case .endOutput:
      session.ending.isNotified()
      session.client.finishWriting()
    case .passEndOn:
      session.ending.endPassesOn()
      endpoint?.finishWriting()
    case .stopWatching: session.ending.stopWatching(poller.timers)
    case .giveUpInput: giveUpInput(of: session)
    default:
      finish(step, of: session)
      return false
    }
    guard !session.isOver else { return false }
    facts = self.facts(of: session)
    return true
  }

  /// The last step for now.
  private func finish(_ step: Settlement.Step, of session: Session) {
    switch step {
    case .watch(let limit): watch(session, limit)
    case .awaitSilence(let limit): awaitSilence(session, limit)
    case .leave(let reason): leave(session, ending(of: session, reason))
    case .end(let reason): end(session, ending(of: session, reason))
    default: break
    }
  }

  private func ending(of session: Session, _ reason: Settlement.Reason) -> Ending {
    let ending: Ending? =
      switch reason {
      case .fault: Ending(.internal, session.ending.fault)
      case .dismissal: session.ending.leaving
      case .inputError: session.ending.inputError.map { Ending(brokenBy: $0) }
      case .firstEnd: session.ending.first
      case .clientLeft: nil
      }
    return ending ?? Ending(.clientLeft)
  }

  /// If the stream holds a unit, asks for an event when it is out.
  private func output(of stream: any ByteStream) -> Settlement.Output {
    guard stream.hasPendingOutput else { return .isOut(canHalfClose: stream.closeBehavior.canHalfClose) }
    stream.writerWaits = .writable
    return .isPending
  }

  private func awaitQuiet(_ session: Session) {
    let pump = session.pump
    let sent = pump.moved &+ UInt64(pump.count)
    let timer = poller.timers.after(Self.quietTimer) { [self, session] in
      session.ending.quietIsOver()
      if let requestGuard = session.requestGuard, requestGuard.isUndecided {
        requestGuard.forwardHeld()  // the session no longer waits for the rest of the request line
      } else if pump.sourceIsDry && sent == pump.moved &+ UInt64(pump.count) {
        pump.endSource()
      }
      evaluate(session)
    }
    session.ending.awaitQuiet(until: timer)
  }

  private func giveUpInput(of session: Session) {
    session.countDropped(UInt64(session.pump.discard()))
    session.pump.endSource()  // unread input is lost, too
    session.ending.inputWasGivenUp()
    upstream.inputIsDropped()
  }

  func end(_ session: Session, _ ending: Ending) {
    guard !session.isOver else { return }
    session.ending.end(poller.timers)
    remove(session)
    delegate.sessionIsOver(session, ending)
  }

  /// The client's stream broke, or both its directions ended. Input that was read before is still delivered.
  func clientFailed(_ session: Session, _ cause: (any Error)?) {
    session.ending.inputFailed(cause, cutsInput: !session.pump.sourceEnded)
    downstream.stop(session)
    session.pump.endSource()
    evaluate(session)
    downstream.readOnIfRoom()
  }

  // MARK: - Waiting
  // The timers hold hub and session strongly: the end of the session cancels them. An object that was once held weakly
  // counts references more slowly, which costs time at each byte.

  /// Sets a deadline: the session has to make progress within each `limit`.
  private func watch(_ session: Session, _ limit: Duration) {
    if let deadline = session.ending.deadline, deadline.limit == limit { return }
    let timer = poller.timers.after(limit) { [self, session] in
      if !session.isOver { deadlineHasCome(for: session) }
    }
    let deadline = SessionEnding.Deadline(
      limit: limit, timer: timer, progress: session.up.bytes &+ session.down.bytes,
      // A client that reads slowly makes room in large steps, many seconds apart, and acknowledges in between.
      unacknowledged: session.leaving == nil ? 0 : session.client.undelivered.onItsWay)
    session.ending.watch(until: deadline, poller.timers)
  }

  private func deadlineHasCome(for session: Session) {
    guard let deadline = session.ending.deadlineHasCome() else { return }
    if deadline.progress != session.up.bytes &+ session.down.bytes
      || session.client.undelivered.onItsWay < deadline.unacknowledged
    {
      return watch(session, deadline.limit)
    }
    var facts = facts(of: session)
    if follow(Settlement.stepWithoutProgress(facts), of: session, &facts) { evaluate(session) }
  }

  /// Ends the session once its half-closed client was sent nothing for `limit`. While output waits for the client it
  /// has 30 s: a closed socket would answer output with a reset.
  private func awaitSilence(_ session: Session, _ limit: Duration) {
    session.ending.becomesHalfClosed(at: poller.timers.now)
    session.ending.stopWatching(poller.timers)
    if let wait = session.ending.halfClose, wait.limit == limit { return }
    let timer = poller.timers.after(min(limit, timeout(with: session, limit))) { [self, session] in
      guard !session.isOver, session.leaving == nil else { return }
      session.ending.silenceIsOver()
      if timeout(with: session, limit) > .zero { return evaluate(session) }
      // It sent a command and its FIN, and what it may wait for comes later than `half-close` allows.
      let isUnanswered =
        session.up.bytes > 0 && session.down.bytes == 0 && !session.isBlocked && !session.ending.isGivenUp
      end(session, Ending(isUnanswered ? .noAnswer : .clientLeft, isUnanswered ? NoAnswer(limit: limit) : nil))
    }
    session.ending.awaitSilence(of: limit, until: timer, poller.timers)
  }

  private func timeout(with session: Session, _ limit: Duration) -> Duration {
    let most = session.isBlocked ? max(limit, Settlement.halfClosedLimit) : limit
    return session.ending.timeout(most, at: poller.timers.now)
  }

  /// The session's input waits, so its client is not read. If the TCP window is closed, the client's machine keeps the
  /// FIN as well. After a second without progress, the stream makes room so that the FIN can arrive.
  func lookForEnd(of session: Session) {
    guard policy.isShared, !session.ending.looksForEnd, !session.pump.sourceEnded, !session.ending.hasSentLastByte
    else { return }
    let up = session.up.bytes
    let timer = poller.timers.after(Self.endLook) { [self, session] in
      session.ending.endLookIsDue()
      guard !session.isOver else { return }
      guard session.up.isWaiting else { return }
      if session.up.bytes == up { session.client.makeRoomForEnd() } else { lookForEnd(of: session) }
    }
    session.ending.lookForEnd(at: timer)
  }
}
