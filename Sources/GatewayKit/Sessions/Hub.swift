// Where the bytes of one link meet: the endpoint's output goes into one ring in which every client has a cursor, and
// the clients' input goes to the endpoint in turns. A link of one client is a hub with one client. Knows nothing of
// opening, retrying or accepting; the link that owns it does. How sessions end stands in Hub+Endings.swift, what
// becomes of slow clients in Hub+SlowClients.swift.

import ByteStreams

protocol HubDelegate: AnyObject {
  /// The endpoint said its last word, which is in the ring, or broke.
  func endpointIsGone(_ cause: (any Error)?)
  /// The session is out of the hub. Its client is open still and belongs to the receiver.
  func sessionIsOver(_ session: Session, _ ending: Ending)
}

final class Hub: ByteStreamDelegate {
  struct Policy: Sendable {
    /// One endpoint for all clients; else client and endpoint pass on each other's half-close.
    var isShared: Bool
    /// Bytes kept for a client that is behind, and of a client's input while the endpoint is.
    var buffer: Int
    /// Bytes of output that a newcomer gets first.
    var backlog: Int
    /// Clients that hold up others are ended.
    var endsSlowClients: Bool
    /// What nobody hears is stale and is dropped.
    var dropsUnheard: Bool
    /// How long the last bytes of one who left may make no progress.
    var drain: Duration
  }

  let policy: Policy
  let poller: Poller
  unowned let delegate: any HubDelegate  // the link, which owns the hub
  private(set) var endpoint: (any ByteStream)?
  private(set) var sessions: [Session] = []

  // Down.
  private var ring: RingBuffer?
  private var lastHead: UInt64 = 0  // head of the ring when it was given back
  var head: UInt64 { ring?.head ?? lastHead }
  var isPaused = false  // the ring is too full to read on
  var holdUpTimer: Timers.Token?
  var lastLook: UInt64 = 0
  var someoneWaits = false

  // Up. Those with kept input, in the order they were blocked.
  private var waiting: [Session] = []

  /// The endpoint has ended in order and is not coming back: for links of one client.
  var endpointHasEnded = false
  // A write to the endpoint failed; it is gone as soon as it has been read to its end.
  private var writeFailure: (any Error)?

  // Writers served per turn: more only makes the others on the lane wait.
  private static let serviceBudget = 64
  private static let service = 4096  // bytes a writer may put out before the next one's turn

  init(_ policy: Policy, on poller: Poller, delegate: any HubDelegate) {
    self.policy = policy
    self.poller = poller
    self.delegate = delegate
  }

  deinit { if let ring { poller.rings.giveBack(ring) } }

  // MARK: - Coming and going

  /// Takes in a client; he hears from here on, after the backlog.
  func join(_ session: Session) {
    if let ring {
      let wanted = head &- min(head, UInt64(policy.backlog))
      session.cursor = sessions.isEmpty && policy.backlog == 0 ? ring.oldest : max(ring.oldest, wanted)
    } else {
      session.cursor = head
    }
    session.place = sessions.count
    sessions.append(session)
    session.pump.sink = writeFailure == nil ? endpoint : nil
    session.client.readerWaits = .readable
    giveOutput(to: session)
    if isPaused, let endpoint { pause(endpoint) }  // a newcomer who waits makes the clock of the slow ones run
  }

  /// The endpoint is open; the hub moves its bytes until `detach` or `endpointIsGone`.
  func attach(_ stream: any ByteStream) {
    endpoint = stream
    writeFailure = nil
    stream.delegate = self
    stream.readerWaits = .readable
    isPaused = false
    for session in sessions { session.pump.sink = stream }
    serve()
    for session in sessions where session.pump.sourceEnded { settle(session) }
  }

  /// Lets go of the endpoint; it belongs to the caller. Kept input stays for the next one.
  func detach() -> (any ByteStream)? {
    guard let stream = endpoint else { return nil }
    endpoint = nil
    stream.delegate = nil
    for session in sessions { session.pump.sink = nil }
    endHoldUp()
    return stream
  }

  /// Takes a session out of all lists; what was kept for it or of it counts as dropped.
  func remove(_ session: Session) {
    let last = sessions.removeLast()
    if last !== session {
      sessions[session.place] = last
      last.place = session.place
    }
    if session.isWaiting { waiting.removeAll { $0 === session } }
    session.dropped &+= UInt64(session.pump.discard())
    if session.takesOutput { session.dropped &+= head &- session.cursor }
    release()
    readOnIfRoom()
  }

  // MARK: - Down: endpoint to clients

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

  private func readOutput() {
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
  private func endpointFailed(_ cause: any Error) {
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

  private func readOnIfRoom() {
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
  private func release() {
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

  private func giveBack() {
    guard let ring, ring.isEmpty else { return }
    lastHead = ring.head
    poller.rings.giveBack(ring)
    self.ring = nil
  }

  // MARK: - Up: clients to endpoint

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
  private func serve() {
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
        guard endpoint === self.endpoint, writeFailure == nil else { return }
      }
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
