// The lines of `check` about users, TLS, WebSocket and limits.

import StreamBroker

extension Config.Limits {
  var table: String {
    "{ handshakes-per-address: \(handshakesPerAddress), connects-per-second: \(connectsPerSecond.map(String.init) ?? "off") }"
  }
}

extension Config.User {
  /// Secrets are masked.
  var table: String {
    let rules = roles.map { rules in
      rules.isEmpty
        ? "roles: {}"
        : "roles: { "
          + rules.map { "\(YAMLText.scalar($0.pattern.description)): \($0.role.rawValue)" }.joined(separator: ", ")
          + " }"
    }
    let items = [
      password.map { "password: \(YAMLText.scalar($0.description))" },
      tokens.isEmpty ? nil : "token: \(YAMLText.oneOrList(tokens.map { YAMLText.scalar($0.description) }))",
      certificates.isEmpty ? nil : "certificate: \(YAMLText.oneOrList(certificates.map(YAMLText.scalar)))", rules,
    ]
    return "  \(YAMLText.scalar(name)): \(YAMLText.mapping(items.compactMap { $0 }))"
  }
}

extension Config.TLS {
  var table: String {
    let others = certificates.dropFirst().map { "{ \($0.items.joined(separator: ", ")) }" }
    let items: [String?] =
      (certificates.first?.items ?? []) + [
        others.isEmpty ? nil : "certificates: [ \(others.joined(separator: ", ")) ]",
        clientCA.map { "client-ca: \(YAMLText.scalar($0))" },
        clientCA == nil ? nil : "client-auth: \(clientAuth.rawValue)", crl.map { "crl: \(YAMLText.scalar($0))" },
        "min-version: \(YAMLText.scalar(minVersion.rawValue))", ciphers.map { "ciphers: \(YAMLText.scalar($0))" },
      ]
    return YAMLText.mapping(items.compactMap { $0 })
  }
}

extension Config.TLS.Certificate {
  fileprivate var items: [String] { ["certificate: \(YAMLText.scalar(chain))", "key: \(YAMLText.scalar(key))"] }
}

extension Config.WebSocket {
  var table: String {
    YAMLText.mapping([
      "origins: [\(origins.isEmpty ? "" : " \(origins.map(YAMLText.scalar).joined(separator: ", ")) ")]",
      "deflate: \(deflate ? "on" : "off")", "max-message: \(Units.text(bytes: maxMessage))",
      "ping: \(ping.map { Units.text($0) } ?? "off")",
    ])
  }
}
