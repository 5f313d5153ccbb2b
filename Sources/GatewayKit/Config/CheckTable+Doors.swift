// The lines of `check` about users, TLS, WebSocket and limits.

import StreamBroker

extension Config.Limits {
  var table: String {
    YAMLText.mapping([
      "handshakes: \(handshakes.map(String.init) ?? "auto")", "handshakes-per-address: \(handshakesPerAddress)",
      "connects-per-second: \(connectsPerSecond.map(String.init) ?? "off")",
      "reserve-descriptors: \(reserveDescriptors.rawValue)",
    ])
  }
}

extension Config {
  /// What `check` says besides: the most that clients can cost, here and now.
  public func costs(within limits: ProcessLimits) -> String {
    let routes = routes.map(\.worstCaseMemory).reduce(0) { $0.addingReportingOverflow($1).partialValue }
    let bound = HandshakeBound(self, limits)
    let isGreeting = self.routes.flatMap(\.listen).contains(where: \.isGreeted)
    let all = routes + (isGreeting ? bound.memory : 0)
    var lines: [String] = []
    if isGreeting {
      lines.append(
        "# handshakes: at most \(bound.most) unfinished at a time, \(bound.bytesEach >> 10) KiB each: "
          + "at most \(bound.memory >> 20) MiB")
      if let parts = bound.parts {
        lines.append(
          "#   by \(limits.descriptors) open files \(parts.byDescriptors), by \(limits.memory >> 20) MiB of memory "
            + "\(parts.byMemory); both as they are where this command runs")
      }
    }
    lines.append(
      "# memory: at most \((all + (1 << 20) - 1) >> 20) MiB for clients of all routes, beside the gateway's own")
    return lines.joined(separator: "\n") + "\n"
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
    let list = { (items: [String]) in
      items.isEmpty ? "[]" : "[ \(items.map(YAMLText.scalar).joined(separator: ", ")) ]"
    }
    return YAMLText.mapping([
      "origins: \(list(origins))", "hosts: \(list(hosts))",
      "deflate: \(deflate ? "on" : "off")", "max-message: \(Units.text(bytes: maxMessage))",
      "ping: \(ping.map { Units.text($0) } ?? "off")",
    ])
  }
}
