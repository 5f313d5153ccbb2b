// What the configuration says about who may come in, and through which doors.

import ByteStreams
import StreamBroker

extension Config {
  /// What clients may do before they are let in, and what is kept from them.
  public struct Limits: Hashable, Sendable {
    /// Unfinished at a time, of all addresses; nil for what the process's limits bear.
    public var handshakes: Int?
    static let mostHandshakes = 1_000_000
    public var handshakesPerAddress: Int
    /// Nil for as many as come.
    public var connectsPerSecond: Int?
    /// Whether the last descriptors are kept from clients of routes that have one.
    public var reserveDescriptors: ReserveDescriptors

    public enum ReserveDescriptors: String, CaseIterable, Sendable {
      /// As many as devices, other routes' first clients and the control socket need.
      case automatic = "auto"
      case off
    }
  }

  public struct TLS: Hashable, Sendable {
    /// The first is shown to who asks for no name.
    public var certificates: [Certificate]
    public var clientCA: String?
    public var clientAuth: ClientAuth
    public var crl: String?
    public var minVersion: Version
    /// Of TLS 1.2, in OpenSSL's words; nil for our own choice.
    public var ciphers: String?

    /// Paths of PEM files; relative ones begin where the config file is.
    public struct Certificate: Hashable, Sendable {
      public var chain: String
      public var key: String
    }
    public enum ClientAuth: String, CaseIterable, Sendable { case required, optional }
    public enum Version: String, CaseIterable, Sendable {
      case tls12 = "1.2"
      case tls13 = "1.3"
    }
  }

  public struct WebSocket: Hashable, Sendable {
    /// Pages that may connect beside our own; `*` is all.
    public var origins: [String]
    /// Names of this gateway in URLs of pages of the same origin, beside those that it knows itself; `*` is any.
    public var hosts: [String]
    public var deflate: Bool
    /// Bytes.
    public var maxMessage: Int
    /// After so long a silence; nil for never.
    public var ping: Duration?
  }

  public struct User: Hashable, Sendable {
    public var name: String
    /// A hash of crypt(3).
    public var password: Secret?
    public var tokens: [Secret]
    public var certificates: [String]
    /// Nil for a writer everywhere.
    public var roles: [Rule]?

    /// What he may do on the routes of a pattern.
    public struct Rule: Hashable, Sendable {
      public var pattern: RoutePattern
      public var role: Listen.Role
    }
  }
}

extension Config.User {
  /// What he may do on a route at most; nil for nothing. A route's own name counts before any pattern, a pattern with more
  /// letters before one with fewer, and of two alike the stricter.
  public func role(on route: String) -> Config.Listen.Role? {
    guard let roles else { return .writer }
    let fitting = roles.filter { $0.pattern.matches(route) }
    guard let nearest = fitting.map(\.pattern.nearness).max() else { return nil }
    return fitting.filter { $0.pattern.nearness == nearest }.map(\.role).min()
  }
}

extension Config {
  /// The hash of one user's password of each method and cost that there is, in the order of the file.
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
  /// A monitor may do less.
  public static func < (one: Self, other: Self) -> Bool { one == .monitor && other == .writer }
}

extension Config.Listen {
  var usesTLS: Bool { ["tls", "wss"].contains(scheme) }
  var usesWebSocket: Bool { ["ws", "wss"].contains(scheme) }
}

/// Names of routes, with `*` for any letters and `?` for one.
public struct RoutePattern: Hashable, Sendable, CustomStringConvertible {
  public let description: String

  public init(_ text: String) { description = text }

  public var isName: Bool { !description.contains { $0 == "*" || $0 == "?" } }
  /// More is nearer.
  var nearness: Int { isName ? .max : description.utf8.filter { $0 != UInt8(ascii: "*") }.count }

  /// In time by the product of both lengths at most.
  public func matches(_ name: String) -> Bool {
    let (pattern, name) = (Array(description.utf8), Array(name.utf8))
    var (place, letter) = (0, 0)
    // Where the last * stood, and how much of the name it stands for.
    var star: (place: Int, letter: Int)?
    while letter < name.count {
      if place < pattern.count, pattern[place] == UInt8(ascii: "*") {
        star = (place, letter)
        place += 1
      } else if place < pattern.count, pattern[place] == UInt8(ascii: "?") || pattern[place] == name[letter] {
        place += 1
        letter += 1
      } else if let last = star {
        star = (last.place, last.letter + 1)
        (place, letter) = (last.place + 1, last.letter + 1)
      } else {
        return false
      }
    }
    return pattern[place...].allSatisfy { $0 == UInt8(ascii: "*") }
  }
}
