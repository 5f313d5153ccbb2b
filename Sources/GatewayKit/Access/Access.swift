// Which users and certificates a route admits, and their roles: a value made from `users` and `clients.users`, and the
// decision about one client. Nothing here blocks: the caller checks passwords (Passwords) and passes the result. The
// addresses of `allow` and `deny` are an AddressBlock, whose text ValueKind reads and refuses.

import ByteStreams
import StreamBroker

package struct Access: Hashable, Sendable {
  /// A user, with its role on one route.
  package struct Member: Hashable, Sendable {
    package let name: String
    let password: Secret?
    let tokens: [Secret]
    let certificates: [String]
    /// Nil if the user has no role on this route.
    let role: Config.Listen.Role?
  }

  /// All users of the configuration. A user without a role on this route is refused as `denied`, not as unknown.
  let members: [Member]
  /// `clients.users`: the only users, and names of certificates, that are admitted; nil if not configured.
  let only: [String]?

  /// For routes without a listener that can authenticate clients.
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

  /// For the admin listener: users with a role on any route may log in; `AdminCaller` decides what each may do.
  init(admin users: [Config.User]) {
    members = users.map {
      Member(
        name: $0.name, password: $0.password, tokens: $0.tokens, certificates: $0.certificates,
        role: $0.hasRole ? .writer : nil)
    }
    only = nil
  }

  /// Whether clients must authenticate: as soon as the configuration names a user that is admitted.
  package var asks: Bool { only != nil || members.contains { $0.role != nil } }
}

/// What a client sends to authenticate.
package enum Credential: Hashable, Sendable {
  case none
  case password(user: String, Secret)
  case token(Secret)
}

/// The names in a client's verified certificate.
package struct ClientCertificate: Hashable, Sendable {
  /// In the form of RFC 2253: `CN=ada,O=lab`.
  package var subject: String
  /// Common name and alternative names.
  package var names: [String]

  package init(subject: String, names: [String]) {
    self.subject = subject
    self.names = names
  }

  /// Whether `name` is the whole subject or one of the names.
  func isCalled(_ name: String) -> Bool { subject == name || names.contains(name) }
}

/// The authenticated identity of a client.
package struct Identity: Hashable, Sendable {
  /// For log and status: the user's name, else the certificate's subject; nil for a client that did not authenticate.
  package let name: String?
  /// The credential that admitted the client. When the user no longer has it, the client is no longer admitted.
  enum Proof: Hashable, Sendable {
    /// The listener can't authenticate clients.
    case notAsked
    case nothing
    /// The hash that the password was checked against.
    case password(Secret)
    case token(Secret)
    case certificate(ClientCertificate)
  }
  let proof: Proof
  /// False for a certificate that belongs to no user.
  var isUser = true

  /// A client of a listener that can't authenticate.
  package static let notAsked = Identity(name: nil, proof: .notAsked)
  /// A client that could have authenticated and did not.
  package static let anonymous = Identity(name: nil, proof: .nothing)
}

extension Access {
  package enum Decision: Equatable, Sendable {
    case admitted(Identity, Config.Listen.Role)
    /// HTTP 401: credentials are missing and required.
    case asks
    /// HTTP 401, `login-failed`: the credentials are wrong.
    case failed
    /// HTTP 403, `denied`: the identity is known, but not admitted.
    case denied(Identity)
    /// Check the password, then call `decide(_:isRight:…)`.
    case check(PasswordQuestion)
  }

  /// Decides about a client of a listener whose clients have at most `role`. A credential takes precedence over the
  /// certificate.
  package func decide(
    _ credential: Credential, certificate: ClientCertificate? = nil, role: Config.Listen.Role
  ) -> Decision {
    switch credential {
    case .none:
      guard let certificate else { return asks ? .asks : .admitted(.anonymous, role) }
      return decide(certificate, role)
    case .token(let shown):
      // Compares with all tokens, even after a match: the time must not reveal how near a guess was.
      var found: (Member, Secret)?
      for member in members {
        for token in member.tokens where shown.isSame(as: token) { found = (member, token) }
      }
      guard let (member, token) = found else { return .failed }
      return decide(member, .token(token), role)
    case .password(let name, let password):
      // An unknown user costs as much time as a known one, and the time does not reveal how much of a name was right.
      var hash: Secret?
      for member in members where SteadyTime.isSame(name, member.name) { hash = member.password }
      guard let sample = hash ?? members.lazy.compactMap(\.password).first else { return .failed }
      return .check(PasswordQuestion(user: name, password: password, hash: sample, mayBeRight: hash != nil))
    }
  }

  /// The decision after the password check of `question`.
  package func decide(_ question: PasswordQuestion, isRight: Bool, role: Config.Listen.Role) -> Decision {
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
    // A certificate without a user is admitted because its authority signed it. If users have roles, that is not
    // enough: such a certificate could otherwise do more than the users can.
    guard let user else {
      return only == nil && members.contains { $0.role != nil } ? .denied(identity) : .admitted(identity, role)
    }
    return user.role.map { .admitted(identity, min(role, $0)) } ?? .denied(identity)
  }

  /// Whether the certificate has this name. A user's name does not count: only the user's own entry lists its
  /// certificates.
  private func isCalled(_ name: String, _ certificate: ClientCertificate) -> Bool {
    !members.contains { $0.name == name } && certificate.isCalled(name)
  }

  /// The role of a present client by these rules, which may be newer than the client; nil if it is no longer admitted.
  package func role(of identity: Identity, listener role: Config.Listen.Role) -> Config.Listen.Role? {
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
  /// Whether these rules still give a present client the same role. `couldBeAsked`: its listener authenticates clients
  /// now, even if it did not when the client connected.
  func admits(_ client: AcceptedConnection.Label, couldBeAsked: Bool = false) -> Bool {
    let identity = couldBeAsked && client.identity == .notAsked ? .anonymous : client.identity
    return role(of: identity, listener: client.role) == client.role
  }
}

/// A password to check.
package struct PasswordQuestion: Hashable, Sendable {
  package let user: String
  let password: Secret
  let hash: Secret
  /// False if the user has no password or does not exist: the check runs all the same, and its result is ignored.
  let mayBeRight: Bool
}

extension Secret {
  /// The time taken depends only on the length of `other`.
  func isSame(as other: Secret) -> Bool { SteadyTime.isSame(reveal(), other.reveal()) }
}

/// Comparisons whose time does not reveal how near a guess was.
enum SteadyTime {
  /// Compares bytes. The time taken depends only on the length of `known`.
  static func isSame(_ guess: String, _ known: String) -> Bool {
    let (guess, known) = (Array(guess.utf8), Array(known.utf8))
    var difference = guess.count ^ known.count
    for index in known.indices {
      difference |= Int((index < guess.count ? guess[index] : 0) ^ known[index])
    }
    return difference == 0
  }
}
