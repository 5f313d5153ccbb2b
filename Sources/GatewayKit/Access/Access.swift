// Who may come in on a route, and what he may do there: a value that follows from `users` and `clients.users`, and the decision
// about one client. Nothing here waits: whether a password is right is for the caller to find out (Passwords) and to say.

import ByteStreams
import StreamBroker

public struct Access: Hashable, Sendable {
  /// A user as one route sees him.
  public struct Member: Hashable, Sendable {
    public let name: String
    let password: Secret?
    let tokens: [Secret]
    let certificates: [String]
    /// Nil where he may do nothing.
    let role: Config.Listen.Role?
  }

  /// All users of the file: one who may do nothing here is told so, and not that nobody knows him.
  let members: [Member]
  /// Names of users and subjects of certificates that may come, where that is said.
  let only: [String]?

  /// For routes none of whose listeners can ask.
  static let open = Access(members: [], only: nil)

  private init(members: [Member], only: [String]?) {
    self.members = members
    self.only = only
  }

  init(_ users: [Config.User], route: String, only: [String]?) {
    members = users.map {
      Member(
        name: $0.name, password: $0.password, tokens: $0.tokens, certificates: $0.certificates, role: $0.role(on: route)
      )
    }
    self.only = only
  }

  /// Whether who says nothing of himself is asked to: as soon as somebody is named who may come.
  public var asks: Bool { only != nil || members.contains { $0.role != nil } }
}

/// What a client shows to say who he is.
public enum Credential: Hashable, Sendable {
  case none
  case password(user: String, Secret)
  case token(Secret)
}

/// What a verified certificate of a client says.
public struct ClientCertificate: Hashable, Sendable {
  /// As RFC 2253 writes it: `CN=ada,O=lab`.
  public var subject: String
  /// Common name and alternative names.
  public var names: [String]

  public init(subject: String, names: [String]) {
    self.subject = subject
    self.names = names
  }

  /// The subject whole, or one of the names.
  func isCalled(_ name: String) -> Bool { subject == name || names.contains(name) }
}

/// Who a client turned out to be.
public struct Identity: Hashable, Sendable {
  /// For log and status: the user's name, else the subject of his certificate; nil for who did not have to say.
  public let name: String?
  /// What let him in; if that is the user's no longer, it lets him in no longer.
  enum Proof: Hashable, Sendable {
    /// His listener can't ask.
    case notAsked
    case nothing
    /// The hash that it was checked against.
    case password(Secret)
    case token(Secret)
    case certificate(ClientCertificate)
  }
  let proof: Proof
  /// False for a certificate that is no user's.
  var isUser = true

  /// Of a listener that can't ask.
  public static let notAsked = Identity(name: nil, proof: .notAsked)
  /// He could have said who he is.
  public static let anonymous = Identity(name: nil, proof: .nothing)
}

extension Access {
  public enum Decision: Equatable, Sendable {
    case admitted(Identity, Config.Listen.Role)
    /// HTTP 401: he said nothing, and must.
    case asks
    /// HTTP 401, `login-failed`: what he said is wrong.
    case failed
    /// HTTP 403, `denied`: known, and not let in.
    case denied(Identity)
    /// Find out whether `password` is right, then ask `decide(_:isRight:…)`.
    case check(PasswordQuestion)
  }

  /// About a client of a listener whose clients may be at most `role`. What he shows counts before his certificate.
  public func decide(
    _ credential: Credential, certificate: ClientCertificate? = nil, role: Config.Listen.Role
  ) -> Decision {
    switch credential {
    case .none:
      guard let certificate else { return asks ? .asks : .admitted(.anonymous, role) }
      return decide(certificate, role)
    case .token(let shown):
      // All are compared, whichever fits: how long it takes must not tell how near a guess was.
      var found: (Member, Secret)?
      for member in members {
        for token in member.tokens where shown.isSame(as: token) { found = (member, token) }
      }
      guard let (member, token) = found else { return .failed }
      return decide(member, .token(token), role)
    case .password(let name, let password):
      // One nobody knows costs as much as one who exists; nor is it told how much of a name was right.
      var hash: Secret?
      for member in members where SteadyTime.isSame(name, member.name) { hash = member.password }
      guard let sample = hash ?? members.lazy.compactMap(\.password).first else { return .failed }
      return .check(PasswordQuestion(user: name, password: password, hash: sample, mayBeRight: hash != nil))
    }
  }

  /// The same once it is known whether the password of `question` is right.
  public func decide(_ question: PasswordQuestion, isRight: Bool, role: Config.Listen.Role) -> Decision {
    guard isRight, question.mayBeRight, let member = members.first(where: { $0.name == question.user }),
      member.password == question.hash
    else { return .failed }
    return decide(member, .password(question.hash), role)
  }

  private func decide(_ member: Member, _ proof: Identity.Proof, _ role: Config.Listen.Role) -> Decision {
    let identity = Identity(name: member.name, proof: proof)
    guard let most = member.role, only?.contains(member.name) ?? true else { return .denied(identity) }
    return .admitted(identity, min(role, most))
  }

  private func decide(_ certificate: ClientCertificate, _ role: Config.Listen.Role) -> Decision {
    let user = members.first { $0.certificates.contains(where: certificate.isCalled) }
    let identity = Identity(
      name: user?.name ?? certificate.subject, proof: .certificate(certificate), isUser: user != nil)
    if let only, !only.contains(where: { $0 == user?.name || isCalled($0, certificate) }) { return .denied(identity) }
    // Who is no user of ours has the word of the authority that signed; where users have roles, that is not enough, or who has
    // none could do more than they.
    guard let user else {
      return only == nil && members.contains { $0.role != nil } ? .denied(identity) : .admitted(identity, role)
    }
    return user.role.map { .admitted(identity, min(role, $0)) } ?? .denied(identity)
  }

  /// Not by the name of a user: who he is, is what his own entry says.
  private func isCalled(_ name: String, _ certificate: ClientCertificate) -> Bool {
    !members.contains { $0.name == name } && certificate.isCalled(name)
  }

  /// What one who is here may do from now on, by other rules than those he came in by; nil if he is not let in any more.
  public func role(of identity: Identity, listener role: Config.Listen.Role) -> Config.Listen.Role? {
    let decision: Decision
    switch identity.proof {
    case .notAsked: return role
    case .nothing: return asks ? nil : role
    case .certificate(let certificate): decision = decide(certificate, role)
    case .token(let token):
      guard let member = members.first(where: { $0.name == identity.name && $0.tokens.contains(token) }) else {
        return nil
      }
      decision = decide(member, identity.proof, role)
    case .password(let hash):
      guard let member = members.first(where: { $0.name == identity.name && $0.password == hash }) else { return nil }
      decision = decide(member, identity.proof, role)
    }
    guard case .admitted(_, let role) = decision else { return nil }
    return role
  }
}

extension Access {
  /// Whether a client may go on being what he is. `couldBeAsked` where his listener asks now who one is, whether or not it did
  /// when he came.
  func admits(_ client: Arrival.Label, couldBeAsked: Bool = false) -> Bool {
    let identity = couldBeAsked && client.identity == .notAsked ? .anonymous : client.identity
    return role(of: identity, listener: client.role) == client.role
  }
}

/// A password to be checked.
public struct PasswordQuestion: Hashable, Sendable {
  public let user: String
  let password: Secret
  let hash: Secret
  /// False for a user who has none: the check is made all the same, and its answer does not count.
  let mayBeRight: Bool
}

extension Secret {
  /// In time by the length of `other` alone.
  func isSame(as other: Secret) -> Bool { SteadyTime.isSame(reveal(), other.reveal()) }
}

/// Comparisons whose time does not tell how near a guess was.
enum SteadyTime {
  /// By the bytes, in time by the length of `known` alone.
  static func isSame(_ guess: String, _ known: String) -> Bool {
    let (guess, known) = (Array(guess.utf8), Array(known.utf8))
    var difference = guess.count ^ known.count
    for index in known.indices {
      difference |= Int((index < guess.count ? guess[index] : 0) ^ known[index])
    }
    return difference == 0
  }
}
