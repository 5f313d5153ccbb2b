// Which client may use the line: one with the right to write, and with `writers: all` only the first that used it,
// until it ends. A value: LineControl asks it.

struct LineRights {
  private var writers: Config.Clients.Writers
  /// With `writers: all`: the number of the session that uses the line. No other may, until it ends.
  private(set) var holder: UInt64?

  init(_ writers: Config.Clients.Writers) { self.writers = writers }

  /// With a policy other than `all`, the right to write includes the line.
  mutating func update(_ writers: Config.Clients.Writers) {
    self.writers = writers
    if writers != .all { holder = nil }
  }

  /// Why the client may not write, and so may not use the line; nil if it may.
  func writeRefusal(of session: Session) -> String? {
    if session.accepted.role == .monitor { return "a monitor may only read" }
    return session.up.mayWrite ? nil : Self.noWriteRefusal(writers)
  }

  static func noWriteRefusal(_ writers: Config.Clients.Writers) -> String {
    writers == .one ? "another client has the writer role" : "no client may write on this route"
  }

  /// Returns why the session, which may write, cannot use the line; nil: it can. With `writers: all` it then holds the
  /// line.
  mutating func hold(by number: UInt64) -> String? {
    if let holder, holder != number { return "session \(holder) holds the line settings" }
    if writers == .all { holder = number }
    return nil
  }

  mutating func release(by number: UInt64) { if holder == number { holder = nil } }
}
