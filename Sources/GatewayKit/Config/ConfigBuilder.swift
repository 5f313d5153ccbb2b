// Settings → Config: merges defaults into routes key by key, then checks values against each other. A single value,
// such as a network of `allow`, is read and refused before, by its kind (ValueKind.swift).

import ByteStreams
import StreamBroker

struct ConfigBuilder {
  var reader: ConfigReader
  let top: ConfigSection
  /// Settings under `defaults`, and `tls` at the top, by their names under a route.
  let inherited: [String: ConfigSetting]
  /// The first user of each address and device, for messages about a second one.
  var addresses: [Int: [String: String]] = [:]
  var devices: [String: String] = [:]
  /// Bluetooth listeners: with a channel by number and adapter (empty = all adapters), others by path and target.
  var channels: [Int: [String: String]] = [:]
  var services: Set<String> = []
  /// Listeners at addresses that can be shared, by name (SNI).
  var sharedNames: [SharedListenSocket.Address: [String?: SharedName]] = [:]
  /// Each route's listeners and endpoint, for `checkCircles`.
  var ways: [RouteWay] = []
  /// Where each TLS setting was first used.
  var tlsLocations: [TLSUse: (location: ConfigProblem.SourceLocation, path: String)] = [:]
  /// Faults of files that were reported, with their places.
  var reported: Set<String> = []
  /// Keys that were checked: a wrong inherited one is reported once, not for every route.
  var checked: Set<ConfigProblem.SourceLocation> = []
  /// The route of each recording, by the name of its files.
  var recordings: [String: String] = [:]
  private var checkedNetworks: Set<ConfigProblem.SourceLocation> = []

  /// The configuration in `root`; throws all problems of it.
  static func build(_ root: YAMLNode, _ reader: ConfigReader) throws(ConfigProblems) -> Config {
    try examine(root, reader, opensFiles: false).config
  }

  /// The same, with warnings. With `opensFiles` it reads the certificates that are named, which blocks.
  static func examine(
    _ root: YAMLNode, _ reader: ConfigReader, opensFiles: Bool
  ) throws(ConfigProblems) -> (config: Config, warnings: [ConfigProblem]) {
    var reader = reader
    reader.looksAtFiles = opensFiles
    let top = reader.read(root)
    var builder = ConfigBuilder(reader: reader, top: top)
    let config = builder.config()
    if opensFiles {
      builder.openFiles(of: config)
      builder.checkPermissions()
    }
    if let secret = builder.reader.inlineSecret {
      builder.reader.warn(
        "a secret in a file that anybody may read; 'chmod o-r \(reader.files[secret.location.file])', or put it into a file of its own and write "
          + "file:NAME", at: secret.location, secret.path)
    }
    if let fault = builder.reader.fault { throw fault }
    return (config, builder.reader.warnings.sorted { ($0.location ?? .start) < ($1.location ?? .start) })
  }

  /// The setting of the control socket, even if other parts of the file are wrong.
  static func controlSocket(_ root: YAMLNode, _ reader: ConfigReader) -> Config.Control.Socket {
    var reader = reader
    return ConfigKeys.control.read(Settings(own: reader.read(root).settings)).socket
  }

  private init(reader: ConfigReader, top: ConfigSection) {
    self.reader = reader
    self.top = top
    let prefix = "defaults."
    let defaults = top.settings.filter { $0.key.hasPrefix(prefix) }
    inherited = Dictionary(uniqueKeysWithValues: defaults.map { (String($0.key.dropFirst(prefix.count)), $0.value) })
      .merging(top.settings.filter { $0.key.hasPrefix("tls.") }) { mine, _ in mine }
  }

  private mutating func config() -> Config {
    var config = Config()
    for key in ConfigKeys.global { key.fill(&config) { top.settings[$0]?.value } }
    if case .path(let path) = config.control.socket { devices["unix://\(path)"] = "control.socket" }
    let routes = top.children["routes"] ?? []
    // Without `routes`, another problem found, such as a mistyped key, explains it better.
    if routes.isEmpty, top.children["routes"] != nil || reader.fault == nil {
      let location = top.present["routes"] ?? .start
      reader.report(
        "no routes; write at least one: 'NAME: { listen: URL, endpoint: URL }' under 'routes'", at: location, "")
    }
    checkNetworks(top.settings["proxies"])
    let users = users(routes: routes.map(\.name))
    config.users = users
    config.admin = admin(config.admin, users)
    config.routes = routes.compactMap { route($0.name, $0.section, users) }
    if !config.admin.listen.isEmpty {
      for (index, route) in config.routes.enumerated() {
        config.routes[index].terminals = Access(users, route: route.name, only: route.clients.users)
      }
    }
    checkHashes(of: config)
    checkCircles()
    return config
  }

  /// Nil when the section is broken, or the endpoint is missing or broken; that is reported already.
  private mutating func route(_ name: String, _ section: ConfigSection, _ users: [Config.User]) -> Config.Route? {
    let settings = Settings(own: section.settings, inherited: inherited)
    let path = "routes.\(Suggestion.plain(name))"
    if section.isBroken { return nil }
    if section.present["listen"] == nil, section.present["dial"] == nil {
      reader.report("needs 'listen', such as 'listen: tcp://127.0.0.1:4001'", at: section.location, path)
    }
    if section.present["endpoint"] == nil {
      reader.report("needs 'endpoint', such as 'endpoint: tty:///dev/ttyUSB0?baud=115200'", at: section.location, path)
    }
    let listeners = section.urls["listen"] ?? []
    for listener in listeners {
      if !claimSharedPort(listener) { claimAddress(listener) }
      claimPath(listener)
      claimChannel(listener)
      checkOwnership(listener)
    }
    let tls = tls(settings, name, section, listeners)
    for listener in listeners {
      checkCompany(listener, tls)
      checkProxies(listener)
    }
    checkNetworks(listeners, settings)
    checkPairing(listeners)
    guard let endpoint = section.urls["endpoint"]?.first else { return nil }
    claimDevice(endpoint)
    checkOwnership(endpoint)
    let link = self.link(settings, endpoint.url)
    let clients = clients(settings, link, endpoint.url)
    checkLink(link, settings, endpoint.url, clients)
    checkClients(settings, link, clients)
    let isLoop = listeners.reduce(false) { checkLoop($1, endpoint) || $0 }
    ways.append(RouteWay(name: name, listeners: listeners, endpoint: endpoint, isReported: isLoop))
    let access = access(
      settings, clients.users, name, listeners, users, knowsCertificates: tls?.clientCA != nil)
    return Config.Route(
      name: name, listen: listeners.map { Config.Listen(url: $0.url) }, endpoint: endpoint.url, link: link,
      clients: clients, device: device(settings, link, clients), packets: packets(settings),
      capture: capture(settings, name, link),
      tls: tls, websocket: websocket(settings, name, section, listeners), access: access)
  }

  private func link(_ settings: Settings, _ endpoint: EndpointURL) -> Config.Link {
    // A default applies only where it can: an endpoint that can be opened only once stays shared.
    if settings.own["link"] == nil, endpoint.grammar.isExclusive { return .shared }
    if let word = settings.given("link") { return KeyForm<Config.Link>.word.read(word.value)! }
    return endpoint.grammar.sharesLink ? .shared : .perClient
  }

  private func clients(_ settings: Settings, _ link: Config.Link, _ endpoint: EndpointURL) -> Config.Clients {
    var clients = ConfigKeys.clients.read(settings, isShared: link == .shared)
    if settings.given("clients.max") == nil {
      clients.max = Config.Clients.standardMax(link, scheme: endpoint.scheme)
    }
    if settings.given("clients.buffer") == nil { clients.buffer = Config.Clients.standardBuffer(link) }
    if settings.given("clients.per-address") == nil {
      clients.perAddress = Config.Clients.standardPerAddress(clients.max)
    }
    if clients.writers != .one { clients.takeover = .refuse }
    if link == .perClient { clients.halfClose = nil }
    return clients
  }

  /// On per-client links only the time-outs apply. Other keys keep their defaults, and nothing is flushed.
  private func device(_ settings: Settings, _ link: Config.Link, _ clients: Config.Clients) -> Config.Device {
    var device = ConfigKeys.device.read(settings, isShared: link == .shared)
    // Output kept for new clients must not be dropped before they connect.
    let keepsOutput = link == .perClient || clients.backlog > 0
    if keepsOutput, settings.own["device.flush"] == nil { device.flush = .none }
    return device
  }

  private func packets(_ settings: Settings) -> Config.Packets? {
    ConfigKeys.packets.isOn(settings) ? ConfigKeys.packets.read(settings) : nil
  }

  // MARK: checks of values against each other

  private mutating func checkClients(_ settings: Settings, _ link: Config.Link, _ clients: Config.Clients) {
    checkNetworks(settings.given("clients.allow"))
    checkNetworks(settings.given("clients.deny"))
    if link == .shared, let takeover = settings.own["clients.takeover"], takeover.value != .text("refuse"),
      clients.writers != .one
    {
      reader.report("has an effect only with 'writers: one'", at: takeover.key, takeover.path)
    }
    if let allow = settings.given("clients.allow"), allow.value == .list([]), checked.insert(allow.key).inserted {
      reader.report("allows no client; write 0.0.0.0/0 and ::/0 to allow all", at: allow.key, allow.path)
    }
    if let setting = settings.given("packets.max"), case .size(let most) = setting.value, most > clients.buffer {
      reader.report(
        "no packet may be larger than 'clients.buffer' (\(Units.text(bytes: clients.buffer)))", at: setting.key,
        setting.path)
    }
    if let exchange = settings.given("packets.exchange"),
      !["idle", "max", "delimiter"].contains(where: { settings.given("packets.\($0)") != nil }),
      checked.insert(exchange.key).inserted
    {
      reader.report("needs to know where a packet ends: 'idle', 'max' or 'delimiter'", at: exchange.key, exchange.path)
    }
    if let banner = settings.given("clients.banner"), checked.insert(banner.key).inserted {
      let names = banner.value.description.split(separator: "{", omittingEmptySubsequences: false).dropFirst()
        .compactMap {
          $0.contains("}") ? String($0.prefix { $0 != "}" }) : nil
        }
      for name in names where !Config.Clients.bannerNames.contains(name) {
        reader.report(
          "a banner has no {\(Suggestion.plain(name))}; expected {route}, {endpoint} or {client}", at: banner.key,
          banner.path, suggestion: Suggestion.nearest(to: name, in: Config.Clients.bannerNames).map { "{\($0)}" })
      }
    }
  }

  private mutating func checkLink(
    _ link: Config.Link, _ settings: Settings, _ endpoint: EndpointURL, _ clients: Config.Clients
  ) {
    if link == .perClient {
      for (name, setting) in settings.own where ConfigKeys.sharedOnly.contains(name) {
        reader.report(
          "has an effect only on a shared link, but \(endpoint.scheme) has a link for each client; write 'link: shared' beside "
            + "'endpoint', or leave this out", at: setting.key, setting.path)
      }
      if endpoint.grammar.isExclusive, let word = settings.own["link"] {
        reader.report("\(endpoint.scheme) has one link at a time, so it can't be per client", at: word.key, word.path)
      }
    } else if let flush = settings.own["device.flush"],
      [.text("connect"), .text("both")].contains(flush.value),
      clients.backlog > 0
    {
      reader.report(
        "'\(flush.value)' would discard what 'clients.backlog' keeps; write none or disconnect", at: flush.key,
        flush.path)
    }
    if let reset = settings.own["device.reset"], reset.value != .text("off"), endpoint.scheme != "tty" {
      reader.warn(
        "has an effect only on a tty endpoint; a port of another machine needs it in the gateway there",
        at: reset.key, reset.path)
    }
  }

  /// Warns of networks written with host bits, which have no effect.
  private mutating func checkNetworks(_ setting: ConfigSetting?) {
    guard case .list(let values)? = setting?.value, let setting, checkedNetworks.insert(setting.key).inserted else {
      return
    }
    for network in values.compactMap({ AddressBlock($0.description) }) where network.hasHostBits {
      reader.warn(
        "\(network) is the network \(network.canonical); write that, or '\(network.address.host)' for the one address",
        at: setting.key, setting.path)
    }
  }

  /// Reports users and groups that this system does not know.
  private mutating func checkOwnership(_ url: ConfigURL) {
    guard url.url.grammar.parameter("owner") != nil else { return }
    if let name = url.url.string("owner"), reader.expansion.environment.lacksUser(name) {
      reader.report("unknown user \(Suggestion.quote(name))", at: url.location, url.path)
    }
    if let name = url.url.string("group"), reader.expansion.environment.lacksGroup(name) {
      reader.report("unknown group \(Suggestion.quote(name))", at: url.location, url.path)
    }
  }
}

extension Config.Clients.Takeover {
  /// From a text that its kind has accepted: "refuse", "newest", "idle:30s".
  init(_ text: String) {
    if text == "newest" {
      self = .newest
    } else if let pause = Units.duration(String(text.dropFirst("idle:".count))), text.hasPrefix("idle:") {
      self = .idle(pause)
    } else {
      self = .refuse
    }
  }
}

extension Config.Clients {
  static let bannerNames = ["route", "endpoint", "client"]
  /// The default of `clients.max`: few for a shared device, many for a proxy. For `exec` each client is a program.
  static func standardMax(_ link: Config.Link, scheme: String = "") -> Int {
    link == .shared ? 8 : scheme == "exec" ? 64 : 1000
  }
  /// The default of `clients.per-address`: from 4 slots on, one address cannot have them all.
  static func standardPerAddress(_ max: Int) -> Int? { max >= 4 ? max - 1 : nil }
  /// The default of `clients.buffer`. Shared, it bounds how far a slow client may lag; per client, reads of up to 256
  /// KiB make a plain proxy faster.
  static func standardBuffer(_ link: Config.Link) -> Int { link == .shared ? 64 << 10 : 256 << 10 }
}
