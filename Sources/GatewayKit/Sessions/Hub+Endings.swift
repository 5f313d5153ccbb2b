// When a session is over: each direction's end, what is passed on of it, and how long the last bytes may take.

import ByteStreams

extension Hub {
  // How long one side of a link of one client may be silent after the other's end, and a slow client may keep its last bytes
  // waiting. On shared links `Policy.halfClose` says how long a client receives after its FIN.
  static let halfClosedLimit = Duration.seconds(30)
  // One who has left may have so much in his own kernel still (net.ipv4.tcp_wmem); one who is there could go on for ever.
  private static let mostLeftBehind: UInt64 = 4 << 20
  private static let lull = Duration.milliseconds(20)
  private static let endLook = Duration.seconds(1)

  /// Sends everybody away with `ending` once they have what is kept for them, and their input is delivered.
  func leaveAll(_ ending: Ending) {
    isDismissing = true
    for session in sessions { leave(session, ending) }
    isDismissing = false
  }

  func leave(_ session: Session, _ ending: Ending) {
    guard session.leaving == nil, !session.isOver else { return }
    session.leaving = ending
    session.leavingSince = poller.timers.now
    session.leavesAt = head
    session.screen?.letThrough()
    guard !session.isOver else { return }
    let isLost = !canReachEndpoint || policy.flushesBehindLast
    if isLost || !session.mayWrite { session.pump.endSource() }
    if isLost { session.dropped &+= UInt64(session.pump.discard()) }
    session.mostSent = session.pump.moved &+ UInt64(session.pump.count) &+ Self.mostLeftBehind
    if !session.pump.sourceEnded { takeInput(of: session) }
    guard !session.isOver else { return }
    // The beginning of a packet is all he will hear of it.
    if let cutter, let ring, session.takesOutput, !session.isBlocked {
      session.take(from: ring, upTo: limit(for: session, ring), by: cutter)
    }
    settle(session)
    // With packets, what is kept behind its last is no longer for it, and may have been all that filled the ring.
    guard isPaused, cutter != nil, !session.isOver else { return }
    release()
    poller.timers.after(.zero) { [weak self] in self?.readOnIfRoom() }
  }

  /// What one who leaves has sent is still read: till nothing came for a moment, as his machine can send what it keeps
  /// for him only once ours has room; or till it is more than that can be.
  private func endInputIfRead(_ session: Session) {
    let pump = session.pump
    let sent = pump.moved &+ UInt64(pump.count)
    guard !pump.sourceEnded, sent < session.mostSent else { return pump.endSource() }
    guard pump.sourceIsDry, !session.client.readerWaits.isEmpty, session.lull == nil else { return }
    session.lull = poller.timers.after(Self.lull) { [weak self, weak session] in
      guard let self, let session else { return }
      session.lull = nil
      if let screen = session.screen, screen.isUndecided {
        screen.letThrough()  // nobody waits for the rest of its line
      } else if pump.sourceIsDry && sent == pump.moved &+ UInt64(pump.count) {
        pump.endSource()
      }
      settle(session)
    }
  }

  /// Decides what follows from the state a session is in. Called after whatever may have changed it.
  func settle(_ session: Session) {
    guard !session.isOver else { return }
    if let fault = session.fault { return end(session, Ending(.internal, fault)) }
    if session.finishedAt == nil, session.pump.sourceEnded || session.hasSentLastByte {
      session.finishedAt = poller.timers.now
    }
    if session.pump.sourceEnded && session.pump.count == 0 { inputIsOver(session) }
    let heardAll =
      !session.takesOutput
      || session.cursor >= (session.leaving == nil ? head : session.leavesAt) && !session.hasRest
    if session.endedFirst == nil {
      session.endedFirst =
        session.pump.sourceEnded ? Ending(.clientLeft) : endpointHasEnded ? Ending(.endpointLeft, endpointSaid) : nil
    }
    if let ending = session.leaving {
      endInputIfRead(session)
      if heardAll && session.pump.sourceEnded && session.pump.count == 0 && !holdsLastUnit(session) {
        end(session, ending)
      } else {
        watch(session, heardAll || !isBorneWith(session) ? policy.drain : Self.halfClosedLimit)
      }
      return
    }
    if session.pump.sourceEnded || session.hasSentLastByte {
      flushIfAllHaveFinished()
      guard !session.isOver else { return }
    }
    let isComplete = endpointHasEnded && heardAll && session.pump.sourceEnded && session.pump.count == 0
    if endpointHasEnded && heardAll && !isComplete { tellEnd(to: session) }
    guard session.leaving == nil, !session.isOver else { return }
    // On a link of his own the client may be there still, waiting for an answer: his endpoint gets more time.
    let drainLimit = policy.isShared ? policy.drain : max(policy.drain, Self.halfClosedLimit)
    guard session.pump.sourceEnded else {
      if session.hasSentLastByte {
        watch(session, drainLimit)
      } else if endpointHasEnded && heardAll {
        watch(session, Self.halfClosedLimit)
      }
      return
    }
    guard session.pump.count == 0 else { return watch(session, drainLimit) }
    if let error = session.inputError { return end(session, Ending(brokenBy: error)) }
    guard session.takesOutput else { return end(session, Ending(.clientLeft)) }
    if policy.isShared { return settleHalfClosed(session) }
    if isComplete {
      guard !holdsLastUnit(session) else { return watch(session, Self.halfClosedLimit) }
      end(session, session.endedFirst ?? Ending(.clientLeft))
    } else {
      stopWatching(session)  // the endpoint may take its time for an answer
      passOnEnd(of: session)
    }
  }

  /// The input of a client of a shared link is over. TCP can't tell shutdown(2) from close(2): so it receives for a while
  /// after its FIN or the last byte that was sent to it. While output waits for it, it has 30 s: a socket that is closed
  /// would answer output with a reset.
  private func settleHalfClosed(_ session: Session) {
    guard !endsHalfClosed else { return end(session, Ending(.clientLeft)) }
    guard let limit = policy.halfClose else { return leave(session, Ending(.clientLeft)) }
    if session.receivedAt == nil { session.receivedAt = session.isGivenUp ? session.finishedAt : poller.timers.now }
    stopWatching(session)
    if let wait = session.halfCloseWait, wait.limit == limit { return }
    poller.timers.cancel(session.halfCloseWait?.timer)
    let timer = poller.timers.after(min(limit, patience(with: session, limit))) { [weak self, weak session] in
      guard let self, let session, !session.isOver, session.leaving == nil else { return }
      session.halfCloseWait = nil
      if patience(with: session, limit) > .zero { settle(session) } else { end(session, Ending(.clientLeft)) }
    }
    session.halfCloseWait = (limit, timer)
  }

  /// How much longer one that is half-closed may be sent nothing.
  private func patience(with session: Session, _ limit: Duration) -> Duration {
    let most = (session.isBlocked ? max(limit, Self.halfClosedLimit) : limit).nanoseconds
    let silence = poller.timers.now &- (session.receivedAt ?? 0)
    return .nanoseconds(Int64(clamping: silence < most ? most - silence : 0))
  }

  /// Its input waits, so nobody reads, and behind a closed window its machine keeps the FIN as well. Once nothing has moved for a
  /// second, this machine makes room, so that a client that closed is known as one.
  func lookForEnd(of session: Session) {
    guard policy.isShared, session.endLook == nil, !session.pump.sourceEnded, !session.hasSentLastByte else { return }
    let up = session.up
    // Held, not weakly, since the end of the session takes the timer back: what was held weakly once has a slower count of references, at
    // each byte.
    session.endLook = poller.timers.after(Self.endLook) { [self, session] in
      session.endLook = nil
      guard !session.isOver else { return }
      guard session.isWaiting else { return }
      if session.up == up { session.client.makeRoomForEnd() } else { lookForEnd(of: session) }
    }
  }

  /// Whether it is the policy to wait for a client who takes little: then also for his last bytes, as long as he takes any.
  private func isBorneWith(_ session: Session) -> Bool {
    policy.slow == .block || (policy.slow == .automatic && sessions.count == 1)
  }

  /// The client learns that no more will come, once his stream holds nothing.
  private func tellEnd(to session: Session) {
    guard session.takesOutput, !session.isToldEnd, !holdsLastUnit(session) else { return }
    session.isToldEnd = true
    // Who can't be told while he goes on writing, as on a pty, would wait for nothing.
    guard session.client.canHalfClose else {
      return leave(session, session.endedFirst ?? Ending(.endpointLeft, endpointSaid))
    }
    session.client.finishWriting()
  }

  /// An empty ring is not an empty stream. Asks to be called when the unit is out.
  private func holdsLastUnit(_ session: Session) -> Bool {
    guard session.takesOutput, session.client.holdsUnit else { return false }
    session.client.writerWaits = .writable
    return true
  }

  /// The client of a link of his own has finished: his endpoint learns of it where it can, once it holds nothing.
  private func passOnEnd(of session: Session) {
    guard !session.isEndPassedOn, let endpoint else { return }
    guard !endpoint.holdsUnit else { return endpoint.writerWaits = .writable }
    session.isEndPassedOn = true
    if endpoint.canHalfClose {
      endpoint.finishWriting()
    } else {
      leave(session, Ending(.clientLeft))
    }
  }

  func end(_ session: Session, _ ending: Ending) {
    guard !session.isOver else { return }
    session.isOver = true
    stopWatching(session)
    poller.timers.cancel(session.halfCloseWait?.timer)
    poller.timers.cancel(session.endLook)
    poller.timers.cancel(session.lull)
    remove(session)
    delegate.sessionIsOver(session, ending)
  }

  // MARK: - Patience

  /// Ends what the session is doing unless it makes progress within each `limit`.
  private func watch(_ session: Session, _ limit: Duration) {
    if session.deadline != nil && session.patience == limit { return }
    poller.timers.cancel(session.deadline)
    session.patience = limit
    session.progress = session.up &+ session.down
    // One who reads slowly makes room in large steps, many seconds apart, and acknowledges in between.
    session.unacknowledged = session.leaving == nil ? 0 : session.client.unacknowledged
    session.deadline = poller.timers.after(limit) { [weak self, weak session] in
      guard let self, let session, !session.isOver else { return }
      session.deadline = nil
      if session.progress != session.up &+ session.down || session.client.unacknowledged < session.unacknowledged {
        watch(session, limit)
      } else {
        lostPatience(with: session)
      }
    }
  }

  private func stopWatching(_ session: Session) {
    poller.timers.cancel(session.deadline)
    session.deadline = nil
  }

  private func lostPatience(with session: Session) {
    if let ending = session.leaving {
      end(session, ending)
    } else if session.pump.count > 0 && policy.isShared {
      session.dropped &+= UInt64(session.pump.discard())
      session.pump.endSource()  // what is unread is lost with it
      session.isGivenUp = true
      settle(session)
    } else {
      end(session, session.endedFirst ?? Ending(.clientLeft))
    }
  }
}
