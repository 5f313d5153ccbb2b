// The order in which kept input goes out: sessions are served in the order they were blocked, 4 KiB each in turn. With
// packets, PacketOrder decides when the next session's turn begins. The input itself is in each session's Pump, at most
// `clients.buffer` bytes.

import ByteStreams

final class WriterQueue {
  /// Owns this; set once.
  unowned var upstream: Upstream!
  /// Sessions with kept input, in the order they were blocked.
  private var waiting: [Session] = []
  /// Sessions whose clients were read while their input was written: a request may have come with that.
  private var served: [Session] = []
  /// Keeps packets of different writers apart, if packets are on.
  private var packetOrder: PacketOrder?

  // The most sessions served per turn; more would only delay the other streams on the lane.
  private static let serviceBudget = 64
  private static let service = 4096  // the most bytes a session writes before the next one's turn

  deinit { packetOrder?.end() }

  var isEmpty: Bool { waiting.isEmpty }
  func othersWait(than session: Session) -> Bool { waiting.count > (session.up.isWaiting ? 1 : 0) }

  /// The session keeps input, and is served when the endpoint has space. A session whose packet has begun comes first.
  func add(_ session: Session) {
    guard session.pump.count > 0, !session.up.isWaiting else { return }
    session.up.waits()
    upstream.delegate.lookForEnd(of: session)
    waiting.insert(session, at: isPacketOwner(session) ? 0 : waiting.count)
  }

  func remove(_ session: Session) {
    guard session.up.isWaiting else { return }
    session.up.waitIsOver()
    if waiting.first === session { waiting.removeFirst() } else { waiting.removeAll { $0 === session } }
  }

  // MARK: - Serving

  /// Serves in another turn: the present one may be in the middle of an operation.
  func serveSoon() {
    guard !waiting.isEmpty, upstream.takesInput, let endpoint = upstream.endpoint, endpoint.writerWaits.isEmpty else {
      return
    }
    endpoint.writerWaits = .writable
  }

  /// The endpoint has space.
  func serve(_ endpoint: any ByteStream) {
    defer { takeRequests() }
    var services = Self.serviceBudget
    while let session = waiting.first, services > 0, !waitsForPacketOwner {
      services -= 1
      do {
        guard try serve(session) else { break }
      } catch {
        upstream.pumpFailed(session, error)
        guard upstream.writeFailure == nil else { return }
      }
      // If the last session ends, the link may close; the endpoint then belongs to other code.
      guard endpoint === upstream.endpoint, upstream.isReady else { return }
    }
    waitForSpace(of: endpoint)
  }

  /// Serves the session. Returns whether the endpoint may take more.
  private func serve(_ session: Session) throws(Pump.Fault) -> Bool {
    let before = session.pump.moved
    let room = session.controlChannel?.room(behind: before) ?? .max
    let outcome = try session.pump.drain(limit: min(portion(), room))
    upstream.noteWrite(of: session, since: before)
    if session.controlChannel != nil {
      upstream.lineControl?.run(session)
      served.append(session)
    }
    if outcome == .keeps {
      let isBlocked = session.pump.sinkIsBlocked && session.up.gate?.isShut != true
      // A session that wrote nothing keeps its turn. With one writer there are no turns: the first session in the queue
      // had the writer role earlier, so its input goes out first.
      let hadTurn = session.pump.moved != before && upstream.role.writers != .one && !isPacketOwner(session)
      if hadTurn, waiting.first === session { waiting.append(waiting.removeFirst()) }
      return !isBlocked
    }
    remove(session)
    upstream.isServed(session)
    if !session.up.mayWrite { packetIsOver(of: session) }
    if outcome == .finished || session.isLeaving { upstream.delegate.evaluate(session) }
    return true
  }

  /// How much of the first session's input may go out at once. With packets, its gate applies this limit.
  private func portion() -> Int {
    let portion = waiting.count == 1 || upstream.role.writers == .one ? Int.max : Self.service
    packetOrder?.allow(portion)
    return packetOrder == nil ? portion : .max
  }

  private func takeRequests() {
    let sessions = served
    served = []
    for session in sessions where !session.isOver { upstream.takeRequests(of: session) }
  }

  private func waitForSpace(of endpoint: any ByteStream) {
    if waitsForPacketOwner {
      endpoint.writerWaits = []
      if !waiting.isEmpty { packetOrder?.watchSilence() }
    } else if waiting.isEmpty {
      endpoint.writerWaits = []
      upstream.allAreServed()
    } else if endpoint.writerWaits.isEmpty {
      endpoint.writerWaits = .writable
    }
  }

  // MARK: - Packets

  /// Sets other rules for packets, or none. The packet under way ends here.
  func setPackets(_ policy: Hub.Policy) {
    packetOrder?.end()
    packetOrder = policy.isShared ? policy.packets.map { PacketOrder($0.rule, upstream) } : nil
  }

  func gate(for session: Session) -> PacketGate? { packetOrder.map { PacketGate($0, session, upstream) } }

  /// The session sends no more of the packet that it may have begun.
  func packetIsOver(of session: Session) { packetOrder?.isOver(session) }

  func prefaceWritten(_ count: Int, over line: (any SerialLine)?) { packetOrder?.prefaceWritten(count, over: line) }

  /// When the silence after the last packet is over, by what the driver still holds. Nil without one.
  var silenceEnds: ((_ unsent: Int) -> UInt64)? { packetOrder?.silenceEnds }

  /// When the endpoint's line will have sent all that it has taken; 0 without packets.
  var lastBitAt: UInt64 { packetOrder?.lastBitAt ?? 0 }
  /// See `PacketOrder`.
  func outputIsPurged(_ lastBitAt: UInt64) { packetOrder?.outputIsPurged(lastBitAt) }

  /// The next endpoint has a line of its own.
  func endpointIsGone() { packetOrder?.endpointIsGone() }

  /// Ends the packet under way.
  func endPacket() { packetOrder?.end() }

  /// Whether the session may write at once, without a wait in the queue. If its packet has begun it may, up to the
  /// packet's end, even while others wait.
  func mayWriteThrough(_ session: Session) -> Bool {
    guard let packetOrder else { return waiting.isEmpty }
    packetOrder.allow(0)
    return waiting.isEmpty || packetOrder.packetOwner === session
  }

  /// A session has written without waiting in the queue. If its packet has ended, the others are served.
  func hasWrittenThrough() {
    guard let packetOrder, !waiting.isEmpty, let endpoint = upstream.endpoint else { return }
    if let packetOwner = packetOrder.packetOwner {
      if !packetOwner.up.isWaiting { packetOrder.watchSilence() }
    } else if endpoint.writerWaits.isEmpty {
      upstream.serve()
    }
  }

  private func isPacketOwner(_ session: Session) -> Bool { packetOrder?.isPacketOwner(session) ?? false }

  /// A packet has begun, and no more of it has arrived; or it waits for its answer.
  private var waitsForPacketOwner: Bool {
    guard let packetOrder else { return false }
    guard let packetOwner = packetOrder.packetOwner else { return !packetOrder.mayBegin }
    return !packetOwner.up.isWaiting
  }

  /// All that has arrived of the packet under way is written.
  var packetMayBeOver: Bool { packetOrder?.packetOwner.map { !$0.up.isWaiting } ?? true }

  /// The packet under way has its answer, or had the time for it.
  func packetIsAnswered() { if let packetOwner = packetOrder?.packetOwner { packetOrder?.isOver(packetOwner) } }
}
