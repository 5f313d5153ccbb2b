// Up, where packets are on: each client writes to the endpoint through a gate, so that no packet of his is mixed with
// another writer's. Down needs no gate; see Hub+Packets.swift.

import ByteStreams

/// The order in which the packets of a hub's clients go out.
///
/// A writer whose packet is begun is the *speaker*: nobody else's bytes go out before its end. That is where the rule of
/// the packets says, or after a silence of `idle` (of 1 s where no `idle` is given) that begins with his last byte, or when
/// he has left or lost the right to write, and what he sent is out. While others wait, a writer is let through packet by
/// packet, and others get their turn at the end of the packet that fills up his 4 KiB.
final class PacketLine {
  let rule: PacketRule
  /// The session whose packet is begun.
  fileprivate(set) var speaker: Session?
  /// Bytes that the one who is served may begin packets with, while others wait.
  var allowance = 0
  private var timer: Timers.Token?
  private let poller: Poller
  // Where only a delimiter or a length ends packets, one who begins a packet and stops holds the others so long.
  private static let longestSilence = Duration.seconds(1)

  init(_ rule: PacketRule, on poller: Poller) {
    self.rule = rule
    self.poller = poller
  }

  /// Nobody speaks: there is no endpoint, or there are no packets any more.
  func end() {
    speaker = nil
    poller.timers.cancel(timer)
    timer = nil
  }

  /// No more of his packet will come.
  func isOver(_ session: Session, in hub: Hub) {
    session.gate?.scanner.finish()
    guard session === speaker else { return }
    end()
    // In a turn of its own: this one may be in the middle of something.
    if !hub.waiting.isEmpty, hub.takesInput, let endpoint = hub.endpoint, endpoint.writerWaits.isEmpty {
      endpoint.writerWaits = .writable
    }
  }

  /// Somebody waits for the speaker, who has nothing more to say at the moment.
  func watchSilence(in hub: Hub) {
    guard timer == nil, let gate = speaker?.gate else { return }
    let limit = (rule.idle ?? Self.longestSilence).nanoseconds
    let silence = poller.timers.now &- gate.wroteAt
    let delay = Duration.nanoseconds(Int64(clamping: silence < limit ? limit - silence : 0))
    timer = poller.timers.after(delay) { [weak self, weak hub] in
      guard let self, let hub else { return }
      timer = nil
      guard let speaker else { return }
      if speaker.mayWrite { hub.takeInput(of: speaker) }  // the silence may be our own lateness
      guard let speaker = self.speaker, let gate = speaker.gate, !speaker.isWaiting, !hub.waiting.isEmpty else {
        return
      }
      if poller.timers.now &- gate.wroteAt >= limit {
        isOver(speaker, in: hub)
      } else {
        watchSilence(in: hub)
      }
    }
  }
}

/// What the pump of a client writes to: the endpoint, packet by packet where that matters.
final class PacketGate: ByteStream {
  fileprivate(set) var scanner = PacketScanner()
  /// When his last byte went out; nanoseconds on the lane's clock.
  fileprivate(set) var wroteAt: UInt64 = 0
  /// The last write was refused for another writer's sake; the endpoint may have space.
  private(set) var isShut = false
  private let line: PacketLine
  private unowned let session: Session  // owns the gate
  private unowned let hub: Hub

  init(_ line: PacketLine, _ session: Session, _ hub: Hub) {
    self.line = line
    self.session = session
    self.hub = hub
  }

  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    isShut = false
    guard let endpoint = hub.endpoint else { return .blocked(until: []) }
    let now = hub.poller.timers.now
    if let idle = line.rule.idle, scanner.isInside, now &- wroteAt >= idle.nanoseconds { scanner.finish() }
    let othersWait = hub.waiting.count > (session.isWaiting ? 1 : 0)
    let isSpeaker = line.speaker === session
    guard isSpeaker || line.speaker == nil && (!othersWait || line.allowance > 0) else {
      isShut = true
      return .blocked(until: [])  // the line says when it is his turn
    }
    var ahead = scanner
    let end = othersWait ? ahead.take(run, by: line.rule) : run.count
    let transfer = try endpoint.write(UnsafeRawBufferPointer(rebasing: run[..<end]))
    if case .moved(let count) = try transfer.checked(of: end, at: "gate.write"), count > 0 {
      line.allowance -= min(count, line.allowance)
      wroteAt = now
      follow(UnsafeRawBufferPointer(rebasing: run[..<count]))
    }
    return transfer
  }

  private func follow(_ run: UnsafeRawBufferPointer) {
    var run = run
    while !run.isEmpty { run = UnsafeRawBufferPointer(rebasing: run[scanner.take(run, by: line.rule)...]) }
    if scanner.isInside { line.speaker = session } else if line.speaker === session { line.end() }
  }

  // What waits for the endpoint waits for it; the gate has nothing of its own to wait for.
  var writerWaits: Readiness {
    get { hub.endpoint?.writerWaits ?? [] }
    set { if !newValue.isEmpty { hub.endpoint?.writerWaits = newValue } }
  }

  var delegate: (any ByteStreamDelegate)? {
    get { nil }
    set {}
  }
  var readerWaits: Readiness {
    get { [] }
    set {}
  }
  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer { .blocked(until: []) }
  func close() {}
}
