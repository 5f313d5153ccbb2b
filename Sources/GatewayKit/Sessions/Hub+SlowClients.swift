// When the ring is full because of some clients only: who holds up others is charged for the time, and in the end he is ended,
// or loses the oldest of what is kept for him.

import ByteStreams

extension Hub {
  /// One who is alone holds up the endpoint only. Where the policy names what becomes of slow ones it holds for him, too:
  /// `drop-oldest` from the moment when the ring is full, `disconnect` when he has taken nothing for so long since.
  static let longestStall = Duration.seconds(5)

  func pause(_ endpoint: any ByteStream) {
    endpoint.readerWaits = []
    isPaused = true
    guard policy.slow != .block, holdUpTimer == nil else { return }
    if sessions.count > 1 || policy.slow == .dropOldest {
      lookWhoHoldsUp()
    } else if policy.slow == .disconnect && !sessions.isEmpty {
      watchStall()
    }
  }

  /// Time counts only while one client has everything and waits, and only against those who fill the ring. With
  /// `drop-oldest` the endpoint counts as one who waits.
  private func lookWhoHoldsUp() {
    lastLook = poller.timers.now
    let all = cutter?.end ?? head
    someoneWaits = policy.slow == .dropOldest || sessions.contains { $0.takesOutput && $0.cursor >= all }
    for session in sessions {
      session.holdsUpOthers = lacksOutput(session) && head &- session.cursor > UInt64(ringSizes.buffer / 2)
    }
    holdUpTimer = poller.timers.after(SlowClock.tick) { [weak self] in
      guard let self else { return }
      holdUpTimer = nil
      chargeHoldUp()
      readOnIfRoom()
      if isPaused, holdUpTimer == nil, let endpoint { pause(endpoint) }
    }
  }

  private func chargeHoldUp() {
    guard someoneWaits, sessions.count > 1 || policy.slow == .dropOldest else { return }
    let now = poller.timers.now
    // A look that comes late is our own delay, or the machine's: nobody is charged for it.
    let length = min(now &- lastLook, 2 * SlowClock.tick.nanoseconds)
    let tooSlow = sessions.filter { $0.holdsUpOthers && lacksOutput($0) && $0.slow.charge(length, at: now) }
    for session in tooSlow {
      if policy.slow == .dropOldest { session.isBehind = true } else { end(session, Ending(.tooSlow)) }
    }
  }

  /// The hub reads on, or has nothing to read from.
  func endHoldUp() {
    let wasCounting = holdUpTimer != nil
    poller.timers.cancel(holdUpTimer)
    holdUpTimer = nil
    guard policy.slow != .block, sessions.count > 1 || policy.slow == .dropOldest else { return }
    if wasCounting { chargeHoldUp() }
    for session in sessions { session.slow.stretchEnded() }
  }

  /// Alone and by name: one timer looks whether anything has moved since it was set, and need not be set anew for each pause.
  private func watchStall() {
    guard stallTimer == nil else { return }
    let (head, taken) = (head, sessions.map(\.down))
    stallTimer = poller.timers.after(Self.longestStall) { [weak self] in
      guard let self else { return }
      stallTimer = nil
      guard isPaused, let endpoint, policy.slow == .disconnect, sessions.count == 1 else { return }
      guard lacksOutput(sessions[0]) else { return }
      if head == self.head && taken == sessions.map(\.down) {
        end(sessions[0], Ending(.tooSlow))
      } else {
        pause(endpoint)
      }
    }
  }

  /// A reload may say something else of slow ones. What was is not charged.
  func changeSlow() {
    poller.timers.cancel(holdUpTimer)
    holdUpTimer = nil
    if policy.slow != .dropOldest { for session in sessions { session.isBehind = false } }
  }

  // MARK: - Drops

  /// Half of what is kept for him goes, as whole packets where there are some; what he loses at a time is a few reads long.
  func dropOldest(of session: Session, in ring: RingBuffer) {
    let half = ring.head &- min(ring.head, UInt64(ringSizes.buffer / 2))
    let before = session.droppedAsSlow
    session.skip(to: cutter?.start(from: half) ?? half, in: ring)
    if session.droppedAsSlow > before { tellDrops(of: session) }
    if session.fault != nil { settle(session) }
  }

  /// At once when nothing was told for a second; else when it is over, in sum.
  private func tellDrops(of session: Session) {
    guard session.dropTimer == nil else { return }
    delegate.sessionDrops(session, bytes: session.droppedAsSlow &- session.droppedTold)
    session.droppedTold = session.droppedAsSlow
    session.dropTimer = poller.timers.after(.seconds(1)) { [weak self, weak session] in
      guard let self, let session else { return }
      session.dropTimer = nil
      if session.droppedAsSlow > session.droppedTold { tellDrops(of: session) }
    }
  }

  func stopTellingDrops(of session: Session) {
    poller.timers.cancel(session.dropTimer)
    session.dropTimer = nil
  }
}
