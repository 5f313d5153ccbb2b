// When the ring is full because of some clients only: who holds up others is charged for the time, and ended in the end.

import ByteStreams

extension Hub {
  func pause(_ endpoint: any ByteStream) {
    endpoint.readerWaits = []
    isPaused = true
    guard policy.slow != .block, sessions.count > 1, holdUpTimer == nil else { return }
    lookWhoHoldsUp()
  }

  /// Time counts only while one client has everything and waits, and only against those who fill the ring.
  private func lookWhoHoldsUp() {
    lastLook = poller.timers.now
    someoneWaits = sessions.contains { $0.takesOutput && $0.cursor == head }
    for session in sessions {
      session.holdsUpOthers = session.takesOutput && head &- session.cursor > UInt64(policy.buffer / 2)
    }
    holdUpTimer = poller.timers.after(SlowClock.tick) { [weak self] in
      guard let self else { return }
      holdUpTimer = nil
      chargeHoldUp()
      if isPaused, holdUpTimer == nil, let endpoint { pause(endpoint) }
    }
  }

  private func chargeHoldUp() {
    guard someoneWaits, sessions.count > 1 else { return }
    let now = poller.timers.now
    // A look that comes late is our own delay, or the machine's: nobody is charged for it.
    let length = min(now &- lastLook, 2 * SlowClock.tick.nanoseconds)
    let tooSlow = sessions.filter { $0.holdsUpOthers && $0.slow.charge(length, at: now) }
    for session in tooSlow { end(session, Ending(.tooSlow)) }
  }

  func endHoldUp() {
    guard holdUpTimer != nil else { return }
    poller.timers.cancel(holdUpTimer)
    holdUpTimer = nil
    chargeHoldUp()
    for session in sessions { session.slow.stretchEnded() }
  }
}
