// Which clients a route admits, and which role each one gets.

import StreamBroker
import Testing

@testable import GatewayKit

@Suite("Access to a route", .timeLimit(.minutes(5)))
struct AccessTests {
  private typealias Rule = Config.User.Rule

  private static func user(
    _ name: String, hash: String? = nil, tokens: [String] = [], certificates: [String] = [],
    roles: KeyValuePairs<String, Config.User.Role>? = nil
  ) -> Config.User {
    Config.User(
      name: name, password: hash.map { Secret($0) }, tokens: tokens.map { Secret($0) }, certificates: certificates,
      roles: roles.map { $0.map { Rule(pattern: RoutePattern($0.key), role: $0.value) } })
  }

  private static let ada = user("ada", hash: "hash of ada", tokens: ["token-of-ada-0123"], roles: ["gps": .writer])
  private static let bob = user(
    "bob", tokens: ["token-of-bob-0123"], certificates: ["CN=bob,O=lab"], roles: ["*": .monitor])
  private static let cyd = user(
    "cyd", tokens: ["token-of-cyd-0123"], certificates: ["cyd.example"], roles: ["lab-*": .writer])

  private func access(_ users: [Config.User] = [ada, bob, cyd], on route: String = "gps", only: [String]? = nil)
    -> Access
  {
    Access(users, route: route, only: only)
  }

  private func token(_ text: String) -> Credential { .token(Secret(text)) }

  @Test("is free on a route without users, and asks for credentials on a route with users")
  func free() {
    #expect(access([]).decide(.none, role: .writer) == .admitted(.anonymous, .writer))
    #expect(access([]).decide(.none, role: .monitor) == .admitted(.anonymous, .monitor))
    #expect(access().decide(.none, role: .writer) == .asks)
    // cyd is the only user, and has no role on this route.
    #expect(access([Self.cyd]).decide(.none, role: .writer) == .admitted(.anonymous, .writer))
    #expect(access([Self.cyd], only: ["cyd"]).decide(.none, role: .writer) == .asks)
  }

  @Test("has the stricter of the roles that the listener and the user allow", arguments: Config.Listen.Role.allCases)
  func stricter(listener: Config.Listen.Role) throws {
    for (user, most) in [("ada", Config.Listen.Role.writer), ("bob", .monitor)] {
      guard case .admitted(let identity, let role) = access().decide(token("token-of-\(user)-0123"), role: listener)
      else {
        Issue.record("\(user) is not let in")
        continue
      }
      #expect(identity.name == user && role == min(listener, most))
    }
  }

  @Test("is denied to a user without a role on this route, or not listed in clients.users")
  func denied() {
    let cyd = Identity(name: "cyd", proof: .token(Secret("token-of-cyd-0123")))
    #expect(access().decide(token("token-of-cyd-0123"), role: .writer) == .denied(cyd))
    let bob = Identity(name: "bob", proof: .token(Secret("token-of-bob-0123")))
    #expect(access(only: ["ada"]).decide(token("token-of-bob-0123"), role: .writer) == .denied(bob))
  }

  @Test(
    "fails for a token that differs in any character",
    arguments: ["token-of-ada-0124", "token-of-ada-012", "token-of-ada-01234", "", "Token-of-ada-0123"])
  func wrongToken(text: String) { #expect(access().decide(token(text), role: .writer) == .failed) }

  @Test("has a password checked against the user's hash; for an unknown user a check of another hash always fails")
  func passwords() throws {
    let right = Secret("secret")
    guard case .check(let question) = access().decide(.password(user: "ada", right), role: .monitor) else {
      Issue.record("no check")
      return
    }
    #expect(question.hash == Secret("hash of ada") && question.password == right && question.mayBeRight)
    let ada = Identity(name: "ada", proof: .password(question.hash))
    #expect(access().decide(question, isRight: true, role: .monitor) == .admitted(ada, .monitor))
    #expect(access().decide(question, isRight: false, role: .monitor) == .failed)
    // The hash has changed since the check began.
    let changed = access([Self.user("ada", hash: "another", roles: nil)])
    #expect(changed.decide(question, isRight: true, role: .monitor) == .failed)
    for name in ["eve", "bob"] {
      guard case .check(let question) = access().decide(.password(user: name, right), role: .writer) else {
        Issue.record("no check of \(name)")
        continue
      }
      #expect(question.hash == Secret("hash of ada") && !question.mayBeRight)
      #expect(access().decide(question, isRight: true, role: .writer) == .failed)
    }
    #expect(access([Self.bob]).decide(.password(user: "bob", right), role: .writer) == .failed)
  }

  @Test("accepts a user's certificate; another verified one only without users, or if clients.users names it")
  func certificates() {
    let bob = ClientCertificate(subject: "CN=bob,O=lab", names: ["bob"])
    #expect(
      access().decide(.none, certificate: bob, role: .writer)
        == .admitted(
          Identity(name: "bob", proof: .certificate(bob)), .monitor))
    let cyd = ClientCertificate(subject: "CN=x", names: ["x", "cyd.example"])
    #expect(
      access().decide(.none, certificate: cyd, role: .writer)
        == .denied(
          Identity(name: "cyd", proof: .certificate(cyd))))
    let stranger = ClientCertificate(subject: "CN=z,O=lab", names: ["z"])
    let known = Identity(name: "CN=z,O=lab", proof: .certificate(stranger), isUser: false)
    #expect(access().decide(.none, certificate: stranger, role: .writer) == .denied(known))
    #expect(access([]).decide(.none, certificate: stranger, role: .writer) == .admitted(known, .writer))
    // A certificate for a user's name is not that user's, even when the authority signed it.
    let namesake = ClientCertificate(subject: "CN=ada", names: ["ada"])
    let other = Identity(name: "CN=ada", proof: .certificate(namesake), isUser: false)
    #expect(access(only: ["ada"]).decide(.none, certificate: namesake, role: .writer) == .denied(other))
    #expect(access(only: ["ada"]).decide(.none, certificate: stranger, role: .writer) == .denied(known))
    #expect(access(only: ["z"]).decide(.none, certificate: stranger, role: .writer) == .admitted(known, .writer))
    #expect(
      access(only: ["CN=z,O=lab"]).decide(.none, certificate: stranger, role: .writer) == .admitted(known, .writer))
    // A token that the client sends has precedence over its certificate.
    #expect(access().decide(token("wrong"), certificate: bob, role: .writer) == .failed)
  }

  @Test("is checked again after a reload: a session without a role, or with withdrawn credentials, loses access")
  func reload() {
    func role(_ identity: Identity, _ users: [Config.User], only: [String]? = nil) -> Config.Listen.Role? {
      access(users, only: only).role(of: identity, listener: .writer)
    }
    let byToken = Identity(name: "ada", proof: .token(Secret("token-of-ada-0123")))
    let byPassword = Identity(name: "ada", proof: .password(Secret("hash of ada")))
    let same = Self.user("ada", hash: "hash of ada", tokens: ["token-of-ada-0123"], roles: ["gps": .writer])
    for identity in [byToken, byPassword] {
      #expect(role(identity, [same]) == .writer)
      #expect(role(identity, [same], only: ["bob"]) == nil)
      #expect(role(identity, [Self.user("ada", hash: "new", tokens: ["token-of-ada-0124"])]) == nil)
      #expect(role(identity, []) == nil)
      var monitor = same
      monitor.roles = [Rule(pattern: RoutePattern("*"), role: .monitor)]
      #expect(role(identity, [monitor]) == .monitor)
      monitor.roles = []
      #expect(role(identity, [monitor]) == nil)
    }
    #expect(role(.anonymous, []) == .writer && role(.anonymous, [same]) == nil)
    #expect(role(.notAsked, [same]) == .writer)
    let certificate = ClientCertificate(subject: "CN=bob,O=lab", names: [])
    let bob = Identity(name: "bob", proof: .certificate(certificate))
    #expect(role(bob, [Self.bob]) == .monitor && role(bob, [Self.bob], only: ["ada"]) == nil)
  }

  @Test("follows the most specific of a user's role patterns, and the stricter of two equally specific ones")
  func nearest() {
    let user = Self.user(
      "a", roles: ["*": .monitor, "lab-*": .writer, "lab-2": .monitor, "*-x": .writer, "?ab-9": .monitor])
    let routes = [
      "gps": "monitor", "lab-1": "writer", "lab-2": "monitor", "lab-x": "writer", "a-x": "writer", "lab-9": "monitor",
    ]
    for (route, role) in routes { #expect(user.role(on: route)?.rawValue == role, "\(route)") }
    #expect(Self.user("a", roles: ["a*": .writer, "*a": .monitor]).role(on: "aa") == .monitor)
    #expect(Self.user("a", roles: ["a*": .writer]).role(on: "b") == nil)
    #expect(Self.user("a", roles: [:]).role(on: "b") == nil && Self.user("a").role(on: "b") == .writer)
  }

  @Test(
    "matches routes by patterns",
    arguments: [
      ("*", "", true), ("*", "gps", true), ("", "", true), ("", "a", false), ("a*b*c", "abc", true),
      ("a*b*c", "axbxbc", true),
      ("a*b*c", "axbxb", false), ("?", "a", true), ("?", "", false), ("?", "ab", false), ("lab-?", "lab-12", false),
      ("**", "x", true), ("*?", "x", true), ("*?", "", false), ("*.usb", "a.b.usb", true), ("gps", "gps2", false),
    ])
  func patterns(pattern: String, name: String, fits: Bool) { #expect(RoutePattern(pattern).matches(name) == fits) }

  @Test("does not take quadratic time for a pattern of many stars")
  func bomb() {
    let pattern = RoutePattern(String(repeating: "*a", count: 2000) + "b")
    #expect(!pattern.matches(String(repeating: "a", count: 64)))
  }
}
