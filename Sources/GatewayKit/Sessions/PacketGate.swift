// Up, with packets: each client writes to the endpoint through a gate, so that no two writers' packets mix. Down needs
// no gate; see Downstream.swift.

import ByteStreams

/// The order in which the packets of a hub's clients go out.
///
/// A writer whose packet has begun is the *packet owner*: no other writer's bytes go out before that packet ends. The
/// packet rule ends the packet, or a silence of `idle` (1 s if no `idle` is given) since the last bit of the owner's last
/// byte has left the endpoint's line. It also ends when the owner's session is over, or when the owner has lost the right to write and all its input is out. While
/// others wait, a writer writes packet by packet. Its turn ends with the packet that uses up its 4 KiB.
final class PacketOrder {
  let rule: PacketRule
  /// The session whose packet has begun.
  fileprivate(set) var packetOwner: Session?
  /// How many bytes of packets the session being served may still begin, while others wait.
  fileprivate var allowance = 0
  private var timer: Timers.Token?
  /// When the endpoint's line has sent what it took.
  fileprivate var wire = WireClock()
  private var isAsking = false
  /// The link's own bytes went out last: the first packet comes `idle` after them.
  private var followsPreface = false
  private let poller: Poller
  private unowned let upstream: Upstream  // its queue owns this
  // For rules with only a delimiter or a length: how long a writer that stops inside a packet delays the others.
  private static let longestSilence = Duration.seconds(1)
  // How often the driver is asked about bytes that the bit rate says are not sent yet.
  private static let look: UInt64 = 100_000_000

  init(_ rule: PacketRule, _ upstream: Upstream) {
    self.rule = rule
    self.upstream = upstream
    poller = upstream.poller
  }

  func allow(_ bytes: Int) { allowance = bytes }

  func isPacketOwner(_ session: Session) -> Bool { packetOwner === session }

  /// Whether a packet may begin, if no other is under way.
  var mayBegin: Bool { !followsPreface && upstream.exchange?.mayBegin ?? true }

  /// When the silence after the last packet is over, by what the driver still holds. Nil without one.
  var silenceEnds: ((_ unsent: Int) -> UInt64)? {
    guard let idle = rule.idle, wire.lastBitAt > 0 else { return nil }
    let timers = poller.timers
    var wire = wire
    return { [weak line = upstream.endpoint?.serialLine] unsent in
      if let line { wire.driverHolds(unsent, of: line, at: timers.now) }
      return wire.lastBitAt &+ idle.nanoseconds
    }
  }

  /// The endpoint has taken bytes of the link's own.
  func prefaceWritten(_ count: Int, over line: (any SerialLine)?) {
    guard rule.idle != nil else { return }
    wire.took(count, over: line, at: poller.timers.now)
    followsPreface = true
  }

  /// No packet is under way: the endpoint is gone, or packets are off.
  func end() {
    packetOwner = nil
    poller.timers.cancel(timer)
    timer = nil
  }

  /// The next endpoint has a line of its own.
  func endpointIsGone() {
    wire.nothingIsDue(at: poller.timers.now)
    isAsking = false
    followsPreface = false
  }

  /// When the line will have sent all that it has taken.
  var lastBitAt: UInt64 { wire.lastBitAt }

  /// A purge of output is over that was asked for when `lastBitAt` had this value. Bytes taken since may have come after
  /// it.
  func outputIsPurged(_ lastBitAt: UInt64) {
    guard wire.lastBitAt == lastBitAt else { return }
    wire.nothingIsDue(at: poller.timers.now)
    guard timer != nil else { return }
    poller.timers.cancel(timer)
    timer = nil
    watchSilence()
  }

  /// No more of the session's packet will come.
  func isOver(_ session: Session) {
    session.up.gate?.scanner.finish()
    guard session === packetOwner else { return }
    end()
    upstream.queue.serveSoon()
  }

  /// Others wait for the packet owner, whose input is all written, or all wait for the silence after the preface.
  func watchSilence() {
    guard timer == nil, !isAsking, packetOwner != nil || followsPreface else { return }
    let timers = poller.timers
    let limit = (rule.idle ?? Self.longestSilence).nanoseconds
    // First until the line has sent everything, then the silence.
    let end = wire.isConfirmed ? wire.lastBitAt &+ limit : min(wire.lastBitAt, timers.now &+ Self.look)
    let delay = Duration.nanoseconds(Int64(clamping: end > timers.now ? end - timers.now : 0))
    timer = timers.after(delay) { [weak self] in
      guard let self else { return }
      timer = nil
      // Our lane may be late: read first. A wait that begins meanwhile is this one.
      if let packetOwner, packetOwner.up.mayWrite { upstream.takeInput(of: packetOwner) }
      timers.cancel(timer)
      timer = nil
      guard followsPreface || packetOwner?.up.isWaiting == false, !upstream.queue.isEmpty else { return }
      if !wire.isConfirmed { return askDriver() }
      guard wire.silence(at: timers.now) >= limit else { return watchSilence() }
      if let packetOwner { return isOver(packetOwner) }
      followsPreface = false
      upstream.queue.serveSoon()
    }
  }

  /// Asks whether the driver has sent everything.
  private func askDriver() {
    guard let endpoint = upstream.endpoint, let line = endpoint.serialLine else { return }
    isAsking = true
    let lastBitAt = wire.lastBitAt
    line.unsent { [weak self, weak endpoint, weak line] answer in
      guard let self, let endpoint, let line, endpoint === upstream.endpoint else { return }
      isAsking = false
      if wire.lastBitAt == lastBitAt {  // else the answer does not count all bytes
        wire.driverHolds((try? answer.get()) ?? 0, of: line, at: poller.timers.now)
      }
      watchSilence()
    }
  }
}

/// The sink of a client's pump: passes the bytes on to the endpoint, packet by packet while others wait.
final class PacketGate: SinkStream {
  fileprivate(set) var scanner = PacketScanner()
  /// The last write was blocked because of another writer; the endpoint may have space.
  private(set) var isShut = false
  private let line: PacketOrder
  private unowned let session: Session  // owns the gate
  private unowned let upstream: Upstream

  init(_ line: PacketOrder, _ session: Session, _ upstream: Upstream) {
    self.line = line
    self.session = session
    self.upstream = upstream
  }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    isShut = false
    guard let endpoint = upstream.endpoint, let outlet = upstream.outlet else { return .blocked(until: []) }
    let now = upstream.poller.timers.now
    if let idle = line.rule.idle, scanner.isInside, line.wire.silence(at: now) >= idle.nanoseconds { scanner.finish() }
    let othersWait = upstream.queue.othersWait(than: session)
    let isPacketOwner = line.packetOwner === session
    let exchange = upstream.exchange
    guard isPacketOwner || line.packetOwner == nil && (!othersWait || line.allowance > 0) && line.mayBegin else {
      isShut = true
      return .blocked(until: [])  // the writer queue gives it its turn
    }
    var ahead = scanner
    let end = othersWait || exchange != nil ? ahead.take(run, by: line.rule) : run.count
    let transfer = try outlet.write(UnsafeRawBufferPointer(rebasing: run[..<end]))
    if case .moved(let count) = try transfer.checked(of: end, at: "gate.write"), count > 0 {
      line.allowance -= min(count, line.allowance)
      line.wire.took(count, over: endpoint.serialLine, at: now)
      let taken = UnsafeRawBufferPointer(rebasing: run[..<count])
      exchange?.sent(taken, by: session.number, lastBitAt: line.wire.lastBitAt)
      follow(taken)
    }
    return transfer
  }

  private func follow(_ run: UnsafeRawBufferPointer) {
    var run = run
    while !run.isEmpty { run = UnsafeRawBufferPointer(rebasing: run[scanner.take(run, by: line.rule)...]) }
    if scanner.isInside { line.packetOwner = session } else if line.packetOwner === session { line.end() }
  }

  var below: (any ByteStream)? { upstream.endpoint }
  // Others may wait for the endpoint, too.
  var writerWaits: Readiness {
    get { below?.writerWaits ?? [] }
    set { if !newValue.isEmpty { below?.writerWaits = newValue } }
  }
}
