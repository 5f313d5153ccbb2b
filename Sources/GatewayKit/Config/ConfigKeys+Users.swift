// Keys of users, of TLS and WebSocket listeners, of proxies and limits. `allow` and `deny` of a route are in
// ConfigKeys+Clients.swift.

import StreamBroker

extension ConfigKeys {
  /// Schemes of listeners whose clients can log in.
  static let handshakeSchemes = ListenerSchemes.schemes { $0.canLogIn(knowsCertificates: true) }

  static let users = ConfigKey(
    "users", .named(.mapping(user.map(\.key)), .any), for: .listeners(handshakeSchemes),
    says: "users that can log in")

  static let user: [BoundKey<Config.User>] = [
    BoundKey(
      "password", \.password, .optional(.secret), standard: nil,
      says: "the hash that baudway hash-password prints, or file:NAME"),
    BoundKey(
      "token", \.tokens, .oneOrMore(.secret), standard: nil,
      says: "bearer tokens, for programs: each the token itself or file:NAME"),
    BoundKey(
      "certificate", \.certificates, .oneOrMore(.text), standard: nil,
      says: "client-certificate subjects of this user: CN=ada,O=lab, or only the common or alternative name"),
    BoundKey(
      ConfigKey(
        "roles", .named(.value(.words(Config.User.Role.allCases.map(\.rawValue))), .any),
        says:
          "monitor, writer or admin, by route patterns such as lab-*; the most specific counts; default: writer on every route"
      ), reads: \.roles
    ) { rules in
      rules.map { rules in
        let items = rules.map { "\(YAMLText.scalar($0.pattern.description)): \($0.role.rawValue)" }
        return items.isEmpty ? "{}" : "{ \(items.joined(separator: ", ")) }"
      }
    },
  ]

  static let proxies = BoundKey<Config>(
    "proxies", \.proxies, .list(.network), isShown: { !$0.proxies.isEmpty },
    says: "networks from which PROXY headers are accepted")

  static let limits = KeySection<Config.Limits>(
    "limits",
    [
      BoundKey(
        "handshakes", \.handshakes, .word("auto", or: .integer(1...Config.Limits.mostHandshakes)),
        says: "unfinished handshakes at a time, from all addresses; auto: from the limits of open files and of memory"),
      BoundKey(
        "handshakes-per-address", \.handshakesPerAddress, .integer(1...100_000),
        says: "unfinished handshakes at a time from one address"),
      BoundKey(
        "connects-per-second", \.connectsPerSecond, .word("off", or: .integer(1...100_000)),
        says: "new clients per second from one address"),
      BoundKey(
        "reserve-descriptors", \.reserveDescriptors, .word,
        says:
          "whether the last open files are reserved for devices, first clients of other routes and the control socket"),
    ], says: "limits of the whole gateway")

  static let tls = KeySection<Config.TLS>(
    "tls",
    [
      BoundKey(pair[0].key, reads: \.certificates.first?.chain) { $0.map(YAMLText.scalar) },
      BoundKey(pair[1].key, reads: \.certificates.first?.key) { $0.map(YAMLText.scalar) },
      BoundKey(
        ConfigKey(
          "certificates", .mappings(pair.map(\.key)), says: "further certificates, selected by the requested name (SNI)"
        ),
        reads: \.otherCertificates
      ) { others in
        let items = others.map { "{ \(pair.items($0, isShared: true).joined(separator: ", ")) }" }
        return items.isEmpty ? nil : "[ \(items.joined(separator: ", ")) ]"
      },
      BoundKey("client-ca", \.clientCA, .optional(.path), says: "authorities that sign client certificates"),
      BoundKey(
        "client-auth", \.clientAuth, .word, isShown: { $0.clientCA != nil },
        says: "with client-ca: whether clients need a certificate"),
      BoundKey("crl", \.crl, .optional(.path), says: "with client-ca: revocation lists"),
      BoundKey("min-version", \.minVersion, .word, says: "the oldest TLS version to accept"),
      BoundKey("ciphers", \.ciphers, .optional(.text), says: "ciphers, by OpenSSL's names"),
    ], for: .listeners(ListenerSchemes.schemes(where: \.usesTLS)),
    says: "for tls, telnets, wss and https listeners")

  private static let pair: [BoundKey<Config.TLS.Certificate>] = [
    BoundKey("certificate", \.chain, .path, standard: nil, says: "the certificate chain, in PEM"),
    BoundKey("key", \.key, .path, standard: nil, says: "its private key, in PEM"),
  ]

  static let websocket = KeySection<Config.WebSocket>(
    "websocket",
    [
      BoundKey(
        "origins", \.origins, .list(.text),
        says: "web pages that may connect, in addition to the gateway's own; * allows all"),
      BoundKey(
        "hosts", \.hosts, .list(.text),
        says:
          "names of the gateway in web pages' URLs, in addition to its addresses, machine and certificate names; * allows any"
      ),
      BoundKey("deflate", \.deflate, .onOff, says: "compress messages"),
      BoundKey("max-message", \.maxMessage, .size(1...1 << 30), says: "the longest message to accept"),
      BoundKey(
        "ping", \.ping, .word("off", or: .duration(.seconds(1) ... .seconds(3600))),
        says: "send a ping after this time without input; disconnect without an answer in the same time"),
    ], for: .listeners(ListenerSchemes.schemes(where: \.usesWebSocket)), says: "for ws and wss listeners")
}
