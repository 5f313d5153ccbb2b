// Settings → who may come in, and through which doors.

import StreamBroker
import StreamTLS

extension ConfigBuilder {
  /// Schemes whose clients can say who they are.
  private static func canLogIn(_ listener: ConfigURL, knowsCertificates: Bool) -> Bool {
    ["ws", "wss"].contains(listener.url.scheme) || listener.url.scheme == "tls" && knowsCertificates
  }

  static func limits(_ settings: Settings) -> Config.Limits {
    Config.Limits(
      handshakes: settings.integer("limits.handshakes"),
      handshakesPerAddress: settings.integer("limits.handshakes-per-address")!,
      connectsPerSecond: settings.integer("limits.connects-per-second"),
      reserveDescriptors: settings.word("limits.reserve-descriptors"))
  }

  // MARK: - Shared ports

  /// Whether the listener shares its port with others, which clients tell apart by name or path.
  mutating func claimWay(_ listener: ConfigURL) -> Bool {
    let listen = Config.Listen(url: listener.url)
    let address = Entrance.Address(listen)
    guard listen.isGreeted, address.canBeShared else { return false }
    let hasCompany = ways[address] != nil
    if let other = ways[address, default: [:]][listen.serverName, default: SharedName()].claim(listen, listener.shown) {
      let how = listen.usesTLS ? "'server-name'\(listen.usesWebSocket ? " or the path" : "")" : "the path"
      reader.report("the same as \(other); on one port \(how) tells them apart", at: listener.place, listener.path)
    }
    return hasCompany
  }

  /// Those who come by one name have done the handshake before it is known which of its routes they want.
  mutating func checkCompany(_ listener: ConfigURL, _ tls: Config.TLS?) {
    let listen = Config.Listen(url: listener.url)
    let address = Entrance.Address(listen)
    guard listen.usesTLS, let tls else { return }
    guard let first = ways[address]?[listen.serverName]?.tls else {
      ways[address]?[listen.serverName]?.tls = (tls, listener.shown)
      return
    }
    if first.settings != tls {
      reader.report(
        "'tls' is another than that of \(first.listener), with which it shares the port and the name",
        at: listener.place, listener.path)
    }
  }

  /// A listener that asks for what is believed of nobody.
  mutating func checkProxies(_ listener: ConfigURL) {
    guard Config.Listen(url: listener.url).isProxied else { return }
    if case .list(let networks)? = top.settings["proxies"]?.value, !networks.isEmpty { return }
    if top.present["proxies"] != nil, top.settings["proxies"] == nil { return }  // broken, which was reported
    reader.report(
      "lets nobody in: it takes clients from proxies only, and 'proxies' names no network of any; write for example "
        + "'proxies: [127.0.0.1]' at the top",
      at: listener.place, listener.path)
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
          "\(Suggestion.quote(name)) is no name of a user; expected up to 64 bytes without ':' and controls",
          at: section.place, "users")
      }
      let user = Config.User(
        name: name, password: password(section), tokens: self.tokens(section),
        certificates: section.texts("certificate"), roles: roles(section, known, routes: routes))
      for token in user.tokens {
        if let other = tokens.updateValue(name, forKey: token), let setting = section.settings["token"] {
          reader.report(
            other == name ? "has one token twice" : "has a token of \(Suggestion.quote(other)) too", at: setting.key,
            setting.path)
        }
      }
      let ways = ["password", "token", "certificate"]
      if !section.isBroken, !ways.contains(where: { section.present[$0] != nil }) {
        reader.report(
          "needs 'password', 'token' or 'certificate'; 'baudway hash-password' makes the first", at: section.place, path
        )
      }
      return user
    }
  }

  private mutating func password(_ section: ConfigSection) -> Secret? {
    guard let setting = section.settings["password"], case .secret(let secret) = setting.value else { return nil }
    if let fault = CryptHash.fault(of: secret.reveal()) {
      reader.report("\(fault); 'baudway hash-password' makes one", at: setting.key, setting.path)
    }
    return secret
  }

  private mutating func tokens(_ section: ConfigSection) -> [Secret] {
    guard let setting = section.settings["token"], case .list(let values) = setting.value else { return [] }
    return values.compactMap { value in
      guard case .secret(let secret) = value else { return nil }
      let text = secret.reveal()
      if text.utf8.count < BearerToken.least || !BearerToken.isToken(text) {
        reader.report(
          "a token has at least \(BearerToken.least) of A-Z a-z 0-9 - . _ ~ +, such as 'openssl rand -hex 24' makes",
          at: setting.key, setting.path)
      }
      return secret
    }
  }

  private mutating func roles(_ section: ConfigSection, _ known: Set<String>, routes: [String]) -> [Config.User.Rule]? {
    guard section.present["roles"] != nil, let children = section.children["roles"] else { return nil }
    return children.compactMap { pattern, child in
      guard let setting = child.settings[""], let role = Config.Listen.Role(rawValue: setting.value.description) else {
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

  /// Who may come in. Everybody, where no listener can ask.
  mutating func access(
    _ settings: Settings, _ route: String, _ listeners: [ConfigURL], _ users: [Config.User], knowsCertificates: Bool
  ) -> Access {
    let given = settings.given("clients.users")
    let only = given == nil ? nil : settings.texts("clients.users")
    if let only, let given, checked.insert(given.key).inserted {
      if only.isEmpty { reader.report("lets nobody in", at: given.key, given.path) }
      if !knowsCertificates {
        for name in only where !users.contains(where: { $0.name == name }) {
          reader.report(
            "there is no user \(Suggestion.quote(name))", at: given.key, given.path,
            suggestion: Suggestion.nearest(to: name, in: users.map(\.name)))
        }
      }
    }
    if only != nil {
      for listener in listeners where !Self.canLogIn(listener, knowsCertificates: knowsCertificates) {
        let advice = listener.url.scheme == "tls" ? "'tls.client-ca' would ask for a certificate" : "ws and wss can ask"
        reader.report(
          "nobody can say here who he is, and 'clients.users' lets only those in whom it names; \(advice)",
          at: listener.place, listener.path)
      }
    }
    checkOpenDoors(listeners, route, users, knowsCertificates: knowsCertificates)
    guard listeners.contains(where: { Self.canLogIn($0, knowsCertificates: knowsCertificates) }) else { return .open }
    return Access(users, route: route, only: only)
  }

  // MARK: - TLS and WebSocket

  mutating func tls(
    _ settings: Settings, _ route: String, _ section: ConfigSection, _ listeners: [ConfigURL]
  ) -> Config.TLS? {
    guard let listener = listeners.first(where: { ["tls", "wss"].contains($0.url.scheme) }) else {
      reportUseless("tls", of: route, section, for: "tls and wss")
      return nil
    }
    var certificates: [Config.TLS.Certificate] = []
    if let chain = settings.given("tls.certificate"), let key = settings.given("tls.key") {
      // A certificate of the route and a key from elsewhere are no pair.
      if chain.path.dropLast("certificate".count) != key.path.dropLast("key".count), checked.insert(chain.key).inserted
      {
        reader.report(
          "'certificate' and 'key' stand together, here or where both are inherited from", at: chain.key, chain.path)
      }
      certificates.append(certificate(chain, key))
    } else if let half = settings.given("tls.certificate") ?? settings.given("tls.key") {
      if checked.insert(half.key).inserted {
        reader.report(
          "stands together with '\(half.path.hasSuffix("key") ? "certificate" : "key")'", at: half.key, half.path)
      }
    } else {
      reader.report(
        "needs 'tls: { certificate: cert.pem, key: key.pem }', here, under 'defaults' or at the top",
        at: listener.place,
        listener.path)
    }
    let name = "tls.certificates"
    let own = section.children[name].map { ("routes.\(Suggestion.plain(route)).", $0) }
    let (level, items) =
      own ?? top.children["defaults.\(name)"].map { ("defaults.", $0) } ?? ("", top.children[name] ?? [])
    for item in items {
      if let chain = item.section.settings["certificate"], let key = item.section.settings["key"] {
        certificates.append(certificate(chain, key))
      } else if checked.insert(item.section.place).inserted {
        reader.report("each needs 'certificate' and 'key'", at: item.section.place, level + name)
      }
    }
    let authority = settings.given("tls.client-ca").map { file($0, .authority) }
    for key in ["client-auth", "crl"] where authority == nil {
      guard let setting = settings.given("tls.\(key)"), checked.insert(setting.key).inserted else { continue }
      reader.report("means something with 'client-ca' only", at: setting.key, setting.path)
    }
    if let ciphers = settings.given("tls.ciphers") { note([ciphers.value.description], .ciphers, ciphers) }
    return Config.TLS(
      certificates: certificates, clientCA: authority, clientAuth: settings.word("tls.client-auth"),
      crl: settings.given("tls.crl").map { file($0, .revocations) }, minVersion: settings.word("tls.min-version"),
      ciphers: settings.value("tls.ciphers")?.description)
  }

  mutating func websocket(
    _ settings: Settings, _ route: String, _ section: ConfigSection, _ listeners: [ConfigURL]
  ) -> Config.WebSocket? {
    guard listeners.contains(where: { ["ws", "wss"].contains($0.url.scheme) }) else {
      reportUseless("websocket", of: route, section, for: "ws and wss")
      return nil
    }
    let origins = settings.texts("websocket.origins")
    if let setting = settings.given("websocket.origins"), checked.insert(setting.key).inserted {
      if origins.contains("*") {
        reader.warn(
          "'*' lets the scripts of any web page connect from the browser that shows it; name the pages that may, such as "
            + "'origins: [https://lab.example]'", at: setting.key, setting.path)
      }
      for origin in origins where !WebOrigin.isOrigin(origin) {
        reader.report(
          "\(Suggestion.quote(origin)) is no origin; expected scheme, host and port as browsers say them, or *",
          at: setting.key, setting.path, suggestion: WebOrigin.repair(origin))
      }
    }
    let hosts = settings.texts("websocket.hosts")
    if let setting = settings.given("websocket.hosts"), checked.insert(setting.key).inserted {
      for host in hosts where !WebOrigin.isHostName(host) {
        reader.report(
          "\(Suggestion.quote(host)) is no name of a host; expected one such as gw.example.org or *.example.org, or *",
          at: setting.key, setting.path, suggestion: WebOrigin.hostName(in: host))
      }
    }
    return Config.WebSocket(
      origins: origins, hosts: hosts, deflate: settings.flag("websocket.deflate"),
      maxMessage: settings.integer("websocket.max-message")!, ping: settings.durationUnlessOff("websocket.ping"))
  }

  /// What a route says for listeners that it has none of.
  private mutating func reportUseless(_ name: String, of route: String, _ section: ConfigSection, for listeners: String)
  {
    guard let place = section.present[name], section.present.keys.contains(where: { $0.hasPrefix("\(name).") }) else {
      return
    }
    reader.report(
      "means something for \(listeners) listeners only", at: place, "routes.\(Suggestion.plain(route)).\(name)")
  }

  private mutating func certificate(_ chain: ConfigSetting, _ key: ConfigSetting) -> Config.TLS.Certificate {
    let pair = Config.TLS.Certificate(chain: whole(chain), key: whole(key))
    note([pair.chain, pair.key], .certificate, chain)
    note([pair.chain, pair.key], .key, key)
    return pair
  }

  private mutating func file(_ setting: ConfigSetting, _ part: TLSSettingsFault.Part) -> String {
    note([whole(setting)], part, setting)
    return whole(setting)
  }

  private mutating func note(_ values: [String], _ part: TLSSettingsFault.Part, _ setting: ConfigSetting) {
    let use = TLSUse(part: part, values: values)
    if tlsPlaces[use] == nil { tlsPlaces[use] = (setting.key, setting.path) }
  }

  /// A relative path begins where the config file is, wherever the gateway was started.
  private func whole(_ setting: ConfigSetting) -> String {
    let (path, folder) = (setting.value.description, reader.expansion.surroundings.directory)
    return path.hasPrefix("/") || folder == "." ? path : folder == "/" ? "/\(path)" : "\(folder)/\(path)"
  }
}

extension ConfigSection {
  fileprivate func texts(_ name: String) -> [String] {
    guard case .list(let values)? = settings[name]?.value else { return [] }
    return values.map(\.description)
  }
}

extension ConfigURL {
  /// As "already used by" names it.
  fileprivate var shown: String { "\(path) (\(url.place), line \(place.line))" }
}

/// The listeners that clients of one name (SNI) find at an address that several may share.
struct SharedName {
  /// The first of these listeners, as messages about the others name it.
  private var first: String?
  private var withoutPath: String?
  private var paths: [String: String] = [:]
  /// What they all must say of TLS, and whose it is.
  var tls: (settings: Config.TLS, listener: String)?

  /// Nil, or the listener that no client could tell from this one.
  mutating func claim(_ listen: Config.Listen, _ listener: String) -> String? {
    let path = listen.url.path
    let other = listen.usesWebSocket ? withoutPath ?? paths[path] : first
    if !listen.usesWebSocket {
      withoutPath = withoutPath ?? listener
    } else if paths[path] == nil {
      paths[path] = listener
    }
    first = first ?? listener
    return other
  }
}
