// The time of an answer must not show how close a guess was. These tests measure this thread's CPU time, with long
// texts and generous limits: an early exit would be some hundred times faster.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import GatewayKit

@Suite("The time of an answer", .timeLimit(.minutes(5)))
struct SteadyTimeTests {
  private static let length = 1 << 20

  /// Nanoseconds of CPU for one call, the least of several: other load on the machine can only add to it.
  private func cost(_ body: () -> Void) -> UInt64 {
    var least = UInt64.max
    for _ in 0..<3 {
      var (before, after) = (timespec(), timespec())
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before)
      body()
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after)
      let passed = (after.tv_sec - before.tv_sec) * 1_000_000_000 + after.tv_nsec - before.tv_nsec
      least = min(least, UInt64(max(1, passed)))
    }
    return least
  }

  private func expectAlike(_ one: UInt64, _ other: UInt64, sourceLocation: SourceLocation = #_sourceLocation) {
    #expect(max(one, other) < 4 * min(one, other), "\(one) and \(other) ns", sourceLocation: sourceLocation)
  }

  /// `length` times "a"; the others differ in the first or the last letter.
  private let text = String(repeating: "a", count: length)
  private let wrongAtFirst = "b" + String(repeating: "a", count: length - 1)
  private let wrongAtLast = String(repeating: "a", count: length - 1) + "b"

  private func access(_ users: [(name: String, token: String, hash: String)]) -> Access {
    let users = users.map {
      Config.User(
        name: $0.name, password: Secret($0.hash), tokens: [Secret($0.token)], certificates: [],
        roles: [.init(pattern: RoutePattern("*"), role: .writer)])
    }
    return Access(users, route: "gps", only: nil)
  }

  @Test("about a token does not depend on how much of it is right, nor on its user", .timed)
  func tokens() {
    let one = access([("ada", text, "hash")])
    func cost(_ access: Access, _ token: String) -> UInt64 {
      self.cost { _ = access.decide(.token(Secret(token)), role: .writer) }
    }
    #expect(one.decide(.token(Secret(wrongAtFirst)), role: .writer) == .failed)
    expectAlike(cost(one, wrongAtFirst), cost(one, wrongAtLast))
    expectAlike(cost(one, text), cost(one, wrongAtFirst))

    let texts = (0..<8).map { number in String(repeating: "\(number)", count: Self.length / 4) }
    let many = access(texts.map { ($0, $0, "hash") })
    expectAlike(cost(many, texts[0]), cost(many, texts[7]))
  }

  @Test("about a user's name does not depend on how much of it is right, nor on the user", .timed)
  func names() {
    let one = access([(text, "token", "hash")])
    func cost(_ access: Access, _ name: String) -> UInt64 {
      self.cost { _ = access.decide(.password(user: name, Secret("guess")), role: .writer) }
    }
    expectAlike(cost(one, wrongAtFirst), cost(one, wrongAtLast))
    expectAlike(cost(one, text), cost(one, wrongAtFirst))

    let texts = (0..<8).map { number in String(repeating: "\(number)", count: Self.length / 4) }
    let many = access(texts.map { ($0, $0, "hash") })
    expectAlike(cost(many, texts[0]), cost(many, texts[7]))
  }

  @Test("about a password is that of a hash of the same cost, whether the user exists or not", .timed)
  func unknownUsers() throws {
    let made = try #require(CryptHash.make("secret", prefix: "$5$", cost: 20_000))
    let access = access([("ada", "token", made)])
    func cost(_ name: String) throws -> UInt64 {
      guard case .check(let question) = access.decide(.password(user: name, Secret("guess")), role: .writer) else {
        throw Missing.check
      }
      return self.cost { _ = CryptHash.verify(question.password, against: question.hash) }
    }
    expectAlike(try cost("ada"), try cost("nobody"))
  }

  private enum Missing: Error { case check }
}
