// Log-ins, from a client's credential to its identity: delays tries after failures, has passwords checked, counts
// failures. Handshakes use it; Access decides about roles.

import ByteStreams
import StreamBroker

/// Runs on the handshake server's lane.
final class LogIns {
  enum Answer {
    case admitted(Identity, Config.Listen.Role)
    /// HTTP 401: credentials are required.
    case asks
    /// HTTP 401 and `login-failed`.
    case failed(LogInFault)
    /// HTTP 403 and `denied`.
    case denied(Identity)
    /// HTTP 429, `login-failed`: too many tries of this address, or of all addresses, are waiting.
    case busy(LogInFault)
  }

  /// One client's log-in. After `cancel` it reports nothing more, but a check that has begun still counts.
  final class Attempt {
    fileprivate var done: ((Answer) -> Void)?
    fileprivate var timer: Timers.Token?
    fileprivate var check: Passwords.Check?
    /// Start of the credential check. Nil if nothing is checked, because a certificate alone is proof enough.
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
  /// Failed log-ins since the start, for status.
  private(set) var failed: UInt64 = 0

  /// A failed log-in is answered after this time, or a multiple of it: the time must not reveal whether the user exists
  /// or how its password is hashed. A successful one is answered at once.
  var floor: Duration { min(max(leastFloor, (checks.max() ?? .zero) * 2), Self.mostFloor) }
  private let leastFloor: Duration
  /// Used until the configuration's hashes are measured, and if there are only tokens.
  static let standardFloor = Duration.milliseconds(100)
  /// Bounded because the whole handshake has 10 s.
  private static let mostFloor = Duration.seconds(4)
  private var measured: [Secret] = []
  /// How long checks take: the slowest of the measurement, then the latest ones, since a busy machine is slower.
  private var checks: [Duration] = []
  private static let mostChecks = 16

  init(on poller: Poller, passwords: Passwords? = nil, floor: Duration = standardFloor) {
    self.poller = poller
    leastFloor = floor
    self.passwords = passwords ?? Passwords(on: poller)
    self.passwords.took = { [weak self] in self?.note($0) }
  }

  /// Authenticates a client of a listener with `role`. `credential` is nil if what the client sent is malformed. Calls
  /// `done` once, at once or later, unless the attempt is cancelled.
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

  private func note(_ check: Duration) {
    // The measurement stays: it is the first.
    if checks.count > Self.mostChecks { checks.remove(at: 1) }
    checks.append(check)
  }

  /// Sets the hashes that are in use, one of each kind, and measures them: the floor becomes twice the slowest check.
  func follow(_ hashes: [Secret]) {
    guard hashes != measured else { return }
    measured = hashes
    passwords.measure(hashes) { [weak self] slowest in
      guard let self, hashes == measured else { return }
      checks = [slowest]
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
    // Clients of unix and pty listeners have no address, and don't log in.
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
      let evaluate = { [self] (isRight: Bool) in
        let user = question.mayBeRight ? question.user : nil
        guard isRight else { return fail(attempt, address, .wrong(user: user)) }
        proven.remember(credential, hash: question.hash, at: poller.timers.now)
        let decision = access.decide(question, isRight: true, role: role)
        finish(attempt, decision, access, .none, role: role, address, isProven: true)
      }
      if isProven { return evaluate(question.mayBeRight) }
      attempt.check = passwords.check(question, from: address, then: evaluate)
      if attempt.check == nil { attempt.answer(.busy(LogInFault(.tooManyChecks, from: address))) }
    }
  }

  private func fail(_ attempt: Attempt, _ address: SocketAddress?, _ reason: LogInFault.Reason) {
    failed += 1
    let count = address.map { failures.failed(from: $0, at: poller.timers.now) }
    answerLater(attempt, .failed(LogInFault(reason, from: address, failures: count)))
  }

  /// Answers at the next multiple of the floor.
  private func answerLater(_ attempt: Attempt, _ answer: Answer) {
    let floor = floor.nanoseconds
    guard let began = attempt.began, floor > 0 else { return attempt.answer(answer) }
    let spent = poller.timers.now &- began
    let wait = (spent / floor + 1) * floor - spent
    attempt.timer = poller.timers.after(.nanoseconds(Int64(wait))) { attempt.answer(answer) }
  }
}

/// Why a log-in failed, for the log. It holds nothing that the client sent, except the name of a user that exists.
struct LogInFault: Error, Hashable, CustomStringConvertible {
  enum Reason: Hashable {
    /// Malformed by RFC 7617 or RFC 6750, or several credentials at once.
    case broken
    case wrong(user: String?)
    case tooManyTries, tooManyChecks
  }
  let reason: Reason
  let sender: SocketAddress?
  /// Recent failures of that sender, this one included.
  let failures: Int?

  init(_ reason: Reason, from address: SocketAddress?, failures: Int? = nil) {
    self.reason = reason
    sender = address?.rateLimitKey
    self.failures = failures
  }

  var description: String {
    let text =
      switch reason {
      case .broken: "malformed credentials"
      case .wrong(let user?): "wrong password for \(Suggestion.quote(user))"
      case .wrong(nil): "unknown user or token"
      case .tooManyTries: "too many failed log-ins"
      case .tooManyChecks: "too many log-ins at once"
      }
    guard let sender, let failures, failures > 1 else { return text }
    return "\(text), failure \(failures) from \(sender.host)\(sender.family == .ipv6 ? "/64" : "")"
  }
}
