// Down, where packets are on: what the endpoint says is held back in the ring until a packet is complete, and then given
// to each client in a write of its own, so that who reads packets gets them in one piece as far as TCP allows.

import ByteStreams

/// A packet ends behind its delimiter, at its longest, after a silence of `idle`, where the endpoint ends, and where the
/// ring has no more room for it although everybody has all packets before it. Nobody hears the beginning of a packet
/// before its end is there, but for one who is sent away, and nobody begins in the middle of one: neither a newcomer nor
/// one of whom the oldest was dropped.
extension Hub {
  func startPackets() {
    guard let packets = policy.packets else { return }
    let rule = PacketRule(packets)
    cutter = PacketCutter(rule, at: head, oldest: ring?.oldest ?? head)
    if policy.isShared { packetLine = PacketLine(rule, on: poller) }
  }

  /// A reload says something else of packets. The one that is under way ends here.
  func changePackets() {
    endPacket()
    packetLine?.end()
    (cutter, packetLine) = (nil, nil)
    startPackets()
    for session in sessions {
      session.gate = packetLine.map { PacketGate($0, session, self) }
      connect(session)
    }
    // Who waited for his turn need not any more.
    if !waiting.isEmpty, takesInput { endpoint?.writerWaits = .writable }
  }

  /// Finds the packets in what has come.
  func cut(_ ring: RingBuffer, by cutter: PacketCutter) throws(InternalFault) {
    try cutter.look(at: ring)
    guard cutter.rule.idle != nil else { return }
    cutter.lastByteAt = poller.timers.now
    watchPacket()
  }

  /// The packet under way is over.
  func endPacket() {
    poller.timers.cancel(packetTimer)
    packetTimer = nil
    guard let cutter, cutter.end != head else { return }
    cutter.cut()
    guard let ring else { return }  // nobody was there to hear its beginning
    do { try distribute(ring) } catch { return isBroken(error) }
    giveBack()
  }

  /// Sees to it that a silence ends the packet under way. One timer runs for all its bytes.
  func watchPacket() {
    guard let cutter, packetTimer == nil, cutter.end != head, let idle = cutter.rule.idle else { return }
    let (silence, limit) = (poller.timers.now &- cutter.lastByteAt, idle.nanoseconds)
    let delay = Duration.nanoseconds(Int64(clamping: silence < limit ? limit - silence : 0))
    packetTimer = poller.timers.after(delay) { [weak self] in
      guard let self else { return }
      packetTimer = nil
      // While nobody reads, and while the lane was late, the silence is our own: what came meanwhile is not behind it.
      guard !isPaused else { return }
      readOutput()
      guard let cutter = self.cutter, packetTimer == nil, !isPaused else { return }
      if poller.timers.now &- cutter.lastByteAt >= limit { endPacket() } else { watchPacket() }
    }
  }
}
