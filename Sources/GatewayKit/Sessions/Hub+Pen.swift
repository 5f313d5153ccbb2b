// Who may send to the endpoint. With `writers: one` the pen is with one client; what others send is read, dropped and
// counted, and so is what monitors send, ever. They hold up nobody, and their ends are seen.

import ByteStreams

extension Hub {
  /// He is in the list. With one writer he gets the pen if it is free, or if it is for the newest.
  func letWrite(newcomer session: Session) {
    guard session.arrival.role == .writer else { return }
    switch policy.writers {
    case .all: session.mayWrite = true
    case .one: if pen == nil || policy.takeover == .newest { movePen(to: session) }
    case .none: break
    }
  }

  /// A reload says something else of writers. What was read and kept is delivered, whoever may write now.
  func changeWriters() {
    if policy.writers != .all { lineHolder = nil }  // from now on the pen says who may set it
    if policy.writers != .one && pen != nil { movePen(to: nil) }
    if policy.writers == .one && pen == nil {
      for session in sessions where session.mayWrite { takeRight(from: session) }
      movePen(to: longestPresentWriter)
    }
    guard policy.writers != .one else { return penUsedAt = poller.timers.now }
    for session in sessions {
      if policy.writers == .all && session.arrival.role == .writer {
        session.mayWrite = true
      } else if session.mayWrite {
        takeRight(from: session)
      }
    }
  }

  /// All that he will ever send is delivered or given up: his pen is free, and his packet is at its end.
  func inputIsOver(_ session: Session) {
    if session === pen { movePen(to: longestPresentWriter) }
    packetLine?.isOver(session, in: self)
  }

  var longestPresentWriter: Session? {
    guard !isDismissing else { return nil }
    return sessions.filter { $0.arrival.role == .writer && !$0.pump.sourceEnded && $0.leaving == nil && $0 !== pen }
      .min { $0.number < $1.number }
  }

  func movePen(to session: Session?) {
    let old = pen
    if let old { takeRight(from: old) }
    pen = session
    session?.mayWrite = true
    penUsedAt = poller.timers.now
    guard old !== session else { return }
    delegate.writerChanged(from: old, to: session)
    for session in sessions { tellPen(to: session) }
  }

  /// What he has sent so far, as much as is read, goes out before anybody else's; the rest is not read to be kept.
  private func takeRight(from session: Session) {
    session.mayWrite = false
    endBreak(of: session)
    guard !session.isOver else { return }
    readOn(session)
    if session.pump.count == 0 { packetLine?.isOver(session, in: self) }
  }

  // MARK: - Those without

  /// The bytes of one who may not write. With `takeover: idle` they may get him the pen, and are the first he writes.
  func dropInput(of session: Session) {
    do throws(Pump.Fault) {
      if mayTakePen(session) {
        let before = session.pump.count
        var fault: Pump.Fault?
        do throws(Pump.Fault) { _ = try session.pump.turn(mayWrite: false) } catch { fault = error }
        guard session.pump.count > before else {
          if let fault { throw fault }
          // No room, for what it has sent before waits: reading on once that is out would write without the pen.
          if !session.pump.sourceEnded && session.client.readerWaits.isEmpty { try skim(session) }
          return hasNoInput(session)
        }
        movePen(to: session)
        queue(session)
        serve()
        guard !session.isOver else { return }
        if let fault { throw fault }
        if session.pump.sourceEnded { settle(session) }
      } else {
        try skim(session)
        hasNoInput(session)
      }
    } catch {
      pumpFailed(session, error)
    }
  }

  private func hasNoInput(_ session: Session) {
    if session.pump.sourceEnded { settle(session) }
  }

  /// The holder has sent nothing for so long, and nothing of his is on its way.
  func mayTakePen(_ session: Session) -> Bool {
    guard notesPenUse, case .idle(let pause) = policy.takeover, session.arrival.role == .writer else { return false }
    guard let pen else { return true }
    return pen.pump.count == 0 && poller.timers.now &- penUsedAt >= pause.nanoseconds
  }
}

extension Hub.Policy {
  /// Whether it matters when the pen was used last.
  var takesIdlePen: Bool {
    if case .idle = takeover { writers == .one } else { false }
  }
}
