// Down: what the endpoint says is read into the hub's ring once, and each client has his cursor in it.

import ByteStreams

extension Hub {
  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    guard stream === endpoint else { return }
    switch event {
    case .hasBytesAvailable: readOutput()
    case .hasSpaceAvailable: serve()
    case .errorOccurred(let error): endpointFailed(error)
    case .endEncountered: endpointHungUp()
    case .openCompleted, .lastByteIsIn: break
    }
  }

  func readOutput() {
    guard let endpoint else { return }
    var reads = Pump.budget(capacity: policy.buffer)
    do {
      reading: while true {
        guard wantsMore(endpoint) else {
          pause(endpoint)
          break
        }
        guard reads > 0 else {
          endpoint.readerWaits = .readable
          if endpoint.holdsBytes { poller.again(endpoint) }
          break
        }
        reads -= 1
        guard let ring = borrowOrEndAll() else { return }
        let room = ring.room
        switch try ring.fill({ try endpoint.read(into: $0) }) {
        case .moved(let count):
          if count > 0 { distribute(ring) }
          guard endpoint === self.endpoint else { return }
          if count > 0 && count < room && !endpoint.holdsBytes {
            if wantsMore(endpoint) { endpoint.readerWaits = .readable } else { pause(endpoint) }
            break reading
          }
        case .blocked(let wish):
          endpoint.readerWaits = wish
          giveBack()
          if let writeFailure { gone(writeFailure) }
          return
        case .ended:
          giveBack()
          gone(writeFailure)
          return
        }
      }
      giveBack()
    } catch {
      giveBack()
      gone(error)
    }
  }

  private func gone(_ cause: (any Error)?) {
    endpoint?.readerWaits = []
    delegate.endpointIsGone(cause)
  }

  /// A write to the endpoint failed. What it said before is still read and delivered.
  func endpointFailed(_ cause: any Error) {
    guard let endpoint, writeFailure == nil else { return }
    endpoint.writerWaits = []
    for session in sessions { session.pump.sink = nil }
    writeFailure = cause
    if !isPaused { readOutput() }
  }

  /// After its end was read, the endpoint will not listen either.
  func endpointHungUp() {
    for session in sessions {
      session.pump.sink = nil
      leave(session, Ending(session.endedFirst ?? .endpointLeft))
    }
  }

  private func distribute(_ ring: RingBuffer) {
    var someoneIsDone = false
    for session in sessions where session.takesOutput && !session.isBlocked {
      session.take(from: ring)
      if !session.takesOutput || session.leaving != nil { someoneIsDone = true }
    }
    release()
    if someoneIsDone {
      for session in sessions where !session.takesOutput || session.leaving != nil { settle(session) }
    }
  }

  /// The client has space, or is new.
  func giveOutput(to session: Session) {
    if let ring, session.takesOutput {
      let wasOldest = session.cursor <= ring.oldest &+ UInt64(policy.backlog)
      session.take(from: ring)
      if wasOldest || !session.takesOutput { release() }
    } else if !session.client.holdsUnit {
      session.client.writerWaits = []  // it only waited for a unit to leave
    }
    if !session.takesOutput || session.leaving != nil || endpointHasEnded { settle(session) }
    if ring != nil { readOnIfRoom() }
  }

  func readOnIfRoom() {
    // After making room it reads first and waits second: a hang-up is told once only.
    if isPaused, let endpoint, wantsMore(endpoint) {
      endHoldUp()
      isPaused = false
      readOutput()
    } else {
      giveBack()
    }
  }

  /// Gives free what every client has, but for the backlog.
  func release() {
    guard let ring else { return }
    var slowest = ring.head
    if sessions.isEmpty && !policy.dropsUnheard && policy.backlog == 0 && !endpointHasEnded { return }
    for session in sessions where session.takesOutput { slowest = min(slowest, session.cursor) }
    let kept = ring.head &- min(ring.head, UInt64(policy.backlog))
    ring.release(upTo: max(ring.oldest, min(slowest, kept)))
  }

  /// Bytes that the slowest client has not taken.
  private func wantsMore(_ endpoint: any ByteStream) -> Bool {
    guard let ring else { return true }
    // Alone behind a blocked client: below half only, or each freed 4 KiB would cost a read.
    if sessions.count == 1, sessions[0].isBlocked {
      return Int(truncatingIfNeeded: head &- sessions[0].cursor) <= policy.buffer / 2
    }
    return ring.room >= (isPaused ? max(endpoint.largestUnit, policy.buffer / 16) : endpoint.largestUnit)
  }

  /// Nil when there is no memory for a ring: that ends the sessions, and reading until somebody comes.
  private func borrowOrEndAll() -> RingBuffer? {
    if let ring { return ring }
    do {
      let ring = try poller.rings.borrow(capacity: policy.buffer + policy.backlog, at: lastHead)
      self.ring = ring
      return ring
    } catch {
      isPaused = false  // or each that leaves would make the hub try again
      for session in sessions { end(session, Ending(.internal, error)) }
      if let endpoint { pause(endpoint) }
      return nil
    }
  }

  /// The link is closed because nobody needs it: what nobody heard is of no use to those who come to another one.
  func dropUnheard() {
    guard let ring, sessions.isEmpty else { return }
    ring.release(upTo: max(ring.oldest, ring.head &- min(ring.head, UInt64(policy.backlog))))
    giveBack()
  }

  func giveBack() {
    guard let ring, ring.isEmpty else { return }
    lastHead = ring.head
    poller.rings.giveBack(ring)
    self.ring = nil
  }
}
