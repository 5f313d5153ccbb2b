// Log-ins from what a client shows to who he is: waits where somebody has failed before, has passwords checked, counts failures.
// Who greets clients asks it; what may be done is decided by Access.

import ByteStreams
import StreamBroker

/// Lives on the lane where clients are greeted.
final class LogIns {
  enum Answer {
    case admitted(Identity, Config.Listen.Role)
    /// Say who you are: HTTP 401.
    case asks
    /// HTTP 401 and `login-failed`.
    case failed(LogInFault)
    /// HTTP 403 and `denied`.
    case denied(Identity)
    /// HTTP 429, `login-failed`: too many tries of this address, or of all together, wait already.
    case busy(LogInFault)
  }

  /// One client's log-in. Cancelled, it tells nothing more; a check that was begun is counted all the same.
  final class Attempt {
    fileprivate var done: ((Answer) -> Void)?
    fileprivate var timer: Timers.Token?
    fileprivate var check: Passwords.Check?
    /// When what it shows began to be looked at; nil for one that shows nothing but a certificate, which is proof by itself.
    fileprivate var began: UInt64?
    fileprivate init(_ done: @escaping (Answer) -> Void) { self.done = done }

    fileprivate func answer(_ answer: Answer) {
      let done = done
      self.done = nil
      done?(answer)
    }
  }

  private let poller: Poller
  private let passwords: Passwords
  private var failures = LogInFailures()
  private var proven = Proven()
  /// Since the start; for status.
  private(set) var failed: UInt64 = 0

  /// A failed log-in is answered after this time, or a multiple of it: the time must not show whether the user exists or how the
  /// password is kept. A successful one is answered at once.
  private(set) var floor: Duration
  private let leastFloor: Duration
  /// Until the checks of the configuration's hashes are measured, and for tokens.
  static let standardFloor = Duration.milliseconds(100)
  /// A greeting has ten seconds.
  private static let mostFloor = Duration.seconds(4)
  private var measured: [Secret] = []

  init(on poller: Poller, passwords: Passwords? = nil, floor: Duration = standardFloor) {
    self.poller = poller
    self.floor = floor
    leastFloor = floor
    self.passwords = passwords ?? Passwords(on: poller)
  }

  /// Finds out what a client of a listener of `role` may do. `credential` nil: he showed something that is broken. `done` is
  /// called once, at once or later, unless the attempt is cancelled.
  @discardableResult
  func begin(
    _ access: Access, _ credential: Credential?, certificate: ClientCertificate?, role: Config.Listen.Role,
    from address: SocketAddress?, then done: @escaping (Answer) -> Void
  ) -> Attempt {
    let attempt = Attempt(done)
    if credential != Credential.none { attempt.began = poller.timers.now }
    guard let credential else {
      wait(attempt, address) { [self] in fail(attempt, address, .broken) }
      return attempt
    }
    let decision = access.decide(credential, certificate: certificate, role: role)
    if credential == .none || isProven(credential, decision) {
      finish(attempt, decision, access, credential, role: role, address, isProven: true)
    } else {
      wait(attempt, address) { [self] in
        finish(attempt, decision, access, credential, role: role, address, isProven: false)
      }
    }
    return attempt
  }

  /// From now on these are the hashes that passwords are checked against, one of each kind: the floor is twice what the slowest takes.
  func follow(_ hashes: [Secret]) {
    guard hashes != measured else { return }
    measured = hashes
    passwords.measure(hashes) { [weak self] slowest in
      guard let self, hashes == measured else { return }
      floor = min(max(leastFloor, slowest * 2), Self.mostFloor)
    }
  }

  func cancel(_ attempt: Attempt) {
    attempt.done = nil
    poller.timers.cancel(attempt.timer)
    if let check = attempt.check { passwords.forget(check) }
  }

  private func isProven(_ credential: Credential, _ decision: Access.Decision) -> Bool {
    let hash: Secret? = if case .check(let question) = decision { question.hash } else { nil }
    return proven.knows(credential, hash: hash, at: poller.timers.now)
  }

  private func wait(_ attempt: Attempt, _ address: SocketAddress?, then go: @escaping () -> Void) {
    // Clients of this machine's own doors have no address, and don't log in.
    guard let address else { return go() }
    let now = poller.timers.now
    guard let time = failures.next(from: address, at: now) else {
      return attempt.answer(.busy(LogInFault(.tooManyTries, from: address)))
    }
    if time <= now { return go() }
    attempt.timer = poller.timers.after(.nanoseconds(Int64(time - now))) { [poller] in
      attempt.began = poller.timers.now
      go()
    }
  }

  private func finish(
    _ attempt: Attempt, _ decision: Access.Decision, _ access: Access, _ credential: Credential,
    role: Config.Listen.Role, _ address: SocketAddress?, isProven: Bool
  ) {
    switch decision {
    case .admitted(let identity, let role):
      if credential != .none { proven.remember(credential, hash: nil, at: poller.timers.now) }
      attempt.answer(.admitted(identity, role))
    case .asks: attempt.answer(.asks)
    case .denied(let identity): answerLater(attempt, .denied(identity))
    case .failed: fail(attempt, address, .wrong(user: nil))
    case .check(let question):
      let settle = { [self] (isRight: Bool) in
        let user = question.mayBeRight ? question.user : nil
        guard isRight else { return fail(attempt, address, .wrong(user: user)) }
        proven.remember(credential, hash: question.hash, at: poller.timers.now)
        let decision = access.decide(question, isRight: true, role: role)
        finish(attempt, decision, access, .none, role: role, address, isProven: true)
      }
      if isProven { return settle(question.mayBeRight) }
      attempt.check = passwords.check(question, from: address, then: settle)
      if attempt.check == nil { attempt.answer(.busy(LogInFault(.tooManyChecks, from: address))) }
    }
  }

  private func fail(_ attempt: Attempt, _ address: SocketAddress?, _ reason: LogInFault.Reason) {
    failed += 1
    let count = address.map { failures.failed(from: $0, at: poller.timers.now) }
    answerLater(attempt, .failed(LogInFault(reason, from: address, failures: count)))
  }

  /// At the next multiple of the floor.
  private func answerLater(_ attempt: Attempt, _ answer: Answer) {
    let floor = floor.nanoseconds
    guard let began = attempt.began, floor > 0 else { return attempt.answer(answer) }
    let spent = poller.timers.now &- began
    let wait = (spent / floor + 1) * floor - spent
    attempt.timer = poller.timers.after(.nanoseconds(Int64(wait))) { attempt.answer(answer) }
  }
}

/// Why a log-in failed, for the log. What the client sent is not in it, but the name of a user that there is.
struct LogInFault: Error, Hashable, CustomStringConvertible {
  enum Reason: Hashable {
    /// Not what RFC 7617 or RFC 6750 say, or several things at once.
    case broken
    case wrong(user: String?)
    case tooManyTries, tooManyChecks
  }
  let reason: Reason
  let sender: SocketAddress?
  /// Of that sender of late, this one included.
  let failures: Int?

  init(_ reason: Reason, from address: SocketAddress?, failures: Int? = nil) {
    self.reason = reason
    sender = address?.household
    self.failures = failures
  }

  var description: String {
    let text =
      switch reason {
      case .broken: "credentials that can't be read"
      case .wrong(let user?): "wrong password of \(Suggestion.quote(user))"
      case .wrong(nil): "unknown user or token"
      case .tooManyTries: "too many failed log-ins"
      case .tooManyChecks: "too many log-ins at once"
      }
    guard let sender, let failures, failures > 1 else { return text }
    return "\(text), failure \(failures) from \(sender.host)\(sender.family == .ipv6 ? "/64" : "")"
  }
}
