// Log-ins on a manual clock: which ones wait, which are checked, and which are counted.

import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("Failures to log in", .timeLimit(.minutes(5)))
struct LogInFailuresTests {
  private let here = SocketAddress(numeric: "192.0.2.1", port: 7)!
  private let second: UInt64 = 1_000_000_000

  @Test("cost nothing at first, then a pause that doubles, for every port of the address")
  func pauses() {
    var failures = LogInFailures()
    var now: UInt64 = 5
    var pauses: [UInt64] = []
    for count in 1...8 {
      let time = failures.next(from: here.with(port: UInt16(count)), at: now)!
      pauses.append((time - now) / 1_000_000)
      now = time
      #expect(failures.failed(from: here, at: now) == count)
    }
    #expect(pauses == [0, 0, 0, 500, 1000, 2000, 4000, 4000])
    #expect(failures.next(from: SocketAddress(numeric: "192.0.2.2", port: 7)!, at: now) == now)
  }

  @Test("delay simultaneous tries of an address one after the other, and refuse those that would wait too long")
  func parallel() {
    var failures = LogInFailures()
    for _ in 0..<5 { _ = failures.failed(from: here, at: 0) }
    let times = (0..<10).map { _ in failures.next(from: here, at: 0).map { $0 / second } }
    #expect(times == [2, 4, 6, 8] + Array(repeating: nil, count: 6))
    #expect(failures.next(from: here, at: 8 * second) == 10 * second)
  }

  @Test("are forgotten one by one, each minute")
  func forgotten() {
    var failures = LogInFailures()
    for _ in 0..<5 { _ = failures.failed(from: here, at: 0) }
    #expect(failures.failed(from: here, at: 130 * second) == 4)
    #expect(failures.next(from: here, at: 1000 * second) == 1000 * second && failures.count == 0)
  }

  @Test("are remembered for a limited number of addresses, and an IPv6 network counts as one")
  func bounded() {
    var failures = LogInFailures()
    for number in 0..<5000 {
      let address = SocketAddress(numeric: "10.0.\(number >> 8).\(number & 255)", port: 1)!
      _ = failures.failed(from: address, at: UInt64(number))
    }
    #expect(failures.count == LogInFailures.most)
    var network = LogInFailures()
    for host in 1...3 { _ = network.failed(from: SocketAddress(numeric: "2001:db8::\(host)", port: 1)!, at: 0) }
    #expect(network.failed(from: SocketAddress(numeric: "::ffff:192.0.2.1", port: 2)!, at: 0) == 1)
    #expect(network.count == 2 && network.failed(from: here, at: 0) == 2)
    #expect(network.failed(from: SocketAddress(numeric: "2001:db8:0:0:ffff::9", port: 1)!, at: 0) == 4)
    #expect(network.failed(from: SocketAddress(numeric: "2001:db8:0:1::1", port: 1)!, at: 0) == 1)
  }
}

@Suite("A log-in", .timeLimit(.minutes(5)))
struct LogInTests {
  /// Passwords are checked when the test says so.
  private final class Rig {
    let clock = ManualClock()
    let poller: Poller
    var questions: [(question: PasswordQuestion, done: (Bool) -> Void)] = []
    let passwords: Passwords
    private(set) var logIns: LogIns!
    var answers: [String] = []

    var measured: [(hashes: [Secret], done: (Duration) -> Void)] = []

    init(atOnce: Int = .max, floor: Duration = .zero) throws {
      poller = try Poller(clock: clock.clock) { _ in }
      weak var me: Rig?
      passwords = Passwords(atOnce: atOnce) {
        me!.questions.append(($0, $1))
      } measure: {
        me!.measured.append(($0, $1))
      }
      me = self
      logIns = LogIns(on: poller, passwords: passwords, floor: floor)
    }

    @discardableResult
    func begin(
      _ credential: Credential?, _ users: [Config.User]? = nil, role: Config.Listen.Role = .writer,
      from host: String = "192.0.2.1"
    ) -> LogIns.Attempt {
      let access = Access(users ?? [ada], route: "gps", only: nil)
      return logIns.begin(
        access, credential, certificate: nil, role: role, from: SocketAddress(numeric: host, port: 1)
      ) { [unowned self] answer in
        answers.append(text(answer))
      }
    }

    private func text(_ answer: LogIns.Answer) -> String {
      switch answer {
      case .admitted(let identity, let role): "\(identity.name ?? "anybody") \(role)"
      case .asks: "asks"
      case .failed(let fault): "failed: \(fault)"
      case .denied(let identity): "denied \(identity.name ?? "")"
      case .busy(let fault): "busy: \(fault)"
      }
    }

    func pass(_ time: Duration) {
      clock.advance(by: time)
      poller.timers.fireDue()
    }

    let ada = Config.User(
      name: "ada", password: Secret("hash"), tokens: [Secret("token-of-ada-0123")], certificates: [], roles: nil)
  }

  private let token = Credential.token(Secret("token-of-ada-0123"))
  private let password = Credential.password(user: "ada", Secret("secret"))

  @Test("with a token is decided at once, and so is one without credentials")
  func atOnce() throws {
    let rig = try Rig()
    rig.begin(token, role: .monitor)
    rig.begin(Credential.none)
    rig.begin(Credential.none, [])
    #expect(rig.answers == ["ada monitor", "asks", "anybody writer"] && rig.logIns.failed == 0)
  }

  @Test("with a password waits for the check; once it was right, the same password needs no check for a while")
  func cached() throws {
    let rig = try Rig()
    rig.begin(password)
    #expect(rig.answers == [] && rig.questions.count == 1)
    rig.questions[0].done(true)
    rig.begin(password)
    #expect(rig.answers == ["ada writer", "ada writer"] && rig.questions.count == 1)
    // Another password, name or hash needs a check.
    rig.begin(.password(user: "ada", Secret("Secret")))
    rig.begin(.password(user: "eve", Secret("secret")))
    var changed = rig.ada
    changed.password = Secret("changed")
    rig.begin(password, [changed])
    #expect(rig.questions.count == 4)
    rig.pass(.seconds(301))
    rig.begin(password)
    #expect(rig.questions.count == 5)
  }

  @Test("that fails is reported without the credentials, and counted; for an unknown user it costs a check too")
  func failing() throws {
    let rig = try Rig()
    rig.begin(password)
    rig.begin(.password(user: "hunter2", Secret("secret")))
    rig.questions[0].done(false)
    rig.questions[1].done(true)
    rig.begin(.token(Secret("token-of-ada-0124")), from: "2001:db8::1")
    rig.begin(.token(Secret("token-of-ada-0124")), from: "2001:db8::2")
    rig.begin(nil, from: "192.0.2.9")
    #expect(
      rig.answers == [
        "failed: wrong password for 'ada'", "failed: unknown user or token, failure 2 from 192.0.2.1",
        "failed: unknown user or token", "failed: unknown user or token, failure 2 from 2001:db8::/64",
        "failed: malformed credentials",
      ])
    #expect(rig.logIns.failed == 5)
  }

  @Test("that fails is answered after one fixed time, whatever the cause and however long the check took")
  func floor() throws {
    let rig = try Rig(floor: .milliseconds(100))
    rig.begin(password, from: "10.0.0.1")
    rig.begin(.password(user: "eve", Secret("secret")), from: "10.0.0.2")
    rig.begin(.token(Secret("wrong-wrong-wrong")), from: "10.0.0.3")
    rig.begin(nil, from: "10.0.0.4")
    rig.begin(.password(user: "ada", Secret("x")), [], from: "10.0.0.5")  // no user has a password here
    rig.questions[1].done(false)
    rig.pass(.milliseconds(60))
    rig.questions[0].done(false)
    rig.pass(.milliseconds(39))
    #expect(rig.answers == [])
    rig.pass(.milliseconds(1))
    #expect(rig.answers.count == 5 && rig.answers.allSatisfy { $0.hasPrefix("failed") })
    // A slower failure is answered at the next multiple of that time. A success, or no credentials, is answered at
    // once.
    rig.begin(.password(user: "ada", Secret("y")), from: "10.0.0.6")
    rig.pass(.milliseconds(110))
    rig.questions[2].done(false)
    rig.begin(password, from: "10.0.0.7")
    rig.questions[3].done(true)
    rig.begin(Credential.none, from: "10.0.0.8")
    #expect(Array(rig.answers[5...]) == ["ada writer", "asks"])
    rig.pass(.milliseconds(89))
    #expect(rig.answers.count == 7)
    rig.pass(.milliseconds(1))
    #expect(rig.answers.count == 8)
  }

  @Test("of a known user without a role takes as long as one that fails")
  func floorOfDenied() throws {
    let rig = try Rig(floor: .milliseconds(100))
    var bob = rig.ada
    bob.roles = []
    rig.begin(token, [bob], from: "10.0.0.1")
    rig.begin(password, [bob], from: "10.0.0.2")
    rig.questions[0].done(true)
    rig.pass(.milliseconds(99))
    #expect(rig.answers == [])
    rig.pass(.milliseconds(1))
    #expect(rig.answers == ["denied ada", "denied ada"])
  }

  @Test("has a fixed time that follows the slowest kind of hash, and a cancelled log-in gets no answer")
  func measuring() throws {
    let rig = try Rig(floor: .milliseconds(100))
    let hashes = [Secret("$y$j9T$a$b"), Secret("$6$a$b")]
    rig.logIns.follow(hashes)
    rig.logIns.follow(hashes)
    #expect(rig.measured.count == 1 && rig.measured[0].hashes == hashes)
    rig.measured[0].done(.milliseconds(20))
    #expect(rig.logIns.floor == .milliseconds(100))
    rig.logIns.follow([hashes[0]])
    rig.measured[1].done(.milliseconds(120))
    #expect(rig.logIns.floor == .milliseconds(240))
    rig.logIns.follow([])
    rig.measured[2].done(.seconds(60))
    #expect(rig.logIns.floor == .seconds(4))
    let attempt = rig.begin(.token(Secret("wrong-wrong-wrong")))
    rig.logIns.cancel(attempt)
    rig.pass(.seconds(10))
    #expect(rig.answers == [])
  }

  @Test("is answered later while checks take longer than when they were measured, as on a busy machine")
  func busyMachine() throws {
    let rig = try Rig(floor: .milliseconds(100))
    rig.logIns.follow([Secret("$6$a$b")])
    rig.measured[0].done(.milliseconds(60))
    rig.passwords.took?(.milliseconds(150))
    #expect(rig.logIns.floor == .milliseconds(300))
    for _ in 0..<16 { rig.passwords.took?(.milliseconds(20)) }
    #expect(rig.logIns.floor == .milliseconds(120))
    rig.passwords.took?(.seconds(9))
    #expect(rig.logIns.floor == .seconds(4))
  }

  @Test("from an address with failures waits, right or wrong, unless the same was right a moment ago")
  func delayed() throws {
    let rig = try Rig()
    rig.begin(token)
    for _ in 0..<4 { rig.begin(.token(Secret("wrong-wrong-wrong"))) }
    #expect(rig.answers.count == 4, "the fourth waits")
    rig.begin(password)
    rig.begin(token)
    #expect(rig.answers.last == "ada writer" && rig.answers.count == 5)
    rig.begin(Credential.none)
    #expect(rig.answers.last == "asks")
    rig.pass(.milliseconds(499))
    #expect(rig.answers.count == 6)
    rig.pass(.milliseconds(1))
    #expect(rig.answers.count == 7 && rig.questions.isEmpty)
    rig.pass(.seconds(1))
    #expect(rig.questions.count == 1)
    // Another address does not wait.
    rig.begin(password, from: "192.0.2.2")
    #expect(rig.questions.count == 2)
  }

  @Test("is refused at once when too many wait, from one address or for the check")
  func busy() throws {
    let rig = try Rig()
    for _ in 0..<5 { rig.begin(.token(Secret("wrong-wrong-wrong"))); rig.pass(.seconds(4)) }
    let before = rig.answers.count
    for _ in 0..<20 { rig.begin(password) }
    #expect(Set(rig.answers[before...]) == ["busy: too many failed log-ins"])
    let other = try Rig()
    for number in 0..<70 { other.begin(password, from: "10.0.0.\(number)") }
    #expect(other.questions.count == Passwords.mostAtOnce)
    #expect(other.answers == Array(repeating: "busy: too many log-ins at once", count: 6))
    for question in other.questions { question.done(true) }
    #expect(other.answers.count == 70)
    other.begin(.password(user: "ada", Secret("x")))
    #expect(other.questions.count == Passwords.mostAtOnce + 1, "there is room again")
  }

  @Test("that is cancelled gets no answer; a check already begun still counts")
  func cancelled() throws {
    let rig = try Rig()
    let attempt = rig.begin(password)
    rig.logIns.cancel(attempt)
    rig.questions[0].done(false)
    #expect(rig.answers == [] && rig.logIns.failed == 1)
    for _ in 0..<4 { rig.begin(nil) }
    let waiting = rig.begin(password)
    rig.logIns.cancel(waiting)
    rig.pass(.seconds(60))
    #expect(rig.questions.count == 1)
  }

  @Test("waits for one check of each other address, however many one address wants, and for none that was cancelled")
  func turns() throws {
    let rig = try Rig(atOnce: 1)
    let flood = (0..<20).map { rig.begin(.password(user: "ada", Secret("guess \($0)"))) }
    #expect(rig.answers == Array(repeating: "busy: too many log-ins at once", count: 20 - Passwords.mostOfOneAddress))
    for host in ["192.0.2.2", "192.0.2.3"] { rig.begin(password, from: host) }
    #expect(rig.questions.count == 1)
    rig.answers = []
    // The check in progress, and at most one more of the flood before each of the two.
    for place in 0..<5 where rig.answers.count(where: { $0 == "ada writer" }) < 2 {
      rig.questions[place].done(rig.questions[place].question.password == Secret("secret"))
    }
    #expect(rig.answers.count(where: { $0 == "ada writer" }) == 2)
    // Cancelled log-ins lose their waiting checks, but not the one in progress.
    for attempt in flood { rig.logIns.cancel(attempt) }
    let asked = rig.questions.count
    rig.questions[asked - 1].done(false)
    #expect(rig.questions.count == asked)
  }

  @Test("that was right is remembered for a limited number of credentials")
  func bounded() {
    var proven = Proven()
    for number in 0..<1000 { proven.remember(.token(Secret("\(number)")), hash: nil, at: UInt64(number)) }
    let known = (0..<1000).filter { proven.knows(.token(Secret("\($0)")), hash: nil, at: 1000) }
    #expect(known.count == Proven.most && known.last == 999 && known.first == 1000 - Proven.most)
  }
}

@Suite("A hash of crypt(3)", .timeLimit(.minutes(5)))
struct CryptHashTests {
  @Test(
    "matches only its password, with every method that we create",
    arguments: [("$y$", 1), ("$2b$", 4), ("$6$", 1000), ("$5$", 1000)])
  func verify(prefix: String, cost: UInt) throws {
    let hash = try #require(CryptHash.make("sëcret", prefix: prefix, cost: cost))
    #expect(hash.hasPrefix(prefix) && CryptHash.fault(of: hash) == nil)
    #expect(CryptHash.make("sëcret", prefix: prefix, cost: cost) != hash, "another salt")
    #expect(CryptHash.verify(Secret("sëcret"), against: Secret(hash)))
    for other in ["secret", "sëcre", "sëcret ", "", "sëcret\0"] {
      #expect(!CryptHash.verify(Secret(other), against: Secret(hash)), "\(other)")
    }
  }

  /// Made by other programs: crypt(3) of Python, mkpasswd, htpasswd.
  @Test(
    "may come from other programs",
    arguments: [
      "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1",
      "$6$rounds=10000$saltstringsaltst$OW1/O6BYHV6BcXZu8QVeXbDWra3Oeqh0sbHbbMCVNSnCM/UrjmM0Dp8vOuZeHBy/YTBmSK6H9qs/y3RnOaw5v.",
    ])
  func elsewhere(hash: String) {
    #expect(CryptHash.fault(of: hash) == nil)
    #expect(CryptHash.verify(Secret("Hello world!"), against: Secret(hash)))
    #expect(!CryptHash.verify(Secret("Hello world"), against: Secret(hash)))
  }

  @Test(
    "names its method and its cost",
    arguments: [
      ("$y$j9T$F5Jx5fExrKuPp53xLKQ..1$X3DX6M94c7o.9agCG9G317fhZg9SqC.5i5rd.RhAtQ7", "$y$j9T"),
      ("$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl", "$6$rounds=5000"),
      ("$6$rounds=10000$saltstringsaltst$OW1", "$6$rounds=10000"), ("$5$salt$x", "$5$rounds=5000"),
      ("$2b$10$abcdefghijklmnopqrstuv", "$2b$10"), ("$7$CU..../....salt$x", "$7$CU..../...."), ("$1$x$y", nil),
    ])
  func kind(hash: String, kind: String?) { #expect(CryptHash.kind(of: hash) == kind) }

  @Test(
    "must be complete, and of a current method",
    arguments: [
      "", "x", "letmein1", "$", "$y$", "$y$j9T$F5Jx5fExrKuP", "$y$j9T$F5Jx5fExrKuP$", "$1$salt$qJH7.N4xYta3aEG/dfqo/0",
      "$6$salt$x", "$6$rounds=1000$x", "abJnggxhB/yWI", "*", "!", "$2b$10$abc", "$md5$x$y",
      "$6$sa:t$\(String(repeating: "a", count: 86))", "$6$salt$\(String(repeating: "a", count: 86))\n",
    ])
  func faults(text: String) throws {
    let fault = try #require(CryptHash.fault(of: text))
    #expect(text.count < 6 || !fault.contains(text))
  }

  @Test("is not created from a password that crypt(3) would truncate")
  func limits() {
    #expect(CryptHash.make("a\0b") == nil)
    #expect(CryptHash.make(String(repeating: "x", count: CryptHash.longestPassword + 1), cost: 1) == nil)
    #expect(CryptHash.make(String(repeating: "x", count: CryptHash.longestPassword), cost: 1) != nil)
    #expect(CryptHash.make("x", prefix: "$nothing$") == nil)
  }

  @Test("is computed on another queue, and the result comes back to the lane")
  func besideTheLane() async throws {
    let hash = try #require(CryptHash.make("secret", prefix: "$y$", cost: 1))
    let lane = try Lane("passwords")
    let answers = await withCheckedContinuation { continuation in
      lane.post { lane in
        let passwords = Passwords(on: lane.poller)
        var answers: [Bool] = []
        for text in ["secret", "other"] {
          let question = PasswordQuestion(user: "a", password: Secret(text), hash: Secret(hash), mayBeRight: true)
          _ = passwords.check(question, from: nil) { isRight in
            lane.assertIsolated()
            answers.append(isRight)
            if answers.count == 2 { continuation.resume(returning: answers) }
          }
        }
        precondition(passwords.underWay == 2 && answers.isEmpty)
      }
    }
    #expect(answers == [true, false])
  }
}
