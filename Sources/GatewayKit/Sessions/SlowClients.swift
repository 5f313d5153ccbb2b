// Slow clients. When only some clients keep the ring full, the time that they delay others is counted. Over the limit a
// slow client is disconnected, or its output is dropped; the policy decides which. `Downstream` reports when it pauses
// and resumes reading.

import ByteStreams

protocol SlowClientsDelegate: AnyObject {
  /// The ring is full, so nothing is read from the endpoint.
  var waitsForRoom: Bool { get }
  /// Position of the next byte from the endpoint.
  var head: UInt64 { get }
  /// Position up to which clients can have received by now.
  var end: UInt64 { get }
  func lacksOutput(_ session: Session) -> Bool
  /// The session is one of those that fill the ring.
  func holdsUpOthers(_ session: Session) -> Bool
  func isTooSlow(_ session: Session)
  /// The session has lost `bytes` since the last report; at most one report a second.
  func sessionDrops(_ session: Session, bytes: UInt64)
  /// The clients' time was counted. Read on if there is room, or pause again.
  func lookAgain()
}

/// What `SlowClients` keeps of one session.
struct SlowClientRecord {
  fileprivate var clock = SlowClientClock()
  fileprivate var holdsUpOthers = false
  // Drops that were reported, and the timer until the next report.
  fileprivate var droppedReported: UInt64 = 0
  fileprivate var dropTimer: Timers.Token?
}

final class SlowClients {
  unowned var delegate: (any SlowClientsDelegate)!  // the Downstream, which owns this; set once
  private let sessions: SessionList
  private let poller: Poller
  private var policy: Config.Clients.Slow

  private var timer: Timers.Token?
  private var lastLook: UInt64 = 0
  private var someoneWaits = false
  private var stallTimer: Timers.Token?
  /// Time is being counted.
  var isLooking: Bool { timer != nil }

  /// A client that is alone delays only the endpoint. `drop-oldest` applies to it as soon as the ring is full,
  /// `disconnect` once it has taken nothing for this long after that.
  static let longestStall = Duration.seconds(5)

  init(_ policy: Config.Clients.Slow, _ sessions: SessionList, on poller: Poller) {
    self.policy = policy
    self.sessions = sessions
    self.poller = poller
  }

  private var counts: Bool { sessions.all.count > 1 || sessions.all.contains { $0.dropsOldest(policy) } }
  private var isOff: Bool { policy == .block && !sessions.all.contains(where: \.accepted.yields) }
  /// The clients that others can delay, and that delay others.
  private var equals: [Session] { sessions.all.filter { !$0.accepted.yields } }

  // MARK: - Reading

  /// The ring is full.
  func readingPauses() {
    guard !isOff, timer == nil else { return }
    if counts { look() }
    if policy == .disconnect && equals.count == 1 { watchStall() }
  }

  /// There is room again, or no endpoint to read from.
  func readingGoesOn() {
    let wasCounting = timer != nil
    poller.timers.cancel(timer)
    timer = nil
    guard !isOff, counts else { return }
    if wasCounting { count() }
    for session in sessions.all { session.down.slow.clock.stretchEnded() }
  }

  /// Changes the policy. Time before the change is not counted.
  func update(_ policy: Config.Clients.Slow) {
    self.policy = policy
    poller.timers.cancel(timer)
    timer = nil
    for session in sessions.all where !session.dropsOldest(policy) { session.down.catchesUp() }
  }

  // MARK: - Time that others wait

  /// Time counts only while at least one client has received everything and waits, and only against clients that fill
  /// the ring. With `drop-oldest` the endpoint counts as one that waits.
  private func look() {
    lastLook = poller.timers.now
    let end = delegate.end
    someoneWaits = equals.contains { $0.down.takesOutput && $0.down.cursor >= end }
    for session in sessions.all { session.down.slow.holdsUpOthers = delegate.holdsUpOthers(session) }
    timer = poller.timers.after(SlowClientClock.tick) { [weak self] in
      // The last session that ends may free the link and with it the Downstream. Both are kept for this turn.
      guard let self, let delegate else { return }
      timer = nil
      count()
      delegate.lookAgain()
    }
  }

  private func count() {
    guard counts else { return }
    let now = poller.timers.now
    // If a look comes late, the delay is ours or the machine's, and counts against no client.
    let length = min(now &- lastLook, 2 * SlowClientClock.tick.nanoseconds)
    let tooSlow = sessions.all.filter {
      ($0.dropsOldest(policy) || someoneWaits && policy != .block) && $0.down.slow.holdsUpOthers
        && delegate.lacksOutput($0) && $0.down.slow.clock.charge(length, at: now)
    }
    for session in tooSlow {
      if session.dropsOldest(policy) { session.down.fallsBehind() } else { delegate.isTooSlow(session) }
    }
  }

  // MARK: - A client that is alone

  /// One timer checks whether anything has moved since it was set. It need not be set again for each pause.
  private func watchStall() {
    guard stallTimer == nil else { return }
    let (head, taken) = (delegate.head, equals.map(\.down.bytes))
    stallTimer = poller.timers.after(Self.longestStall) { [weak self] in
      guard let self else { return }
      stallTimer = nil
      let equals = equals
      guard delegate.waitsForRoom, policy == .disconnect, equals.count == 1 else { return }
      guard delegate.lacksOutput(equals[0]) else { return }
      if head == delegate.head && taken == equals.map(\.down.bytes) {
        delegate.isTooSlow(equals[0])
      } else {
        readingPauses()
      }
    }
  }

  // MARK: - Drops

  /// Reports drops at once if there was no report within the last second. Otherwise it reports their sum when that
  /// second is over.
  func dropped(_ session: Session) {
    guard session.down.slow.dropTimer == nil else { return }
    delegate.sessionDrops(session, bytes: session.down.droppedAsSlow &- session.down.slow.droppedReported)
    session.down.slow.droppedReported = session.down.droppedAsSlow
    session.down.slow.dropTimer = poller.timers.after(.seconds(1)) { [weak self, session] in
      guard let self else { return }
      session.down.slow.dropTimer = nil
      if session.down.droppedAsSlow > session.down.slow.droppedReported { dropped(session) }
    }
  }

  func leave(_ session: Session) {
    poller.timers.cancel(session.down.slow.dropTimer)
    session.down.slow.dropTimer = nil
  }
}

extension Session {
  /// Whether its oldest output is dropped when it is slow.
  func dropsOldest(_ policy: Config.Clients.Slow) -> Bool { policy == .dropOldest || accepted.yields }
}
