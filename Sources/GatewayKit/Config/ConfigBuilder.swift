// Settings → Config: defaults merged into routes key by key, then what only several values together can get wrong.

import ByteStreams
import StreamBroker

struct ConfigBuilder {
  var reader: ConfigReader
  let top: ConfigSection
  /// What stands under `defaults`, or for TLS at the top, by its name under a route.
  private let inherited: [String: ConfigSetting]
  /// First user of each address and device, for "already used by".
  var addresses: [Int: [String: String]] = [:]
  var devices: [String: String] = [:]
  /// Of Bluetooth listeners: by number and adapter, which is empty where all are meant; and all of them, by route and place.
  var channels: [Int: [String: String]] = [:]
  var services: Set<String> = []
  /// Ways through entrances that may be shared, by the name (SNI) that leads there.
  var ways: [Entrance.Address: [String?: SharedName]] = [:]
  /// Where settings of TLS were first used.
  var tlsPlaces: [TLSUse: (place: ConfigProblem.Place, path: String)] = [:]
  /// Faults of files that were told of, with their places.
  var told: Set<String> = []
  /// Keys that were looked at: an inherited one is wrong once, not for every route.
  var checked: Set<ConfigProblem.Place> = []
  private var checkedNetworks: Set<ConfigProblem.Place> = []

  /// The config of `root`, or every problem of it.
  static func build(_ root: YAMLNode, _ reader: ConfigReader) throws(ConfigProblems) -> Config {
    try examine(root, reader, opensFiles: false).config
  }

  /// The same, with what is odd in it. With `opensFiles` the certificates that it names are read, which blocks. `isReadable` is whether
  /// anybody may read the file.
  static func examine(
    _ root: YAMLNode, _ reader: ConfigReader, opensFiles: Bool, isReadable: Bool = false
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
    if isReadable, let secret = builder.reader.inlineSecret {
      builder.reader.warn(
        "a secret in a file that anybody may read; 'chmod o-r \(reader.file)', or put it into a file of its own and write "
          + "file:NAME", at: secret.place, secret.path)
    }
    if let fault = builder.reader.fault { throw fault }
    return (config, builder.reader.warnings.sorted { ($0.place ?? .start) < ($1.place ?? .start) })
  }

  /// Where the control socket is, whatever is wrong elsewhere in the file.
  static func controlSocket(_ root: YAMLNode, _ reader: ConfigReader) -> Config.Control.Socket {
    var reader = reader
    return controlSocket(Settings(own: reader.read(root).settings, inherited: [:], standards: Settings.topStandards))
  }

  private static func controlSocket(_ settings: Settings) -> Config.Control.Socket {
    switch settings.text("control.socket") {
    case "auto": .automatic
    case "off": .off
    case let path: .path(path)
    }
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
    let settings = Settings(own: top.settings, inherited: [:], standards: Settings.topStandards)
    let socket = Self.controlSocket(settings)
    if case .path(let path) = socket { devices["unix://\(path)"] = "control.socket" }
    let routes = top.children["routes"] ?? []
    // Without routes to read, another problem that was found, such as a mistyped key, says it better.
    if routes.isEmpty, top.children["routes"] != nil || reader.fault == nil {
      let place = top.present["routes"] ?? .start
      reader.report(
        "no routes; write at least one: 'NAME: { listen: URL, endpoint: URL }' under 'routes'", at: place, "")
    }
    checkNetworks(top.settings["proxies"])
    let users = users(routes: routes.map(\.name))
    let config = Config(
      log: Config.Log(
        level: settings.word("log.level"), format: settings.word("log.format"), repeats: settings.word("log.repeats")),
      control: Config.Control(socket: Self.controlSocket(settings)), limits: Self.limits(settings),
      proxies: settings.networks("proxies") ?? [], users: users,
      routes: routes.compactMap { route($0.name, $0.section, users) })
    checkHashes(of: config)
    return config
  }

  /// Nil when an address or the endpoint is missing or broken, which was reported.
  private mutating func route(_ name: String, _ section: ConfigSection, _ users: [Config.User]) -> Config.Route? {
    let settings = Settings(own: section.settings, inherited: inherited, standards: Settings.routeStandards)
    let path = "routes.\(Suggestion.plain(name))"
    if section.isBroken { return nil }
    if section.present["listen"] == nil, section.present["dial"] == nil {
      reader.report("needs 'listen', such as 'listen: tcp://127.0.0.1:4001'", at: section.place, path)
    }
    if section.present["endpoint"] == nil {
      reader.report("needs 'endpoint', such as 'endpoint: tty:///dev/ttyUSB0?baud=115200'", at: section.place, path)
    }
    let listeners = section.urls["listen"] ?? []
    for listener in listeners {
      if !claimWay(listener) { claimAddress(listener) }
      claimPath(listener)
      claimChannel(listener)
      checkOwnership(listener)
    }
    guard let endpoint = section.urls["endpoint"]?.first else { return nil }
    claimDevice(endpoint)
    checkOwnership(endpoint)
    let link = self.link(settings, endpoint.url)
    checkLink(link, settings, endpoint.url)
    checkClients(settings, link)
    let tls = tls(settings, name, section, listeners)
    for listener in listeners {
      checkCompany(listener, tls)
      checkProxies(listener)
      checkLoop(listener, endpoint)
    }
    checkNetworks(listeners, settings)
    checkPairing(listeners)
    let access = access(settings, name, listeners, users, knowsCertificates: tls?.clientCA != nil)
    return Config.Route(
      name: name, listen: listeners.map { Config.Listen(url: $0.url) }, endpoint: endpoint.url, link: link,
      clients: clients(settings, link, endpoint.url), device: device(settings, link), packets: packets(settings),
      tls: tls, websocket: websocket(settings, name, section, listeners), access: access)
  }

  private func link(_ settings: Settings, _ endpoint: EndpointURL) -> Config.Link {
    // A default is for the routes it can be for: a port that only one can open stays shared.
    if settings.own["link"] == nil, endpoint.grammar.isExclusive { return .shared }
    if settings.given("link") != nil { return settings.word("link") }
    return endpoint.grammar.sharesLink ? .shared : .perClient
  }

  private func clients(_ settings: Settings, _ link: Config.Link, _ endpoint: EndpointURL) -> Config.Clients {
    let shared = link == .shared ? settings : settings.withoutShared
    let max = settings.integer("clients.max") ?? Config.Clients.standardMax(link, scheme: endpoint.scheme)
    let perAddress =
      settings.given("clients.per-address") == nil
      ? Config.Clients.standardPerAddress(max) : settings.integer("clients.per-address")
    let writers: Config.Clients.Writers = shared.word("clients.writers")
    return Config.Clients(
      max: max,
      whenFull: settings.word("clients.when-full"), writers: writers,
      takeover: writers == .one ? Config.Clients.Takeover(shared.text("clients.takeover")) : .refuse,
      slow: settings.word("clients.slow"),
      buffer: settings.integer("clients.buffer") ?? Config.Clients.standardBuffer(link),
      backlog: shared.integer("clients.backlog")!, idleTimeout: settings.durationUnlessOff("clients.idle-timeout"),
      halfClose: link == .shared ? shared.durationUnlessOff("clients.half-close") : nil,
      keepalive: settings.flag("clients.keepalive"), notices: settings.flag("clients.notices"),
      refuseHttp: shared.flag("clients.refuse-http"),
      perAddress: perAddress,
      allow: settings.networks("clients.allow"), deny: settings.networks("clients.deny") ?? [],
      banner: settings.value("clients.banner")?.description)
  }

  /// On per-client links only the time-outs mean something; the rest stays at its defaults, and nothing is flushed.
  private func device(_ settings: Settings, _ link: Config.Link) -> Config.Device {
    let shared = link == .shared ? settings : settings.withoutShared
    // What is kept for newcomers must not be thrown away before they come.
    let keepsOutput = link == .perClient || settings.integer("clients.backlog")! > 0
    return Config.Device(
      open: shared.word("device.open"), linger: shared.duration("device.linger"), absent: shared.word("device.absent"),
      retry: shared.durations("device.retry"),
      connectTimeout: settings.duration("device.connect-timeout"), drain: settings.duration("device.drain"),
      flush: keepsOutput && settings.own["device.flush"] == nil ? .none : shared.word("device.flush"),
      onOpen: shared.bytes("device.on-open"), onClose: shared.bytes("device.on-close"))
  }

  private func packets(_ settings: Settings) -> Config.Packets? {
    // The route's own keys win over its own silence, and its own "off" over inherited keys.
    let names = ["packets.idle", "packets.max", "packets.delimiter"]
    let isOwn = names.contains { settings.own[$0] != nil }
    if !isOwn, settings.own["packets"] != nil || settings.inherited["packets"] != nil { return nil }
    guard names.contains(where: { settings.given($0) != nil }) else { return nil }
    return Config.Packets(
      idle: settings.durationUnlessOff("packets.idle"), max: settings.integer("packets.max"),
      delimiter: settings.given("packets.delimiter") == nil ? nil : settings.bytes("packets.delimiter"))
  }

  // MARK: what only several values can get wrong

  private mutating func checkClients(_ settings: Settings, _ link: Config.Link) {
    checkNetworks(settings.given("clients.allow"))
    checkNetworks(settings.given("clients.deny"))
    if link == .shared, let takeover = settings.own["clients.takeover"], takeover.value != .text("refuse"),
      settings.text("clients.writers") != "one"
    {
      reader.report("means something with 'writers: one' only", at: takeover.key, takeover.path)
    }
    if let allow = settings.given("clients.allow"), allow.value == .list([]), checked.insert(allow.key).inserted {
      reader.report("lets nobody in; write 0.0.0.0/0 and ::/0 for everybody", at: allow.key, allow.path)
    }
    let buffer = settings.integer("clients.buffer") ?? Config.Clients.standardBuffer(link)
    if let most = settings.integer("packets.max"), most > buffer, let setting = settings.given("packets.max") {
      reader.report(
        "no packet may be larger than 'clients.buffer' (\(Units.text(bytes: buffer)))", at: setting.key, setting.path)
    }
    if let banner = settings.given("clients.banner"), checked.insert(banner.key).inserted {
      let names = banner.value.description.split(separator: "{", omittingEmptySubsequences: false).dropFirst()
        .compactMap {
          $0.contains("}") ? String($0.prefix { $0 != "}" }) : nil
        }
      for name in names where !Config.Clients.bannerNames.contains(name) {
        reader.report(
          "a banner knows no {\(Suggestion.plain(name))}; it knows {route}, {endpoint} and {client}", at: banner.key,
          banner.path, suggestion: Suggestion.nearest(to: name, in: Config.Clients.bannerNames).map { "{\($0)}" })
      }
    }
  }

  private mutating func checkLink(_ link: Config.Link, _ settings: Settings, _ endpoint: EndpointURL) {
    if link == .perClient {
      for (name, setting) in settings.own where Settings.sharedOnly.contains(name) {
        reader.report(
          "means something on a shared link only, and \(endpoint.scheme) has one for each client; write 'link: shared' beside "
            + "'endpoint', or leave this out", at: setting.key, setting.path)
      }
      if endpoint.grammar.isExclusive, let word = settings.own["link"] {
        reader.report("\(endpoint.scheme) has one link at a time, so it can't be per client", at: word.key, word.path)
      }
    } else if let flush = settings.own["device.flush"],
      [.text("connect"), .text("both")].contains(flush.value),
      settings.integer("clients.backlog")! > 0
    {
      reader.report(
        "'\(flush.value)' would throw away what 'clients.backlog' keeps; say none or disconnect", at: flush.key,
        flush.path)
    }
  }

  /// Addresses that say more than their network, which counts alone.
  private mutating func checkNetworks(_ setting: ConfigSetting?) {
    guard case .list(let values)? = setting?.value, let setting, checkedNetworks.insert(setting.key).inserted else {
      return
    }
    for network in values.compactMap({ Network($0.description) }) where network.hasHostBits {
      reader.warn(
        "\(network) is the network \(network.canonical); write that, or '\(network.address.host)' for the one address",
        at: setting.key, setting.path)
    }
  }

  /// Users and groups that this system does not know.
  private mutating func checkOwnership(_ url: ConfigURL) {
    guard url.url.grammar.parameter("owner") != nil else { return }
    if let name = url.url.string("owner"), reader.expansion.surroundings.lacksUser(name) {
      reader.report("unknown user \(Suggestion.quote(name))", at: url.place, url.path)
    }
    if let name = url.url.string("group"), reader.expansion.surroundings.lacksGroup(name) {
      reader.report("unknown group \(Suggestion.quote(name))", at: url.place, url.path)
    }
  }
}

extension Config.Clients.Takeover {
  /// Of the text that its kind has let through: "refuse", "newest", "idle:30s".
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
  /// What `clients.max` is when nothing is said: a shared device is for a few, a proxy for many.
  /// Each client of an `exec` is a program of its own.
  static func standardMax(_ link: Config.Link, scheme: String = "") -> Int {
    link == .shared ? 8 : scheme == "exec" ? 64 : 1000
  }
  /// What `clients.per-address` is when nothing is said: no address can have all places, where there are a few.
  static func standardPerAddress(_ max: Int) -> Int? { max >= 4 ? max - 1 : nil }
  /// Shared, it bounds how far behind a client may be; alone, reads of up to 256 KiB make a plain proxy faster.
  static func standardBuffer(_ link: Config.Link) -> Int { link == .shared ? 64 << 10 : 256 << 10 }
}
