// Up: the input of many clients goes to the endpoint in turns.

import ByteStreams

extension Hub {
  // Writers served per turn: more only makes the others on the lane wait.
  private static let serviceBudget = 64
  private static let service = 4096  // bytes a writer may put out before the next one's turn

  /// The client has bytes for the endpoint. He writes straight through only while nobody has kept input.
  func takeInput(of session: Session) {
    do {
      switch try session.pump.turn(mayWrite: waiting.isEmpty) {
      case .idle: break
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
    guard let endpoint, writeFailure == nil else { return }
    var services = Self.serviceBudget
    while let session = waiting.first, services > 0 {
      services -= 1
      do {
        let outcome = try session.pump.drain(limit: waiting.count == 1 ? .max : Self.service)
        if outcome == .keeps {
          if waiting.count > 1 { waiting.append(waiting.removeFirst()) }
          if session.pump.sinkIsBlocked { break }
        } else {
          waiting.removeFirst()
          session.isWaiting = false
          if outcome == .finished || session.leaving != nil { settle(session) }
        }
      } catch {
        pumpFailed(session, error)
        guard writeFailure == nil else { return }
      }
      // The last one who ends may close the link; the endpoint is somebody else's then.
      guard endpoint === self.endpoint else { return }
    }
    if waiting.isEmpty {
      endpoint.writerWaits = []
      // The end of a client that waited for a unit to leave.
      if !policy.isShared { for session in sessions where session.pump.sourceEnded { settle(session) } }
    } else if endpoint.writerWaits.isEmpty {
      endpoint.writerWaits = .writable
    }
  }

  /// Who keeps input is served when the endpoint has space.
  private func queue(_ session: Session) {
    guard session.pump.count > 0, !session.isWaiting else { return }
    session.isWaiting = true
    waiting.append(session)
  }

  private func pumpFailed(_ session: Session, _ fault: Pump.Fault) {
    switch fault.side {
    case .source:
      queue(session)
      clientFailed(session, fault.cause)
    case .sink:
      queue(session)
      endpointFailed(fault.cause)
    case .ourselves: end(session, Ending(.internal, fault.cause))
    }
  }

  /// The client's stream broke, or both its directions ended. What he sent before is still delivered.
  func clientFailed(_ session: Session, _ cause: (any Error)?) {
    session.inputError = cause
    session.stopOutput(at: head)
    session.pump.endSource()
    release()
    settle(session)
    readOnIfRoom()
  }
}
