// Whether passwords are right, found out off the lanes: crypt(3) takes a tenth of a second on purpose, and a lane has no such
// time. What was right a moment ago is remembered, so that a page with many connections does not hash for each.

import ByteStreams
import Dispatch
import StreamBroker

/// Lives on the lane where clients are greeted.
final class Passwords {
  /// More wait for no answer.
  static let mostAtOnce = 64

  /// Answers later, on the lane.
  private let verify: (PasswordQuestion, @escaping (Bool) -> Void) -> Void
  private(set) var underWay = 0

  convenience init(on poller: Poller) {
    // One at a time: a flood of log-ins takes one core at most.
    let queue = DispatchQueue(label: "passwords")
    self.init { question, done in
      let (password, hash) = (question.password, question.hash)
      poller.offload(to: queue, { CryptHash.verify(password, against: hash) }, then: done)
    }
  }

  init(verify: @escaping (PasswordQuestion, @escaping (Bool) -> Void) -> Void) { self.verify = verify }

  /// Calls `done` later, with whether the password is right. False when too many wait: `done` is not called then.
  func check(_ question: PasswordQuestion, then done: @escaping (Bool) -> Void) -> Bool {
    guard underWay < Self.mostAtOnce else { return false }
    underWay += 1
    verify(question) { [self] isRight in
      underWay -= 1
      done(isRight && question.mayBeRight)
    }
    return true
  }
}

/// Credentials that were right a moment ago, by two keyed hashes of 64 bits each: no password stays in memory for it, and who does
/// not know the keys, which are new in each process, finds no other text that fits.
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
