// Up, from the clients to the endpoint, in turns. A client's bytes are written at once only while no other client's
// input is kept. Input that the endpoint does not take waits in the client's pump, at most `clients.buffer` bytes; past
// half of that the client is not read, and its TCP window closes (Pump.swift). Clients are served in the order they were blocked. Upstream+Writers.swift decides which client may write,
// PacketGate.swift keeps packets whole. The hub decides what follows from the end of a client's input.

import ByteStreams
import StreamBroker

protocol UpstreamDelegate: AnyObject {
  var sessions: [Session] { get }
  /// Nil while no client can use it.
  var lineControl: LineControl? { get }
  /// The session's input has moved on, or ended. This may end the session.
  func evaluate(_ session: Session)
  func end(_ session: Session, _ ending: Ending)
  /// The client's stream broke. Input that was read before is still delivered.
  func clientFailed(_ session: Session, _ cause: (any Error)?)
  /// The session's input waits, so its client is not read.
  func lookForEnd(of session: Session)
  /// The endpoint takes no more bytes. Its output is still read to the end.
  func writeFailed(_ cause: any Error)
  /// Do not change the hub in this call: a turn is under way.
  func writerChanged(from: Session?, to: Session?)
  func lineWasAsked(_ request: ControlChannelRequest, refusal: String?, by session: Session)
  /// Do not change the hub in this call.
  func lineWasReset(by recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>)
  /// The line's settings may have changed. Do not change the hub in this call.
  func lineChanged()
}

final class Upstream {
  let poller: Poller
  unowned var delegate: (any UpstreamDelegate)!  // the hub, which owns this; set once
  var lineControl: LineControl? { delegate.lineControl }
  private let isShared: Bool

  private(set) var endpoint: (any ByteStream)?
  /// Where bytes for the endpoint go: to it, or with a recording through its CaptureSink.
  private(set) var outlet: (any ByteStream)?
  /// Records what the endpoint takes.
  private var tap: CaptureTap?
  /// When the endpoint, or the last one, took its first bytes of a client; on the lane's clock. Nil before that.
  private(set) var firstTakenAt: UInt64?
  /// A write failed. The endpoint counts as gone once all its output is read.
  private(set) var writeFailure: (any Error)?
  /// The endpoint has ended, and takes no more bytes either.
  private var hasStopped = false
  /// The link's own bytes, written before those of clients.
  private var preface: ArraySlice<UInt8> = []
  /// Number of reasons to keep input back from an attached endpoint.
  private var holds = 0
  /// The endpoint is away, and clients' input is dropped.
  private(set) var dropsInput = false

  /// For an endpoint with a serial line.
  private(set) var lineMeter: LineMeter?
  private var drain: Duration

  /// With `packets.exchange`. The hub owns it.
  private(set) var exchange: Exchange?

  let queue: WriterQueue
  private(set) var role: WriterRole
  /// The session that has the writer role, if there is one writer.
  var writer: Session? { role.holder }

  init(_ policy: Hub.Policy, on poller: Poller) {
    self.poller = poller
    isShared = policy.isShared
    drain = policy.drain
    role = WriterRole(policy)
    queue = WriterQueue()
    queue.upstream = self
    queue.setPackets(policy)
  }

  /// From now on, `exchange` decides when a packet may begin.
  func follow(_ exchange: Exchange) { self.exchange = exchange }

  // MARK: - Sessions and the endpoint

  func join(_ session: Session) {
    session.up.write(through: queue.gate(for: session))
    if role.isFor(newcomer: session) { moveRole(to: session) }
    if role.writers == .all && session.accepted.role == .writer { session.up.gainsRight() }
    connect(session)
    if delegate.sessions.count == 1 { lineMeter?.startOutput(patience: drain) }
  }

  /// The session is over. Its kept input is dropped and counted.
  func leave(_ session: Session) {
    queue.remove(session)
    let cut = session.pump.discard()
    if cut > 0 { session.ending.inputWasCut() }
    session.countDropped(UInt64(cut + (session.requestGuard?.kept ?? 0)))
    inputIsOver(session)
    if cut > 0 || delegate.sessions.isEmpty { inputIsDropped() }
  }

  /// The endpoint is open. It gets `words` first, then the kept input; if it `isHeld`, after a `resume`.
  func attach(_ stream: any ByteStream, saying words: [UInt8], isHeld: Bool = false) {
    endpoint = stream
    setOutlet()
    firstTakenAt = nil
    writeFailure = nil
    hasStopped = false
    preface = words[...]
    holds = isHeld ? 1 : 0
    dropsInput = false
    lineMeter = stream.serialLine.map { LineMeter($0, self, on: poller) }
    flow()
  }

  /// Kept input stays for the next endpoint.
  func detach() {
    endpoint = nil
    setOutlet()
    lineMeter?.end()
    lineMeter = nil
    for session in delegate.sessions { session.pump.sink = nil }
    queue.endPacket()
    queue.endpointIsGone()
  }

  /// The endpoint has ended and takes no more bytes: input goes nowhere.
  func stopWriting() {
    hasStopped = true
    for session in delegate.sessions { session.pump.sink = nil }
  }

  /// A write to the endpoint failed.
  func fail(_ cause: any Error) {
    guard let endpoint, writeFailure == nil else { return }
    endpoint.writerWaits = []
    for session in delegate.sessions { session.pump.sink = nil }
    writeFailure = cause
    delegate.writeFailed(cause)
  }

  /// The endpoint takes bytes, though maybe not now.
  var canReachEndpoint: Bool { endpoint != nil && writeFailure == nil && !hasStopped }

  /// Input can go to the endpoint now. Otherwise it is kept.
  var takesInput: Bool { canReachEndpoint && holds == 0 && preface.isEmpty }

  func connect(_ session: Session) {
    session.pump.sink = takesInput ? session.up.gate ?? outlet : nil
  }

  /// From now on, `tap` records what the endpoint takes.
  func record(to tap: CaptureTap?) {
    self.tap = tap
    setOutlet()
    for session in delegate.sessions { connect(session) }
  }

  private func setOutlet() {
    guard let endpoint else { return outlet = nil }
    outlet = tap.map { CaptureSink(endpoint, $0) } ?? endpoint
  }

  private func flow() {
    // The last session that ends may free the link and the hub. Both are kept for this turn.
    guard let delegate, takesInput || !preface.isEmpty else { return }
    for session in delegate.sessions { connect(session) }
    serve()
    for session in delegate.sessions where session.pump.sourceEnded { delegate.evaluate(session) }
  }

  /// Returns whether all of the preface is out.
  private func writesPreface(to endpoint: any ByteStream) -> Bool {
    let outlet = outlet ?? endpoint
    do {
      while !preface.isEmpty {
        let transfer = try preface.withUnsafeBytes { try outlet.write($0) }
        switch try transfer.checked(of: preface.count, at: "hub.preface") {
        case .moved(let count):
          preface = preface.dropFirst(count)
          queue.prefaceWritten(count, over: endpoint.serialLine)
        case .blocked(let wish):
          endpoint.writerWaits = wish
          return false
        case .ended: throw SystemError("write", 32)  // EPIPE
        }
      }
    } catch {
      fail(error)
      return false
    }
    for session in delegate.sessions { connect(session) }
    return true
  }

  // MARK: - Input

  /// The client has sent bytes, or has ended.
  func takeInput(of session: Session) {
    takeBytes(of: session)
    guard session.controlChannel != nil, !session.isOver else { return }  // its hub may be gone with it
    if session.pump.count > 0 { lineControl?.inputFollows(of: session) }
    takeRequests(of: session)
  }

  private func takeBytes(of session: Session) {
    if dropsInput || session.up.isFlushed { return dropInput(session) }
    guard session.up.mayWrite else { return takeInputWithoutRight(of: session) }
    if role.notesUse { roleIsUsed() }
    let isKept = session.controlChannel != nil && lineControl?.keepsBytes(of: session) == true
    turn(of: session, mayWrite: queue.mayWriteThrough(session) && !session.isMarked && !isKept)
    // Bytes that wait for a change of the line must not go out before `inputFollows` makes it.
    if !isKept { queue.hasWrittenThrough() }
  }

  private func turn(of session: Session, mayWrite: Bool) {
    let before = session.pump.moved
    do {
      let outcome = try session.pump.turn(mayWrite: mayWrite)
      noteWrite(of: session, since: before)
      switch outcome {
      case .idle: if session.isLeaving { delegate.evaluate(session) }
      case .keeps:
        queue.add(session)
        if session.pump.sourceEnded { delegate.evaluate(session) }
      case .finished: delegate.evaluate(session)
      }
    } catch {
      pumpFailed(session, error)
    }
  }

  /// The session's turn is over; `before` is what it had sent earlier.
  func noteWrite(of session: Session, since before: UInt64) {
    if firstTakenAt == nil, session.pump.moved != before { firstTakenAt = poller.timers.now }
    lineMeter?.watchOutput()
  }

  /// Input was dropped, or the last client has left.
  func inputIsDropped() { if queue.isEmpty { lineMeter?.startOutput(patience: drain) } }

  func pumpFailed(_ session: Session, _ fault: Pump.Fault) {
    switch fault.side {
    case .source where fault.cause is HTTPRequestFault:
      // None of the request was forwarded.
      delegate.end(session, Ending(.denied, fault.cause))
    case .source:
      queue.add(session)
      delegate.clientFailed(session, fault.cause)
    case .sink:
      queue.add(session)
      if session.client.hasBufferedInput { poller.again(session.client) }  // the turn has not read these bytes
      fail(fault.cause)
    case .ourselves: delegate.end(session, Ending(.internal, fault.cause))
    }
  }

  /// All input of the session is delivered or given up: its writer role is free, and its packet is over.
  func inputIsOver(_ session: Session) {
    if session === role.holder { moveRole(to: role.heir(among: delegate.sessions)) }
    queue.packetIsOver(of: session)
    lineControl?.inputIsOver(of: session)
  }

  func moveRole(to session: Session?) {
    let old = role.holder
    if let old { takeRight(from: old) }
    role.move(to: session, at: poller.timers.now)
    session?.up.gainsRight()
    guard old !== session else { return }
    delegate.writerChanged(from: old, to: session)
    for session in delegate.sessions { reportStatus(to: session) }
  }

  /// Input read so far is delivered before that of others. Later input is no longer kept.
  func takeRight(from session: Session) {
    session.up.losesRight()
    lineControl?.endBreak(of: session)
    guard !session.isOver else { return }
    session.readOn(poller)
    if session.pump.count == 0 { queue.packetIsOver(of: session) }
  }

  func roleIsUsed() { role.isUsed(at: poller.timers.now) }

  /// While `body` ends sessions, no other session gets the writer role.
  func withoutHeir(_ body: () -> Void) {
    role.passesOn(false)
    body()
    role.passesOn(true)
  }

  /// The endpoint has space: writes kept input.
  func serve() {
    guard let endpoint else { return }
    guard isReady else { return endpoint.writerWaits = [] }  // space is of no use now; `resume` looks again
    if preface.isEmpty || writesPreface(to: endpoint) { queue.serve(endpoint) }
  }

  /// The queue has written all that the session kept.
  func isServed(_ session: Session) {
    if role.notesUse && session === role.holder { roleIsUsed() }
  }

  /// The endpoint has taken all kept input. The end of a client may have waited for that.
  func allAreServed() {
    guard !isShared else { return }
    for session in delegate.sessions where session.pump.sourceEnded { delegate.evaluate(session) }
  }

  /// Only a lack of space keeps input back from the endpoint.
  var isReady: Bool { endpoint != nil && writeFailure == nil && holds == 0 }

  // MARK: - Holding back

  /// Keeps clients' input back from an operation that must not overlap with it, such as a change of line settings. Each
  /// call needs its own `resume`. A new endpoint begins without holds.
  func hold() {
    holds += 1
    for session in delegate.sessions { session.pump.sink = nil }
    endpoint?.writerWaits = []
  }

  func resume() {
    guard holds > 0 else { return }
    holds -= 1
    flow()
  }

  // MARK: - Dropping

  /// The endpoint is away, so clients' input is dropped; or it is here again, so input is kept.
  func setDropsInput(_ drops: Bool) {
    guard drops != dropsInput else { return }
    dropsInput = drops
    if drops { for session in delegate.sessions { dropKept(of: session) } }
    for session in delegate.sessions where session.pump.sourceEnded { delegate.evaluate(session) }
  }

  /// Drops the session's kept input, and resumes reading.
  func dropKept(of session: Session) {
    session.countDropped(UInt64(session.pump.discard()))
    session.controlChannel?.bytesAreDropped(after: session.pump.moved)
    queue.remove(session)
    session.readOn(poller)
    inputIsDropped()
  }

  private func dropInput(_ session: Session) {
    do {
      try session.readAndDiscard()
      if session.pump.sourceEnded { delegate.evaluate(session) }
    } catch {
      pumpFailed(session, error)
    }
  }

  /// Drops what the line's driver holds. No more of its output is due then, unless the endpoint has taken bytes meanwhile.
  func purge(_ what: Purge, of line: any SerialLine, then done: @escaping (Result<Void, SystemError>) -> Void) {
    let lastBitAt = queue.lastBitAt
    line.purge(what) { [weak self] result in
      if what != .input, case .success = result { self?.queue.outputIsPurged(lastBitAt) }
      done(result)
    }
  }

  // MARK: - A reload

  func update(_ policy: Hub.Policy, from old: Hub.Policy) {
    drain = policy.drain
    for session in delegate.sessions { session.pump.resize(to: policy.buffer) }
    if policy.packets != old.packets {
      queue.setPackets(policy)
      for session in delegate.sessions {
        session.up.write(through: queue.gate(for: session))
        connect(session)
      }
      queue.serveSoon()  // sessions need not wait for another's packet now
    }
    role.update(policy)
    if policy.writers != old.writers || policy.takeover != old.takeover { writersChanged() }
  }
}

extension Upstream: ExchangeDelegate {
  var questionMayBeOver: Bool { queue.packetMayBeOver }
  func exchangeIsOver() { queue.packetIsAnswered() }
  func nextMayBegin() { queue.serveSoon() }
}

extension Upstream: LineMeterOwner {
  var isBlocked: Bool { canReachEndpoint && holds == 0 && !(queue.isEmpty && preface.isEmpty) }
  var taken: UInt64 { delegate.sessions.reduce(0) { $0 &+ $1.pump.moved } }
}
