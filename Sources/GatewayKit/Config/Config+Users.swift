// The configuration of users, TLS, WebSocket, listeners and limits. The networks of `allow` and `deny` are in
// `Config.Clients`, and ValueKind reads and refuses their text.

import ByteStreams
import StreamBroker

extension Config {
  /// Limits on connections and handshakes, and descriptors reserved for others.
  package struct Limits: Hashable, Sendable, KeyOwner {
    /// Most unfinished handshakes, over all addresses; nil = computed from the process's limits.
    package var handshakes: Int?
    static let mostHandshakes = 1_000_000
    package var handshakesPerAddress = 100
    /// Nil = no limit.
    package var connectsPerSecond: Int?
    /// Whether a client is refused the last descriptors if its route already has a client.
    package var reserveDescriptors = ReserveDescriptors.automatic

    package enum ReserveDescriptors: String, CaseIterable, Sendable {
      /// Reserves as many as devices, first clients of other routes and the control socket need.
      case automatic = "auto"
      case off
    }
  }

  /// Listeners for health checks, metrics and the API; off while `listen` is empty.
  package struct Admin: Hashable, Sendable, KeyOwner {
    package var listen: [Listen] = []
    /// Host names that requests may use for the gateway, besides those that it finds itself; `*` = any.
    package var hosts: [String] = []
    /// Whether listeners beyond this machine need neither TLS nor users.
    package var insecure = false
    /// Nil when no listener uses TLS.
    package var tls: TLS?
  }

  package struct TLS: Hashable, Sendable, KeyOwner {
    /// The first is for clients that send no server name (SNI).
    package var certificates: [Certificate] = []
    package var clientCA: String?
    package var clientAuth = ClientAuth.required
    package var crl: String?
    package var minVersion = Version.tls12
    /// For TLS 1.2, as an OpenSSL cipher list; nil = the built-in list.
    package var ciphers: String?

    /// Chosen by the server name (SNI) that a client sends.
    var otherCertificates: [Certificate] { Array(certificates.dropFirst()) }

    /// Paths of PEM files. Relative ones start in the folder of the config file.
    package struct Certificate: Hashable, Sendable {
      package var chain: String
      package var key: String
    }
    package enum ClientAuth: String, CaseIterable, Sendable { case required, optional }
    package enum Version: String, CaseIterable, Sendable {
      case tls12 = "1.2"
      case tls13 = "1.3"
    }
  }

  package struct WebSocket: Hashable, Sendable, KeyOwner {
    /// Origins of pages that may connect besides our own; `*` = all.
    package var origins: [String] = []
    /// Host names that pages of the same origin may use for this gateway, besides those that it finds itself; `*` =
    /// any.
    package var hosts: [String] = []
    package var deflate = false
    /// The longest message, in bytes.
    package var maxMessage = 16 << 20
    /// The silence after which a ping is sent; nil = never.
    package var ping: Duration? = .seconds(20)
  }

  package struct User: Hashable, Sendable {
    package var name: String
    /// A hash of crypt(3).
    package var password: Secret?
    package var tokens: [Secret] = []
    package var certificates: [String] = []
    /// Nil = writer on every route.
    package var roles: [Rule]?

    /// The role on all routes whose names match a pattern.
    package struct Rule: Hashable, Sendable {
      package var pattern: RoutePattern
      package var role: Role
    }

    /// What a user may do, in rising order.
    package enum Role: String, CaseIterable, Sendable {
      /// Receive, and look at the admin listener.
      case monitor
      /// Send as well.
      case writer
      /// At the admin listener, also change things.
      case admin

      /// The role of its sessions.
      package var ofSessions: Listen.Role { self == .monitor ? .monitor : .writer }
    }
  }
}

extension Config.User {
  /// The user's highest role in sessions of `route`; nil = no access.
  package func role(on route: String) -> Config.Listen.Role? { fullRole(on: route)?.ofSessions }

  /// The user's role on `route`; nil = no access. A route's own name wins over patterns, then the pattern with more
  /// letters wins, then the stricter role.
  package func fullRole(on route: String) -> Role? {
    guard let roles else { return .writer }
    let fitting = roles.filter { $0.pattern.matches(route) }
    guard let nearest = fitting.map(\.pattern.nearness).max() else { return nil }
    return fitting.filter { $0.pattern.nearness == nearest }.map(\.role).min()
  }

  /// The user's role where no route is meant: the one of the pattern `*`.
  var generalRole: Role? {
    guard let roles else { return .writer }
    return roles.filter { $0.pattern.description == "*" }.map(\.role).min()
  }

  /// Whether the user has a role on any route.
  var hasRole: Bool { roles.map { !$0.isEmpty } ?? true }
}

extension Config {
  /// One password hash for each method and cost in use, in the order of the file.
  var hashesByKind: [(kind: String, hash: Secret)] {
    var found: [(kind: String, hash: Secret)] = []
    for hash in users.compactMap(\.password) {
      guard let kind = CryptHash.kind(of: hash.reveal()), !found.contains(where: { $0.kind == kind }) else { continue }
      found.append((kind, hash))
    }
    return found
  }
}

extension Config.Listen.Role: Comparable {
  /// `monitor` is less than `writer`.
  package static func < (one: Self, other: Self) -> Bool { one == .monitor && other == .writer }
}

extension Config.User.Role: Comparable {
  /// `monitor` is less than `writer`, and that less than `admin`.
  package static func < (one: Self, other: Self) -> Bool { one.rank < other.rank }

  private var rank: Int {
    switch self {
    case .monitor: 0
    case .writer: 1
    case .admin: 2
    }
  }
}

/// A pattern for names of routes: `*` matches any letters, `?` one.
package struct RoutePattern: Hashable, Sendable, CustomStringConvertible {
  package let description: String

  package init(_ text: String) { description = text }

  package var isName: Bool { !description.contains { $0 == "*" || $0 == "?" } }
  /// A higher number wins.
  var nearness: Int { isName ? .max : description.utf8.filter { $0 != UInt8(ascii: "*") }.count }

  /// Takes time proportional to the product of both lengths at most.
  package func matches(_ name: String) -> Bool {
    let (pattern, name) = (Array(description.utf8), Array(name.utf8))
    var (index, letter) = (0, 0)
    // The index of the last `*`, and where in the name its match ends.
    var star: (index: Int, letter: Int)?
    while letter < name.count {
      if index < pattern.count, pattern[index] == UInt8(ascii: "*") {
        star = (index, letter)
        index += 1
      } else if index < pattern.count, pattern[index] == UInt8(ascii: "?") || pattern[index] == name[letter] {
        index += 1
        letter += 1
      } else if let last = star {
        star = (last.index, last.letter + 1)
        (index, letter) = (last.index + 1, last.letter + 1)
      } else {
        return false
      }
    }
    return pattern[index...].allSatisfy { $0 == UInt8(ascii: "*") }
  }
}
