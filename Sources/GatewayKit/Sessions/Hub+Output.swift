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

  // MARK: - Reading

  func readOutput() {
    guard let endpoint else { return }
    var reads = Pump.budget(capacity: policy.buffer)
    do {
      reading: while true {
        guard wantsMore(endpoint) || makesRoom(for: endpoint) else {
          if endpoint === self.endpoint { pause(endpoint) }
          break
        }
        guard reads > 0 else {
          awaitOutput(of: endpoint)
          break
        }
        reads -= 1
        guard let ring = borrowOrEndAll() else { return }
        let room = ring.room
        switch try ring.fill({ try endpoint.read(into: $0) }) {
        case .moved(let count):
          if count > 0 { try distribute(ring) }
          guard endpoint === self.endpoint else { return }
          if count > 0 && count < room && !endpoint.holdsBytes && writeFailure == nil {
            if wantsMore(endpoint) || makesRoom(for: endpoint) {
              endpoint.readerWaits = .readable
            } else if endpoint === self.endpoint {
              pause(endpoint)
            }
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
    } catch let fault as InternalFault {
      isBroken(fault)
    } catch {
      giveBack()
      gone(error)
    }
  }

  /// No event tells of bytes inside a stream. Nor of the end of one that can't be written to: that is gone as soon as a read finds
  /// nothing, so there has to be a read.
  private func awaitOutput(of endpoint: any ByteStream) {
    endpoint.readerWaits = .readable
    if endpoint.holdsBytes || writeFailure != nil { poller.again(endpoint) }
  }

  private func gone(_ cause: (any Error)?) {
    let endpoint = endpoint
    endpoint?.readerWaits = []
    endPacket()
    if endpoint === self.endpoint { delegate.endpointIsGone(cause) }  // nobody may be left to need it
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
    endpointIsDeaf = true
    for session in sessions {
      session.pump.sink = nil
      leave(session, session.endedFirst ?? Ending(.endpointLeft, endpointSaid))
    }
  }

  func readOnIfRoom() {
    // After making room it reads first and waits second: a hang-up is told once only.
    if isPaused, let endpoint, wantsMore(endpoint) || makesRoom(for: endpoint) {
      endHoldUp()
      isPaused = false
      readOutput()
      watchPacket()
    } else {
      giveBack()
    }
  }

  /// Bytes that the slowest client has not taken.
  private func wantsMore(_ endpoint: any ByteStream) -> Bool {
    guard let ring, !ring.isEmpty else { return true }
    // Alone behind a blocked client: below half only, or each freed 4 KiB would cost a read.
    if sessions.count == 1, sessions[0].isBlocked, policy.slow != .dropOldest {
      return Int(truncatingIfNeeded: head &- sessions[0].cursor) <= ringSizes.buffer / 2
        && ring.room >= endpoint.largestUnit
    }
    return ring.room >= (isPaused ? max(endpoint.largestUnit, ringSizes.buffer / 16) : endpoint.largestUnit)
  }

  /// The ring is full. Whether that can be helped at once: by dropping what is kept for those who are known to be slow, or
  /// by ending a packet that is too long for it.
  private func makesRoom(for endpoint: any ByteStream) -> Bool {
    guard let ring, policy.slow == .dropOldest || cutter != nil else { return false }
    var isHelped = false
    for session in sessions where session.isBehind && session.takesOutput {
      dropOldest(of: session, in: ring)
      isHelped = true
    }
    if isHelped { release() }
    if let cutter, slowest >= cutter.end {  // nobody has anything to take, so waiting would help nobody
      if ring.room < endpoint.largestUnit { endPacket() }
      isHelped = true
    }
    return isHelped && endpoint === self.endpoint && (self.ring?.room ?? policy.buffer) >= endpoint.largestUnit
  }

  // MARK: - Giving

  func distribute(_ ring: RingBuffer) throws(InternalFault) {
    if let cutter { try cut(ring, by: cutter) }
    var someoneIsDone = false
    for session in sessions where session.takesOutput && !session.isBlocked {
      session.take(from: ring, upTo: limit(for: session, ring), by: cutter)
      if !session.takesOutput || session.leaving != nil { someoneIsDone = true }
    }
    release()
    if someoneIsDone {
      for session in sessions where !session.takesOutput || session.leaving != nil { settle(session) }
    }
  }

  /// The client has space, or is new.
  func giveOutput(to session: Session) {
    if session.hasRest {
      guard session.sendRest(head: head) else { return }
      if !session.takesOutput { release() }
    }
    if let ring, session.takesOutput {
      let wasOldest = session.cursor <= ring.oldest &+ UInt64(ringSizes.backlog)
      session.take(from: ring, upTo: limit(for: session, ring), by: cutter)
      if session.isBehind && !session.isBlocked { session.isBehind = false }
      if wasOldest || !session.takesOutput { release() }
    } else if !session.client.holdsUnit {
      session.client.writerWaits = []  // it only waited for a unit to leave
    }
    if !session.takesOutput || session.leaving != nil || endpointHasEnded { settle(session) }
    if ring != nil { readOnIfRoom() }
  }

  /// What is for him: all that is there, or with packets those that are complete. One who leaves does not wait for the rest.
  func limit(for session: Session, _ ring: RingBuffer) -> UInt64 {
    guard let cutter else { return ring.head }
    if session.leaving == nil { return cutter.end }
    // What comes behind the beginning of a packet that it was given would not be the rest of it.
    return session.cursor < session.leavesAt ? max(cutter.end, session.leavesAt) : session.cursor
  }

  // MARK: - The ring

  /// Where the one stands who has got least; with packets, nobody has a part of one that is not complete.
  private var slowest: UInt64 {
    var slowest = cutter?.end ?? head
    // Without packets one that lacks nothing stands at the head.
    for session in sessions where session.takesOutput && (cutter == nil || lacksOutput(session)) {
      slowest = min(slowest, session.cursor)
    }
    return slowest
  }

  /// Whether something is in the ring that the client is still to get.
  func lacksOutput(_ session: Session) -> Bool {
    guard let ring, session.takesOutput else { return false }
    return session.cursor < limit(for: session, ring)
  }

  /// Nobody is there, and what is said meanwhile is for the first to come.
  private var keepsUnheard: Bool {
    sessions.isEmpty && !policy.dropsUnheard && ringSizes.backlog == 0 && !endpointHasEnded
  }

  /// Gives free what every client has, but for the backlog.
  func release() {
    guard let ring, !keepsUnheard else { return }
    free(upTo: slowest, in: ring)
  }

  private func free(upTo position: UInt64, in ring: RingBuffer) {
    let kept = ring.head &- min(ring.head, UInt64(ringSizes.backlog))
    do { try ring.release(upTo: max(ring.oldest, min(position, kept))) } catch { return isBroken(error) }
    cutter?.forget(before: ring.oldest)
  }

  /// Nil when there is no memory for a ring: that ends the sessions, and reading until somebody comes.
  private func borrowOrEndAll() -> RingBuffer? {
    if let ring { return ring }
    do {
      let ring = try poller.rings.borrow(capacity: policy.buffer + policy.backlog, at: lastHead)
      ringSizes = (policy.buffer, policy.backlog)
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
    guard sessions.isEmpty else { return }
    endPacket()  // a beginning that is dropped makes no packet with what comes next
    guard let ring else { return }
    free(upTo: ring.head, in: ring)
    giveBack()
    guard isPaused, let endpoint else { return }
    endHoldUp()
    isPaused = false
    awaitOutput(of: endpoint)
  }

  /// What the hub keeps for all does not fit together, by a mistake of ours. Its sessions end as `internal`, the link is lost as if
  /// it had broken, and both begin anew with nothing kept.
  func isBroken(_ fault: InternalFault) {
    if let ring {
      lastHead = ring.head
      ring.clear()
      poller.rings.giveBack(ring)
      self.ring = nil
    }
    poller.timers.cancel(packetTimer)
    packetTimer = nil
    packetLine?.end()
    (cutter, packetLine) = (nil, nil)
    startPackets()
    isPaused = false  // or each that ends would make the hub read on
    isDismissing = true
    for session in sessions { end(session, Ending(.internal, fault)) }
    isDismissing = false
    if endpoint != nil { delegate.endpointIsGone(fault) }
  }

  func giveBack() {
    guard let ring else { return }
    guard ring.isEmpty else { return changeRing() }
    lastHead = ring.head
    poller.rings.giveBack(ring)
    self.ring = nil
  }

  /// After a reload: moves what is kept to a ring of the policy's sizes, if it fits there.
  func changeRing() {
    guard ringSizes != (policy.buffer, policy.backlog) else { return }
    guard let ring else { return ringSizes = (policy.buffer, policy.backlog) }
    let kept = ring.head &- min(ring.head, UInt64(policy.backlog))
    let oldest = keepsUnheard ? ring.oldest : max(ring.oldest, min(slowest, kept))
    let capacity = policy.buffer + policy.backlog
    // No memory for it? The old one does as well.
    guard ring.head &- oldest <= UInt64(capacity),
      let other = try? poller.rings.borrow(capacity: capacity, at: oldest)
    else { return }
    do {
      try ring.look(from: oldest) { bytes in
        guard !bytes.isEmpty else { return }
        _ = try other.fill {
          $0.copyMemory(from: bytes)
          return .moved(bytes.count)
        }
      }
    } catch {
      poller.rings.giveBack(other)  // what the old one keeps stays there
      return
    }
    ring.clear()
    poller.rings.giveBack(ring)
    self.ring = other
    ringSizes = (policy.buffer, policy.backlog)
  }
}
