// Settings → users and log-ins, TLS and WebSocket of listeners. The networks of `allow` and `deny` are read by
// ValueKind.network.

import StreamBroker
import StreamTLS
import StreamWebSocket

extension ConfigBuilder {
  /// Reports a listener for proxies only, where 'proxies' names no network.
  mutating func checkProxies(_ listener: ConfigURL) {
    guard Config.Listen(url: listener.url).isProxied else { return }
    if case .list(let networks)? = top.settings["proxies"]?.value, !networks.isEmpty { return }
    if top.present["proxies"] != nil, top.settings["proxies"] == nil { return }  // broken; already reported
    reader.report(
      "can accept no client: it accepts proxies only, and 'proxies' names no network; write for example "
        + "'proxies: [127.0.0.1]' at the top",
      at: listener.location, listener.path)
  }

  // MARK: - Users

  mutating func users(routes: [String]) -> [Config.User] {
    var tokens: [Secret: String] = [:]
    let known = Set(routes)
    return (top.children["users"] ?? []).map { name, section in
      let path = "users.\(Suggestion.plain(name))"
      if name.isEmpty || name.utf8.count > 64 || name.contains(":")
        || name.unicodeScalars.contains(where: Suggestion.isControl)
      {
        reader.report(
          "\(Suggestion.quote(name)) is not a user name; expected up to 64 bytes without ':' and control characters",
          at: section.location, "users")
      }
      var user = Config.User(name: name)
      for key in ConfigKeys.user { key.fill(&user) { section.settings[$0]?.value } }
      checkSecrets(of: user, section)
      user.roles = roles(section, known, routes: routes)
      for token in user.tokens {
        if let other = tokens.updateValue(name, forKey: token), let setting = section.settings["token"] {
          reader.report(
            other == name ? "has the same token twice" : "has the same token as \(Suggestion.quote(other))",
            at: setting.key,
            setting.path)
        }
      }
      let ways = ["password", "token", "certificate"]
      if !section.isBroken, !ways.contains(where: { section.present[$0] != nil }) {
        reader.report(
          "needs 'password', 'token' or 'certificate'; 'baudway hash-password' makes the hash for 'password'",
          at: section.location,
          path
        )
      }
      return user
    }
  }

  private mutating func checkSecrets(of user: Config.User, _ section: ConfigSection) {
    if let hash = user.password, let setting = section.settings["password"],
      let fault = CryptHash.fault(of: hash.reveal())
    {
      reader.report("\(fault); 'baudway hash-password' makes one", at: setting.key, setting.path)
    }
    for text in user.tokens.map({ $0.reveal() }) where text.utf8.count < BearerToken.least || !BearerToken.isToken(text)
    {
      guard let setting = section.settings["token"] else { continue }
      reader.report(
        "a token has at least \(BearerToken.least) of A-Z a-z 0-9 - . _ ~ +; 'openssl rand -hex 24' makes one",
        at: setting.key, setting.path)
    }
  }

  private mutating func roles(_ section: ConfigSection, _ known: Set<String>, routes: [String]) -> [Config.User.Rule]? {
    guard section.present["roles"] != nil, let children = section.children["roles"] else { return nil }
    return children.compactMap { pattern, child in
      guard let setting = child.settings[""], let role = Config.User.Role(rawValue: setting.value.description) else {
        return nil
      }
      let rule = Config.User.Rule(pattern: RoutePattern(pattern), role: role)
      if rule.pattern.isName, !known.contains(pattern) {
        reader.report(
          "there is no route \(Suggestion.quote(pattern))", at: setting.key, setting.path,
          suggestion: Suggestion.nearest(to: pattern, in: routes))
      }
      return rule
    }
  }

  /// Which users may connect; `.open` where no listener can identify clients.
  mutating func access(
    _ settings: Settings, _ only: [String]?, _ route: String, _ listeners: [ConfigURL], _ users: [Config.User],
    knowsCertificates: Bool
  ) -> Access {
    if let only, let given = settings.given("clients.users"), checked.insert(given.key).inserted {
      if only.isEmpty { reader.report("allows no user", at: given.key, given.path) }
      if !knowsCertificates {
        for name in only where !users.contains(where: { $0.name == name }) {
          reader.report(
            "there is no user \(Suggestion.quote(name))", at: given.key, given.path,
            suggestion: Suggestion.nearest(to: name, in: users.map(\.name)))
        }
      }
    }
    if only != nil {
      for listener in listeners where !listener.traits.canLogIn(knowsCertificates: knowsCertificates) {
        let advice =
          listener.traits.usesTLS
          ? "set 'tls.client-ca' to request a certificate"
          : "\(ListenerSchemes.words { $0.canLogIn(knowsCertificates: false) }) can"
        reader.report(
          "this listener cannot authenticate clients, but 'clients.users' requires it; \(advice)",
          at: listener.location, listener.path)
      }
    }
    checkOpenListeners(listeners, route, users, knowsCertificates: knowsCertificates)
    guard listeners.contains(where: { $0.traits.canLogIn(knowsCertificates: knowsCertificates) }) else { return .open }
    return Access(users, route: route, only: only)
  }

  // MARK: - TLS and WebSocket

  mutating func tls(
    _ settings: Settings, _ route: String, _ section: ConfigSection, _ listeners: [ConfigURL]
  ) -> Config.TLS? {
    guard let listener = listeners.first(where: \.traits.usesTLS) else {
      reportUseless("tls", of: route, section, for: ListenerSchemes.words(where: \.usesTLS))
      return nil
    }
    var certificates: [Config.TLS.Certificate] = []
    if let first = firstCertificate(settings, for: listener) { certificates.append(first) }
    certificates += moreCertificates(route, section)
    for key in ["client-auth", "crl"] where settings.given("tls.client-ca") == nil {
      guard let setting = settings.given("tls.\(key)"), checked.insert(setting.key).inserted else { continue }
      reader.report("has an effect only with 'client-ca'", at: setting.key, setting.path)
    }
    for (key, part) in [("client-ca", TLSSettingsFault.Part.authority), ("crl", .revocations), ("ciphers", .ciphers)] {
      if let setting = settings.given("tls.\(key)") { note([setting.value.description], part, setting) }
    }
    var tls = ConfigKeys.tls.read(settings)
    tls.certificates = certificates
    return tls
  }

  /// That of `tls.certificate` and `tls.key`.
  private mutating func firstCertificate(_ settings: Settings, for listener: ConfigURL) -> Config.TLS.Certificate? {
    let (chain, key) = (settings.given("tls.certificate"), settings.given("tls.key"))
    if let chain, let key {
      // A certificate of the route and a key from elsewhere are no pair.
      if chain.path.dropLast("certificate".count) != key.path.dropLast("key".count), checked.insert(chain.key).inserted
      {
        reader.report(
          "'certificate' and 'key' belong together: set both here, or both where they are inherited from",
          at: chain.key, chain.path)
      }
      return certificate(chain, key)
    }
    if let half = chain ?? key {
      if checked.insert(half.key).inserted {
        reader.report("'\(chain == nil ? "certificate" : "key")' is missing beside it", at: half.key, half.path)
      }
    } else {
      reader.report(
        "needs 'tls: { certificate: cert.pem, key: key.pem }', here, under 'defaults' or at the top",
        at: listener.location, listener.path)
    }
    return nil
  }

  /// Those of `tls.certificates`: the route's own, else those of `defaults`, else those at the top.
  private mutating func moreCertificates(_ route: String, _ section: ConfigSection) -> [Config.TLS.Certificate] {
    let name = "tls.certificates"
    let own = section.children[name].map { ("routes.\(Suggestion.plain(route)).", $0) }
    let (level, items) =
      own ?? top.children["defaults.\(name)"].map { ("defaults.", $0) } ?? ("", top.children[name] ?? [])
    var certificates: [Config.TLS.Certificate] = []
    for item in items {
      if let chain = item.section.settings["certificate"], let key = item.section.settings["key"] {
        certificates.append(certificate(chain, key))
      } else if checked.insert(item.section.location).inserted {
        reader.report("each needs 'certificate' and 'key'", at: item.section.location, level + name)
      }
    }
    return certificates
  }

  mutating func websocket(
    _ settings: Settings, _ route: String, _ section: ConfigSection, _ listeners: [ConfigURL]
  ) -> Config.WebSocket? {
    guard listeners.contains(where: \.traits.usesWebSocket) else {
      reportUseless("websocket", of: route, section, for: ListenerSchemes.words(where: \.usesWebSocket))
      return nil
    }
    let websocket = ConfigKeys.websocket.read(settings)
    if let setting = settings.given("websocket.origins"), checked.insert(setting.key).inserted {
      if websocket.origins.contains("*") {
        reader.warn(
          "'*' lets the scripts of any web page connect; name the pages that may connect, such as "
            + "'origins: [https://lab.example]'", at: setting.key, setting.path)
      }
      for origin in websocket.origins {
        guard !WebOrigin.isOrigin(origin) else {
          if let obstacle = OriginNames.obstacle(origin) {
            reader.warn("\(Suggestion.quote(origin)) matches no page: \(obstacle)", at: setting.key, setting.path)
          }
          continue
        }
        reader.report(
          "\(Suggestion.quote(origin)) is not an origin; expected scheme, host and port as browsers send them, or *",
          at: setting.key, setting.path, suggestion: WebOrigin.repair(origin))
      }
    }
    if let setting = settings.given("websocket.hosts"), checked.insert(setting.key).inserted {
      for host in websocket.hosts where !WebOrigin.isHostName(host) {
        reader.report(
          "\(Suggestion.quote(host)) is not a host name; expected one such as gw.example.org or *.example.org, or *",
          at: setting.key, setting.path, suggestion: WebOrigin.hostName(in: host))
      }
    }
    return websocket
  }

  /// Reports a section for listeners of a kind that the route does not have.
  private mutating func reportUseless(_ name: String, of route: String, _ section: ConfigSection, for listeners: String)
  {
    guard let location = section.present[name], section.present.keys.contains(where: { $0.hasPrefix("\(name).") })
    else {
      return
    }
    reader.report(
      "has an effect only for \(listeners) listeners", at: location, "routes.\(Suggestion.plain(route)).\(name)")
  }

  private mutating func certificate(_ chain: ConfigSetting, _ key: ConfigSetting) -> Config.TLS.Certificate {
    let pair = Config.TLS.Certificate(chain: chain.value.description, key: key.value.description)
    note([pair.chain, pair.key], .certificate, chain)
    note([pair.chain, pair.key], .key, key)
    return pair
  }

  private mutating func note(_ values: [String], _ part: TLSSettingsFault.Part, _ setting: ConfigSetting) {
    let use = TLSUse(part: part, values: values)
    if tlsLocations[use] == nil { tlsLocations[use] = (setting.key, setting.path) }
  }
}
