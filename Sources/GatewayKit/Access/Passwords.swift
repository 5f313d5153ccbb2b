// Checks passwords on a queue: crypt(3) takes a tenth of a second on purpose, too long for a lane. Recent successful
// checks are remembered, so that a web page with many connections does not cost a hash for each.

import ByteStreams
import Dispatch
import StreamBroker

/// Runs on the handshake server's lane. Addresses take turns: however many checks one address requests, others wait for
/// only one of them.
final class Passwords {
  /// Checks that may run or wait; further ones are refused.
  static let mostAtOnce = 64
  /// The same for one address (IPv6: one /64).
  static let mostOfOneAddress = 8

  /// A requested check, for `forget(_:)`.
  final class Check {
    fileprivate let question: PasswordQuestion
    fileprivate let sender: SocketAddress?
    fileprivate let done: (Bool) -> Void

    fileprivate init(_ question: PasswordQuestion, _ sender: SocketAddress?, _ done: @escaping (Bool) -> Void) {
      self.question = question
      self.sender = sender
      self.done = done
    }
  }

  /// Calls back later, on the lane.
  private let verify: (PasswordQuestion, @escaping (Bool) -> Void) -> Void
  /// Measures the slowest check against these hashes; calls back later, on the lane.
  private let measure: ([Secret], @escaping (Duration) -> Void) -> Void
  /// Called with the time that each check took.
  var took: ((Duration) -> Void)?
  private let atOnce: Int
  // Checks handed to `verify`, and those that wait: one queue for each address; the first queue is next.
  private var checked: [Check] = []
  private var lines: [(sender: SocketAddress?, waiting: [Check])] = []

  var underWay: Int { checked.count + lines.reduce(0) { $0 + $1.waiting.count } }

  convenience init(on poller: Poller) {
    // One at a time: a flood of log-ins takes one core at most.
    let queue = DispatchQueue(label: "passwords")
    var report: ((Duration) -> Void)?
    self.init(atOnce: 1) { question, done in
      let (password, hash) = (question.password, question.hash)
      poller.offload(to: queue) {
        let began = monotonicNanoseconds()
        let isRight = CryptHash.verify(password, against: hash)
        return (isRight, Duration.nanoseconds(Int64(monotonicNanoseconds() - began)))
      } then: { isRight, time in
        report?(time)
        done(isRight)
      }
    } measure: { hashes, done in
      poller.offload(to: queue, { hashes.map { CryptHash.duration(of: $0) }.max() ?? .zero }, then: done)
    }
    report = { [weak self] in self?.took?($0) }
  }

  init(
    atOnce: Int, verify: @escaping (PasswordQuestion, @escaping (Bool) -> Void) -> Void,
    measure: @escaping ([Secret], @escaping (Duration) -> Void) -> Void = { _, _ in }
  ) {
    self.atOnce = atOnce
    self.verify = verify
    self.measure = measure
  }

  /// Measures the slowest check; `hashes` has one hash of each kind.
  func measure(_ hashes: [Secret], then done: @escaping (Duration) -> Void) { measure(hashes, done) }

  /// Calls `done` later, with whether the password is right. Returns nil if too many checks wait: `done` is then not
  /// called.
  func check(
    _ question: PasswordQuestion, from address: SocketAddress?, then done: @escaping (Bool) -> Void
  ) -> Check? {
    let check = Check(question, address?.rateLimitKey, done)
    let line = lines.firstIndex { $0.sender == check.sender }
    let ofHis = checked.count { $0.sender == check.sender } + (line.map { lines[$0].waiting.count } ?? 0)
    guard underWay < Self.mostAtOnce, ofHis < Self.mostOfOneAddress else { return nil }
    if let line { lines[line].waiting.append(check) } else { lines.append((check.sender, [check])) }
    goOn()
    return check
  }

  /// Drops a check that waits. One that has begun goes on.
  func forget(_ check: Check) {
    for index in lines.indices { lines[index].waiting.removeAll { $0 === check } }
    lines.removeAll(where: \.waiting.isEmpty)
  }

  private func goOn() {
    while checked.count < atOnce, !lines.isEmpty {
      var line = lines.removeFirst()
      let next = line.waiting.removeFirst()
      if !line.waiting.isEmpty { lines.append(line) }
      checked.append(next)
      verify(next.question) { [self] isRight in
        checked.removeAll { $0 === next }
        next.done(isRight && next.question.mayBeRight)
        goOn()
      }
    }
  }
}

/// Recently verified credentials, as two keyed hashes of 64 bits each. So no password stays in memory. Without the
/// keys, which are new in each process, no other text that matches can be found.
struct Proven {
  static let most = 256
  /// Nanoseconds.
  static let memory: UInt64 = 300_000_000_000

  private struct Mark: Hashable {
    let one: Int
    let other: Int
  }
  private var times: [Mark: UInt64] = [:]
  private let keys = (UInt64.random(in: .min ... .max), UInt64.random(in: .min ... .max))

  mutating func remember(_ credential: Credential, hash: Secret?, at now: UInt64) {
    if times.count >= Self.most {
      times = times.filter { now &- $0.value < Self.memory }
      if times.count >= Self.most, let oldest = times.min(by: { $0.value < $1.value }) { times[oldest.key] = nil }
    }
    times[mark(credential, hash)] = now
  }

  func knows(_ credential: Credential, hash: Secret?, at now: UInt64) -> Bool {
    times[mark(credential, hash)].map { now &- $0 < Self.memory } ?? false
  }

  private func mark(_ credential: Credential, _ hash: Secret?) -> Mark {
    func digest(_ key: UInt64) -> Int {
      var hasher = Hasher()
      hasher.combine(key)
      hasher.combine(credential)
      hasher.combine(hash)
      return hasher.finalize()
    }
    return Mark(one: digest(keys.0), other: digest(keys.1))
  }
}
