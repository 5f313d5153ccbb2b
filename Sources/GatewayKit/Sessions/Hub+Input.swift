// Up: the input of many clients goes to the endpoint in turns. Who may write is decided in Hub+Pen.swift.

import ByteStreams

extension Hub {
  // Writers served per turn: more only makes the others on the lane wait.
  private static let serviceBudget = 64
  private static let service = 4096  // bytes a writer may put out before the next one's turn

  /// The client has bytes for the endpoint. He writes straight through only while nobody has kept input.
  func takeInput(of session: Session) {
    takeBytes(of: session)
    if let desk = session.desk { takeTexts(of: session, desk) }
  }

  /// Reads from the client again where reading was paused.
  func readOn(_ session: Session) {
    guard !session.pump.sourceEnded, session.client.readerWaits.isEmpty else { return }
    session.client.readerWaits = .readable
    if session.client.holdsBytes { poller.again(session.client) }  // no event reports what is inside the stream
  }

  private func takeBytes(of session: Session) {
    if dropsInput || session.isFlushed { return drainAway(session) }
    guard session.mayWrite else { return dropInput(of: session) }
    if notesPenUse { penUsedAt = poller.timers.now }
    if let packetLine { return takePackets(of: session, packetLine) }
    takeInput(of: session, mayWrite: waiting.isEmpty && session.desk?.room(behind: session.pump.moved) ?? .max == .max)
  }

  /// One whose packet is begun may write though others wait, to its end.
  private func takePackets(of session: Session, _ line: PacketLine) {
    line.allowance = 0
    let isMarked = session.desk.map { $0.room(behind: session.pump.moved) < .max } ?? false
    takeInput(of: session, mayWrite: !isMarked && (waiting.isEmpty || line.speaker === session))
    guard !waiting.isEmpty, let endpoint else { return }
    if let speaker = line.speaker {
      if !speaker.isWaiting { line.watchSilence(in: self) }
    } else if endpoint.writerWaits.isEmpty {
      serve()
    }
  }

  private func takeInput(of session: Session, mayWrite: Bool) {
    do {
      switch try session.pump.turn(mayWrite: mayWrite) {
      case .idle: if session.leaving != nil { settle(session) }
      case .keeps:
        queue(session)
        if session.pump.sourceEnded { settle(session) }
      case .finished: settle(session)
      }
    } catch {
      pumpFailed(session, error)
    }
  }

  /// The endpoint has space: those who wait, in their order.
  func serve() {
    guard let endpoint, writeFailure == nil, holds == 0, preface.isEmpty || saysPreface(to: endpoint) else { return }
    var services = Self.serviceBudget
    while let session = waiting.first, services > 0, !waitsForSpeaker {
      services -= 1
      do {
        let before = session.pump.moved
        let room = session.desk?.room(behind: session.pump.moved) ?? .max
        let outcome = try session.pump.drain(limit: min(portion(), room))
        if let desk = session.desk { carryOut(of: session, desk) }
        if outcome == .keeps {
          let isBlocked = session.pump.sinkIsBlocked && session.gate?.isShut != true
          // Who got nothing out keeps his turn. With one writer those before him in the line had the pen before him.
          let hadTurn = session.pump.moved != before && policy.writers != .one && !isSpeaker(session)
          if hadTurn, waiting.first === session { waiting.append(waiting.removeFirst()) }
          if isBlocked { break }
        } else {
          leavesWaiting(session)
          if notesPenUse && session === pen { penUsedAt = poller.timers.now }
          if !session.mayWrite { packetLine?.isOver(session, in: self) }
          if outcome == .finished || session.leaving != nil { settle(session) }
        }
      } catch {
        pumpFailed(session, error)
        guard writeFailure == nil else { return }
      }
      // The last one who ends may close the link; the endpoint is somebody else's then.
      guard endpoint === self.endpoint, holds == 0 else { return }
    }
    if waitsForSpeaker {
      endpoint.writerWaits = []
      if !waiting.isEmpty { packetLine?.watchSilence(in: self) }
    } else if waiting.isEmpty {
      endpoint.writerWaits = []
      // The end of a client that waited for a unit to leave.
      if !policy.isShared { for session in sessions where session.pump.sourceEnded { settle(session) } }
    } else if endpoint.writerWaits.isEmpty {
      endpoint.writerWaits = .writable
    }
  }

  /// It is the first one, unless what it asked for at its desk has ended others.
  private func leavesWaiting(_ session: Session) {
    if waiting.first === session { waiting.removeFirst() } else { waiting.removeAll { $0 === session } }
    session.isWaiting = false
  }

  /// How much of the first one's input may go out in one go. With packets his gate counts it.
  private func portion() -> Int {
    let portion = waiting.count == 1 || policy.writers == .one ? Int.max : Self.service
    packetLine?.allowance = portion
    return packetLine == nil ? portion : .max
  }

  /// Somebody's packet is begun, and nothing of the rest of it is there.
  private var waitsForSpeaker: Bool {
    guard let speaker = packetLine?.speaker else { return false }
    return !speaker.isWaiting
  }

  private func isSpeaker(_ session: Session) -> Bool {
    guard let speaker = packetLine?.speaker else { return false }
    return speaker === session
  }

  /// Who keeps input is served when the endpoint has space. One whose packet is begun comes first.
  func queue(_ session: Session) {
    guard session.pump.count > 0, !session.isWaiting else { return }
    session.isWaiting = true
    lookForEnd(of: session)
    waiting.insert(session, at: isSpeaker(session) ? 0 : waiting.count)
  }

  func pumpFailed(_ session: Session, _ fault: Pump.Fault) {
    switch fault.side {
    case .source where fault.cause is HTTPRequestFault:
      // Nothing of it has been forwarded.
      end(session, Ending(.denied, fault.cause))
    case .source:
      queue(session)
      clientFailed(session, fault.cause)
    case .sink:
      queue(session)
      if session.client.holdsBytes { poller.again(session.client) }  // the turn has not read all that is inside
      endpointFailed(fault.cause)
    case .ourselves: end(session, Ending(.internal, fault.cause))
    }
  }

  /// The client's stream broke, or both its directions ended. What he sent before is still delivered.
  func clientFailed(_ session: Session, _ cause: (any Error)?) {
    session.inputError = session.inputError ?? cause
    if !session.pump.sourceEnded { session.isInputCut = true }
    session.stopOutput(at: head)
    session.pump.endSource()
    release()
    settle(session)
    readOnIfRoom()
  }
}
