// Down, from the endpoint to the clients: output is read into one ring, and each client reads the ring at its own pace.
// While a slow client keeps the ring full, nothing is read. With packets, a packet is held back until it is complete.
// SlowClients.swift decides about slow clients, SessionDown.swift writes to a client.

import ByteStreams

protocol DownstreamDelegate: AnyObject {
  /// The endpoint has ended or broken, and all its output is in the ring.
  func outputIsOver(_ cause: (any Error)?)
  /// The session may now have received all output, or it receives no more. Either may end the session.
  func evaluate(_ session: Session)
  func end(_ session: Session, _ ending: Ending)
  /// The session has lost `bytes` since the last report. Do not change the hub in this call.
  func sessionDrops(_ session: Session, bytes: UInt64)
  /// The state that is kept for all clients is inconsistent.
  func isBroken(_ fault: InternalFault)
}

final class Downstream {
  unowned var delegate: (any DownstreamDelegate)!  // the hub, which owns this; set once
  private let poller: Poller
  private let sessions: SessionList
  /// Nil until the first client is slow.
  private var slowClients: SlowClients?
  private var policy: Hub.SharedPolicy

  private var endpoint: (any ByteStream)?
  /// A write to the endpoint failed. The endpoint counts as gone once all its output is read.
  private var writeFailure: (any Error)?
  /// The endpoint of a per-client link has ended in order, and is not opened again.
  private(set) var hasEnded = false

  private(set) var output: OutputRing
  /// Position of the next byte from the endpoint.
  var head: UInt64 { output.head }
  /// The ring has no room for another read.
  private(set) var isPaused = false { didSet { exchange?.reading(isPaused: isPaused) } }
  /// Finds packets, if they are on.
  private(set) var cutter: PacketCutter?
  /// Some output is for one client only; nil: all is for all. The hub owns it.
  private var exchange: Exchange?
  private var packetTimer: Timers.Token?
  /// Records all output.
  private var tap: CaptureTap?

  init(_ policy: Hub.SharedPolicy, _ sessions: SessionList, on poller: Poller) {
    self.poller = poller
    self.sessions = sessions
    self.policy = policy
    output = OutputRing(policy.value.ringSizes, from: poller.rings)
    startPackets()
  }

  deinit { output.clear() }

  /// From now on, `exchange` decides which output is for which client.
  func follow(_ exchange: Exchange) {
    self.exchange = exchange
    cutter?.follow(exchange)
  }

  func record(to tap: CaptureTap?) { self.tap = tap }

  // MARK: - Sessions and the endpoint

  /// Call it before the session is in the list. The session receives the backlog, then everything from here on.
  func start(_ session: Session) {
    if let limit = policy.value.unsentLimit(of: session) { session.client.limitUnsent(to: limit) }
    guard output.ring != nil else { return session.startOutput(at: head) }
    let isFirst = sessions.all.isEmpty && output.sizes.backlog == 0
    let start = isFirst ? output.oldest : max(output.oldest, output.backlogStart)
    session.startOutput(at: cutter?.start(from: start) ?? start)
  }

  func join(_ session: Session) {
    release()  // output kept for the first client may begin inside a packet
    give(to: session)
    if output.ring == nil { awaitOutputAgain() }  // there was no memory for a ring; maybe there is now
    if isPaused { pause() }  // the new client has to wait: count the delay from now
  }

  /// The session is over and no longer in the list. Output kept for it is dropped and counted.
  func leave(_ session: Session) {
    if session.down.takesOutput {
      session.countDropped(session.down.kept(head: head) &- hiddenOutput(of: session, upTo: head))
    }
    slowClients?.leave(session)
    release()
    readOnIfRoom()
  }

  func attach(_ stream: any ByteStream) {
    endpoint = stream
    writeFailure = nil
    isPaused = false
    stream.readerWaits = .readable
  }

  /// Call `endPacket` first: the endpoint sends nothing more.
  func detach() {
    endpoint = nil
    slowClients?.readingGoesOn()
  }

  /// Output that came before the failed write is still read and delivered.
  func writeFailed(_ cause: any Error) {
    writeFailure = cause
    if !isPaused { read() }
  }

  func endpointHasEnded() { hasEnded = true }

  /// The client accepts no more output.
  func stop(_ session: Session) {
    session.stopOutput(at: head)
    release()
  }

  // MARK: - Reading

  /// The endpoint has bytes to read, or has ended.
  func read() {
    guard let endpoint else { return }
    var reads = Pump.budget(capacity: policy.value.buffer)
    do {
      reading: while true {
        guard wantsMore(endpoint) || makesRoom(for: endpoint) else {
          if endpoint === self.endpoint { pause() }
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
          if let tap, count > 0 { try ring.look(from: ring.head &- UInt64(count)) { tap.received($0) } }
          if count > 0 { try distribute(ring) }
          guard endpoint === self.endpoint else { return }
          if count > 0 && count < room && !endpoint.hasBufferedInput && writeFailure == nil {
            if wantsMore(endpoint) || makesRoom(for: endpoint) {
              endpoint.readerWaits = .readable
            } else if endpoint === self.endpoint {
              pause()
            }
            break reading
          }
        case .blocked(let wish):
          endpoint.readerWaits = wish
          giveBack()
          if let writeFailure { isOver(writeFailure) }
          return
        case .ended:
          giveBack()
          isOver(writeFailure)
          return
        }
      }
      giveBack()
    } catch let fault as InternalFault {
      delegate.isBroken(fault)
    } catch {
      giveBack()
      isOver(error)
    }
  }

  /// No event reports bytes inside a stream, nor the end of an endpoint whose write failed: it counts as gone once a
  /// read finds nothing. So ask for another read.
  private func awaitOutput(of endpoint: any ByteStream) {
    endpoint.readerWaits = .readable
    if endpoint.hasBufferedInput || writeFailure != nil { poller.again(endpoint) }
  }

  private func isOver(_ cause: (any Error)?) {
    let endpoint = endpoint
    endpoint?.readerWaits = []
    endPacket()
    if endpoint === self.endpoint { delegate.outputIsOver(cause) }  // that packet may have closed the link
  }

  private func pause() {
    guard let endpoint else { return }
    endpoint.readerWaits = []
    isPaused = true
    if policy.value.slow != .block || sessions.all.contains(where: \.accepted.yields) {
      (slowClients ?? startSlowClients()).readingPauses()
    }
  }

  private func startSlowClients() -> SlowClients {
    let slow = SlowClients(policy.value.slow, sessions, on: poller)
    slow.delegate = self
    slowClients = slow
    return slow
  }

  func readOnIfRoom() {
    // After making room, read first and wait second: a hang-up is reported only once.
    if isPaused, let endpoint, wantsMore(endpoint) || makesRoom(for: endpoint) {
      slowClients?.readingGoesOn()
      isPaused = false
      read()
      watchPacket()
    } else {
      giveBack()
    }
  }

  /// Whether the slowest client leaves room for another read.
  private func wantsMore(_ endpoint: any ByteStream) -> Bool {
    guard let ring = output.ring, !ring.isEmpty else { return true }
    // With a single client that is blocked, read only while the ring is at most half full; otherwise each freed 4 KiB
    // would cost a read.
    let sessions = sessions.all
    if sessions.count == 1, sessions[0].isBlocked, !sessions[0].dropsOldest(policy.value.slow) {
      return Int(truncatingIfNeeded: head &- sessions[0].down.cursor) <= output.sizes.buffer / 2
        && ring.room >= endpoint.largestUnit
    }
    return ring.room >= (isPaused ? max(endpoint.largestUnit, output.sizes.buffer / 16) : endpoint.largestUnit)
  }

  /// The ring is full. Tries to make room at once: drops output of clients known to be slow, or ends a packet that is
  /// too long for the ring. Returns whether there is room now.
  private func makesRoom(for endpoint: any ByteStream) -> Bool {
    guard let ring = output.ring else { return false }
    var isHelped = false
    for session in sessions.all where session.down.isBehind && session.down.takesOutput {
      dropOldest(of: session, in: ring)
      isHelped = true
    }
    if isHelped { release() }
    if let cutter, slowest >= cutter.end {  // no client has anything left to receive, so waiting would not help
      if ring.room < endpoint.largestUnit { endPacket(goesOn: true) }
      isHelped = true
    }
    return isHelped && endpoint === self.endpoint && (output.ring?.room ?? policy.value.buffer) >= endpoint.largestUnit
  }

  /// Drops the client's output except for the newest half of the buffer, in whole packets if there are any. So the
  /// client loses a few reads at a time.
  private func dropOldest(of session: Session, in ring: RingBuffer) {
    let before = session.down.droppedAsSlow
    if exchange != nil { skipHidden(of: session, upTo: limit(for: session, ring)) }
    session.skip(to: cutter?.start(from: output.half) ?? output.half, in: ring)
    if session.down.droppedAsSlow > before { (slowClients ?? startSlowClients()).dropped(session) }
    if session.ending.fault != nil { delegate.evaluate(session) }
  }

  // MARK: - Writing to clients

  private func distribute(_ ring: RingBuffer) throws(InternalFault) {
    if let cutter { try cut(ring, by: cutter) }
    var anyIsDone = false
    for session in sessions.all where session.down.takesOutput {
      guard !session.isBlocked else {
        if exchange != nil { skipHidden(of: session, upTo: limit(for: session, ring)) }
        continue
      }
      send(ring, to: session)
      if !session.down.takesOutput || session.isLeaving { anyIsDone = true }
    }
    release()
    if anyIsDone {
      for session in sessions.all where !session.down.takesOutput || session.isLeaving { delegate.evaluate(session) }
    }
  }

  /// The client has space, or is new.
  func give(to session: Session) {
    if session.down.hasRest {
      guard session.sendRest(head: head) else { return }
      if !session.down.takesOutput { release() }
    }
    if let ring = output.ring, session.down.takesOutput {
      let wasOldest = session.down.cursor <= ring.oldest &+ UInt64(output.sizes.backlog)
      send(ring, to: session)
      if session.down.isBehind && !session.isBlocked { session.down.catchesUp() }
      if wasOldest || !session.down.takesOutput { release() }
    } else if !session.client.hasPendingOutput {
      session.client.writerWaits = []  // the wait was only for a held unit, which is out now
    }
    if !session.down.takesOutput || session.isLeaving || hasEnded { delegate.evaluate(session) }
    if output.ring != nil { readOnIfRoom() }
  }

  /// A session that is being ended also gets the beginning of an incomplete packet: it does not wait for the rest.
  func giveBeginning(to session: Session) {
    guard cutter != nil, let ring = output.ring, session.down.takesOutput, !session.isBlocked else { return }
    send(ring, to: session)
  }

  /// Writes what the client may receive and takes. Output for another client is left out.
  private func send(_ ring: RingBuffer, to session: Session) {
    let end = limit(for: session, ring)
    guard let exchange, !exchange.isEmpty else { return session.take(from: ring, upTo: end, by: cutter) }
    repeat {
      skipHidden(of: session, upTo: end)
      let stop = min(end, exchange.hidden(from: session, at: session.down.cursor)?.lowerBound ?? end)
      session.take(from: ring, upTo: stop, by: cutter)
      guard session.down.takesOutput, session.down.cursor >= stop else { return }
    } while session.down.cursor < end
  }

  /// Moves the client on past output that is for another one.
  private func skipHidden(of session: Session, upTo end: UInt64) {
    while session.down.cursor < end,
      let range = exchange?.hidden(from: session, at: session.down.cursor), range.contains(session.down.cursor)
    {
      session.startOutput(at: min(range.upperBound, end))
    }
  }

  /// How much of the output kept for the session is for another client.
  func hiddenOutput(of session: Session, upTo end: UInt64) -> UInt64 {
    guard let exchange, session.down.cursor < end else { return 0 }
    return exchange.countHidden(from: session, in: session.down.cursor..<end)
  }

  /// A session that is being ended does not need output after its last packet. That output alone may have filled the
  /// ring.
  func freeWhatFollows() {
    guard isPaused, cutter != nil else { return }
    release()
    poller.timers.after(.zero) { [weak self] in self?.readOnIfRoom() }
  }

  /// Position up to which the client may receive: all output, or with packets the complete ones.
  private func limit(for session: Session, _ ring: RingBuffer) -> UInt64 {
    guard let cutter else { return ring.head }
    guard session.isLeaving else { return cutter.end }
    // A session that was given the beginning of a packet gets no more: later bytes would count as another packet.
    let (cursor, end) = (session.down.cursor, session.ending.leavesAt)
    return cursor < end ? max(cutter.end, end) : cursor
  }

  // MARK: - The ring

  /// The position of the client that has received least. With packets at most the end of the last complete one, since
  /// no client has a part of an incomplete one.
  private var slowest: UInt64 {
    var slowest = cutter?.end ?? head
    // Without packets, the cursor of a client that lacks nothing is at the head.
    for session in sessions.all where session.down.takesOutput && (cutter == nil || lacksOutput(session)) {
      slowest = min(slowest, session.down.cursor)
    }
    return slowest
  }

  /// Without clients, output is kept for the first one that connects.
  private var keepsWithoutClients: Bool {
    sessions.all.isEmpty && !policy.value.dropsWithoutClients && output.sizes.backlog == 0 && !hasEnded
  }

  /// Frees all bytes that every client has received, except the backlog.
  func release() {
    guard output.ring != nil, !keepsWithoutClients else { return }
    free(upTo: slowest)
  }

  private func free(upTo position: UInt64) {
    do { try output.free(upTo: position) } catch { return delegate.isBroken(error) }
    cutter?.forget(before: output.oldest)
    exchange?.forgetOutput(before: output.oldest)
  }

  /// Returns nil when there is no memory for a ring. Then all sessions end, and reading stops until a client connects.
  private func borrowOrEndAll() -> RingBuffer? {
    do { return try output.borrow() } catch {
      isPaused = false  // or each session that ends would try again
      for session in sessions.all { delegate.end(session, Ending(.internal, error)) }
      pause()
      return nil
    }
  }

  /// The link closes because no client needs it. Output that no client received is dropped: clients of the next
  /// endpoint must not get it.
  func dropWithoutClients() {
    guard sessions.all.isEmpty else { return }
    endPacket()  // the next output must not continue a packet whose beginning is dropped
    guard output.ring != nil else { return }
    free(upTo: head)
    giveBack()
    awaitOutputAgain()
  }

  /// Nothing is kept, so there is room: the endpoint's next event reads on.
  private func awaitOutputAgain() {
    guard isPaused, let endpoint else { return }
    slowClients?.readingGoesOn()
    isPaused = false
    awaitOutput(of: endpoint)
  }

  /// After a mistake of ours: drops what is kept, and starts packets anew.
  func clear() {
    output.clear()
    restartPackets()
    isPaused = false  // or each session that ends would make it read on
  }

  private func giveBack() {
    if output.giveBackIfEmpty() { output.move(from: keepsWithoutClients ? output.oldest : slowest) }
  }

  // MARK: - Packets

  private func startPackets() {
    cutter = policy.value.packets.map { PacketCutter($0.rule, at: head, oldest: output.oldest, exchange) }
  }

  private func restartPackets() {
    poller.timers.cancel(packetTimer)
    packetTimer = nil
    startPackets()
  }

  private func cut(_ ring: RingBuffer, by cutter: PacketCutter) throws(InternalFault) {
    try cutter.look(at: ring, cutter.usesTime ? poller.timers.now : 0)
    guard cutter.rule.idle != nil else { return }
    watchPacket()
  }

  /// Ends the packet that has begun. With `goesOn` it is only too long for the ring.
  func endPacket(goesOn: Bool = false) {
    poller.timers.cancel(packetTimer)
    packetTimer = nil
    guard let cutter, cutter.end != head else { return }
    cutter.cut(in: output.ring, goesOn: goesOn)
    guard let ring = output.ring else { return }  // none of it is kept, so no client received any
    do { try distribute(ring) } catch { return delegate.isBroken(error) }
    giveBack()
  }

  /// A silence ends the packet that has begun. One timer runs for all its bytes.
  private func watchPacket() {
    guard let cutter, packetTimer == nil, cutter.end != head, let idle = cutter.rule.idle else { return }
    let (silence, limit) = (poller.timers.now &- cutter.lastByteAt, idle.nanoseconds)
    let delay = Duration.nanoseconds(Int64(clamping: silence < limit ? limit - silence : 0))
    packetTimer = poller.timers.after(delay) { [weak self] in
      guard let self else { return }
      packetTimer = nil
      // The silence may be ours: nothing is read while paused, and a late lane has not read yet. So read first.
      guard !isPaused else { return }
      read()
      guard let cutter = self.cutter, packetTimer == nil, !isPaused else { return }
      if poller.timers.now &- cutter.lastByteAt >= limit { endPacket() } else { watchPacket() }
    }
  }

  // MARK: - A reload

  /// A new size is for the next ring. A ring in use changes its size as soon as its content fits; no byte is lost.
  func update(_ shared: Hub.SharedPolicy) {
    let (old, new) = (policy.value, shared.value)
    let hasOtherPackets = new.packets != old.packets
    if hasOtherPackets { endPacket() }
    policy = shared
    for session in sessions.all where new.unsentLimit(of: session) != old.unsentLimit(of: session) {
      session.client.limitUnsent(to: new.unsentLimit(of: session) ?? new.usualUnsentLimit)
    }
    if hasOtherPackets { restartPackets() }
    slowClients?.update(new.slow)
    output.resize(to: new.ringSizes)
    output.move(from: keepsWithoutClients ? output.oldest : slowest)
  }

  /// Frees room and reads on. Call it after `update`, once the sessions use the new settings.
  func goOn() {
    release()
    readOnIfRoom()
    if isPaused { pause() }
  }
}

extension Downstream: SlowClientsDelegate {
  var waitsForRoom: Bool { isPaused && endpoint != nil }

  /// Whether the ring has output that the client may receive now.
  func lacksOutput(_ session: Session) -> Bool {
    guard let ring = output.ring, session.down.takesOutput else { return false }
    return session.down.cursor < limit(for: session, ring)
  }

  /// Position up to which clients can have received by now.
  var end: UInt64 { cutter?.end ?? head }

  func holdsUpOthers(_ session: Session) -> Bool {
    lacksOutput(session) && head &- session.down.cursor > UInt64(output.sizes.buffer / 2)
  }

  func isTooSlow(_ session: Session) { delegate.end(session, Ending(.tooSlow)) }

  func sessionDrops(_ session: Session, bytes: UInt64) { delegate.sessionDrops(session, bytes: bytes) }

  /// The time of slow clients was counted.
  func lookAgain() {
    readOnIfRoom()
    if isPaused, slowClients?.isLooking != true { pause() }
  }
}

extension Hub.Policy {
  var ringSizes: OutputRing.Sizes { OutputRing.Sizes(buffer: buffer, backlog: backlog) }

  /// The most output that the kernel keeps unsent for a client, unless it is the listener's own limit. With
  /// `drop-oldest` a slow client is to get what is new, and what the kernel has taken can't be dropped (decision E11).
  func unsentLimit(of session: Session) -> Int? {
    guard session.dropsOldest(slow) else { return nil }
    return max(1, min(buffer, Int(SocketOptions.notSentLowWater)))
  }

  /// The limit of the listener.
  var usualUnsentLimit: Int { isShared ? Int(SocketOptions.notSentLowWater) : 0 }
}
