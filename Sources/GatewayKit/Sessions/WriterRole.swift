// Decides which client may send to the endpoint. With `writers: one`, a single client has the writer role; monitors
// never get it. A value: Upstream reports events to it, asks it and acts.

import ByteStreams

struct WriterRole {
  private(set) var writers: Config.Clients.Writers
  private var takeover: Config.Clients.Takeover
  /// The client that has the role; nil if none has it.
  private(set) var holder: Session?
  /// When the holder last sent something; nanoseconds on the lane's clock.
  private var usedAt: UInt64 = 0
  /// `usedAt` matters: an idle holder loses the role to another client that sends.
  private(set) var notesUse: Bool
  /// False while all sessions are being ended: the role then passes to no other client.
  private(set) var hasHeir = true

  init(_ policy: Hub.Policy) {
    (writers, takeover, notesUse) = (policy.writers, policy.takeover, Self.notesUse(policy))
  }

  mutating func update(_ policy: Hub.Policy) {
    (writers, takeover, notesUse) = (policy.writers, policy.takeover, Self.notesUse(policy))
  }

  private static func notesUse(_ policy: Hub.Policy) -> Bool {
    if case .idle = policy.takeover { policy.writers == .one } else { false }
  }

  mutating func move(to session: Session?, at now: UInt64) {
    holder = session
    usedAt = now
  }

  mutating func passesOn(_ passes: Bool) { hasHeir = passes }

  mutating func isUsed(at now: UInt64) { usedAt = now }

  /// Whether a new client gets the role.
  func isFor(newcomer session: Session) -> Bool {
    writers == .one && session.accepted.role == .writer && (holder == nil || takeover == .newest)
  }

  /// Whether the session may take the role by sending: the holder is idle, and none of its input is on the way.
  func mayTake(_ session: Session, at now: UInt64) -> Bool {
    guard notesUse, case .idle(let pause) = takeover, session.accepted.role == .writer else { return false }
    guard let holder else { return true }
    return holder.pump.count == 0 && now &- usedAt >= pause.nanoseconds
  }

  /// Why a client that requests the role does not get it; nil if it may have it.
  func refusal(toTake session: Session, at now: UInt64) -> String? {
    if session.accepted.role == .monitor { return "a monitor may only read" }
    guard let holder, holder !== session, takeover != .newest, !mayTake(session, at: now) else { return nil }
    return "session \(holder.number) has the writer role"
  }

  /// The next holder: the client that has been connected longest and still sends.
  func heir(among sessions: [Session]) -> Session? {
    guard hasHeir else { return nil }
    return sessions.filter { $0.accepted.role == .writer && !$0.pump.sourceEnded && !$0.isLeaving && $0 !== holder }
      .min { $0.number < $1.number }
  }
}
