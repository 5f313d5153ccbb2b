// Which client may write: applies the writer role to the clients' input. Input of clients without the right to write is
// read, dropped and counted. So these clients delay no other, and their ends are seen.

import ByteStreams

extension Upstream {
  /// A reload has changed the policy. Input that was read and kept is delivered, whichever client may write now.
  func writersChanged() {
    lineControl?.update(writers: role.writers)
    if role.writers != .one && writer != nil { moveRole(to: nil) }
    if role.writers == .one && writer == nil {
      for session in delegate.sessions where session.up.mayWrite { takeRight(from: session) }
      moveRole(to: role.heir(among: delegate.sessions))
    }
    guard role.writers != .one else { return roleIsUsed() }
    for session in delegate.sessions {
      if role.writers == .all && session.accepted.role == .writer {
        session.up.gainsRight()
      } else if session.up.mayWrite {
        takeRight(from: session)
      }
    }
  }

  /// With `takeover: idle`, a client without the right to write may get the writer role by sending. These bytes are
  /// then the first that it writes.
  func takeInputWithoutRight(of session: Session) {
    do throws(Pump.Fault) {
      guard role.mayTake(session, at: poller.timers.now) else { return try drop(inputOf: session) }
      let before = session.pump.count
      var fault: Pump.Fault?
      do throws(Pump.Fault) { _ = try session.pump.turn(mayWrite: false) } catch { fault = error }
      guard session.pump.count > before else {
        if let fault { throw fault }
        // There is no room, because older input waits. So drop these bytes: read later, they would be written although
        // the client has no writer role.
        if !session.pump.sourceEnded && session.client.readerWaits.isEmpty { try session.readAndDiscard() }
        if session.pump.sourceEnded { delegate.evaluate(session) }
        return
      }
      moveRole(to: session)
      queue.add(session)
      serve()
      guard !session.isOver else { return }
      if let fault { throw fault }
      if session.pump.sourceEnded { delegate.evaluate(session) }
    } catch {
      pumpFailed(session, error)
    }
  }

  private func drop(inputOf session: Session) throws(Pump.Fault) {
    try session.readAndDiscard()
    if session.pump.sourceEnded { delegate.evaluate(session) }
  }

  /// The client requests the writer role, or returns it. Returns the reason for a refusal; nil when it is done.
  func follow(_ wish: ControlChannelRequest.WriterWish, of session: Session) -> String? {
    guard role.writers == .one else { return noRole }
    switch wish {
    case .take:
      if let refusal = role.refusal(toTake: session, at: poller.timers.now) { return refusal }
      if writer !== session { moveRole(to: session) }
    case .leave:
      guard writer === session else { return "you don't have the writer role" }
      moveRole(to: role.heir(among: delegate.sessions))
    }
    return nil
  }

  /// An administrator gives the role to a session, or takes it from the one that has it. Returns the reason for a refusal.
  func giveRole(to number: UInt64?) -> String? {
    guard role.writers == .one else { return noRole }
    guard let number else {
      moveRole(to: nil)
      return nil
    }
    guard let session = delegate.sessions.first(where: { $0.number == number }) else {
      return "there is no session \(number)"
    }
    guard session.accepted.role == .writer else { return "session \(number) is a monitor, which may only read" }
    guard !session.pump.sourceEnded, !session.isLeaving else { return "session \(number) is ending" }
    if writer !== session { moveRole(to: session) }
    return nil
  }

  private var noRole: String { "this route has no writer role; 'clients.writers' is \(role.writers.rawValue)" }

  func reportStatus(to session: Session) {
    guard let controlChannel = session.controlChannel, role.writers == .one else { return }
    controlChannel.report(.writer(holder: writer?.number, isMine: writer === session))
  }
}
