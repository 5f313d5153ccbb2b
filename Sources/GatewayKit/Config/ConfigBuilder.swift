// Settings → Config: defaults merged into routes key by key, then what only several values together can get wrong.

import StreamBroker

struct ConfigBuilder {
  private var reader: ConfigReader
  private let top: ConfigSection
  /// What stands under `defaults`, by its name under a route.
  private let inherited: [String: ConfigSetting]
  /// First user of each address and device, for "already used by".
  private var addresses: [Int: [String: String]] = [:]
  private var devices: [String: String] = [:]

  /// The config of `root`, or every problem of it.
  static func build(_ root: YAMLNode, _ reader: ConfigReader) throws(ConfigProblems) -> Config {
    var reader = reader
    let top = reader.read(root)
    var builder = ConfigBuilder(reader: reader, top: top)
    let config = builder.config()
    if let fault = builder.reader.fault { throw fault }
    return config
  }

  private init(reader: ConfigReader, top: ConfigSection) {
    self.reader = reader
    self.top = top
    let prefix = "defaults."
    let defaults = top.settings.filter { $0.key.hasPrefix(prefix) }
    inherited = Dictionary(uniqueKeysWithValues: defaults.map { (String($0.key.dropFirst(prefix.count)), $0.value) })
  }

  private mutating func config() -> Config {
    let settings = Settings(own: top.settings, inherited: [:], standards: Settings.topStandards)
    let socket: Config.Control.Socket =
      switch settings.text("control.socket") {
      case "auto": .automatic
      case "off": .off
      case let path: .path(path)
      }
    let routes = top.children["routes"] ?? []
    // Without the key, another problem that was found, such as a mistyped one, says it better.
    if routes.isEmpty, top.present["routes"] != nil || reader.fault == nil {
      let place = top.present["routes"] ?? .start
      reader.report(
        "no routes; write at least one: 'NAME: { listen: URL, endpoint: URL }' under 'routes'", at: place, "")
    }
    return Config(
      log: Config.Log(level: settings.word("log.level"), format: settings.word("log.format")),
      control: Config.Control(socket: socket), routes: routes.compactMap { route($0.name, $0.section) })
  }

  /// Nil when an address or the endpoint is missing or broken, which was reported.
  private mutating func route(_ name: String, _ section: ConfigSection) -> Config.Route? {
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
    for listener in listeners { claimAddress(listener) }
    guard let endpoint = section.urls["endpoint"]?.first else { return nil }
    claimDevice(endpoint)
    let link = self.link(settings, endpoint.url)
    checkLink(link, settings, endpoint.url)
    return Config.Route(
      name: name, listen: listeners.map { Config.Listen(url: $0.url) }, endpoint: endpoint.url, link: link,
      clients: clients(settings, link), device: device(settings, link))
  }

  private func link(_ settings: Settings, _ endpoint: EndpointURL) -> Config.Link {
    // A default is for the routes it can be for: a port that only one can open stays shared.
    if settings.own["link"] == nil, endpoint.grammar.isExclusive { return .shared }
    if settings.given("link") != nil { return settings.word("link") }
    return endpoint.grammar.sharesLink ? .shared : .perClient
  }

  private func clients(_ settings: Settings, _ link: Config.Link) -> Config.Clients {
    Config.Clients(
      max: settings.integer("clients.max") ?? Config.Clients.standardMax(link), slow: settings.word("clients.slow"),
      buffer: settings.integer("clients.buffer") ?? Config.Clients.standardBuffer(link),
      backlog: link == .shared ? settings.integer("clients.backlog")! : 0,
      keepalive: settings.flag("clients.keepalive"), notices: settings.flag("clients.notices"))
  }

  /// On per-client links only the time-outs mean something; the rest stays at its defaults, and nothing is flushed.
  private func device(_ settings: Settings, _ link: Config.Link) -> Config.Device {
    let shared = link == .shared ? settings : settings.withoutShared
    // What is kept for newcomers must not be thrown away before they come.
    let keepsOutput = link == .perClient || settings.integer("clients.backlog")! > 0
    return Config.Device(
      open: shared.word("device.open"), retry: shared.durations("device.retry"),
      connectTimeout: settings.duration("device.connect-timeout"), drain: settings.duration("device.drain"),
      flush: keepsOutput ? .none : shared.word("device.flush"))
  }

  // MARK: what only several values can get wrong

  private mutating func checkLink(_ link: Config.Link, _ settings: Settings, _ endpoint: EndpointURL) {
    if link == .perClient {
      for (name, setting) in settings.own where Settings.sharedOnly.contains(name) {
        reader.report("means something on a shared link only; this one is per client", at: setting.key, setting.path)
      }
      if endpoint.grammar.isExclusive, let word = settings.own["link"] {
        reader.report("\(endpoint.scheme) has one link at a time, so it can't be per client", at: word.key, word.path)
      }
    } else if let flush = settings.own["device.flush"], flush.value == .text("connect"),
      settings.integer("clients.backlog")! > 0
    {
      reader.report("'connect' would throw away what 'clients.backlog' keeps; say none", at: flush.key, flush.path)
    }
  }

  /// Two listeners on one port get in each other's way when their hosts are the same or one of them is all addresses.
  private mutating func claimAddress(_ listener: ConfigURL) {
    guard listener.url.grammar.authority.isNetwork, let port = listener.url.port, port != 0 else { return }
    let host = listener.url.host
    let others = addresses[port] ?? [:]
    let isAll = host.isEmpty || host == "0.0.0.0" || host == "::"
    let other =
      others[host] ?? others[""] ?? (host.contains(":") ? others["::"] : others["0.0.0.0"])
      ?? (isAll ? others.filter { host.isEmpty || $0.key.contains(":") == (host == "::") }.values.min() : nil)
    if let other {
      reader.report("port \(port) is taken by \(other)", at: listener.place, listener.path)
    } else {
      addresses[port, default: [:]][host] = "\(listener.path) (\(listener.url.place), line \(listener.place.line))"
    }
  }

  private mutating func claimDevice(_ endpoint: ConfigURL) {
    guard let written = endpoint.url.device else { return }
    // Two symbolic links may lead to one port, today at least.
    let real = (try? reader.broker.connector(endpoint.url))?.realDevice
    let names = [written, real ?? written]
    if let device = names.first(where: { devices[$0] != nil }), let other = devices[device] {
      reader.report("\(device) is taken by \(other); one device can have one route", at: endpoint.place, endpoint.path)
    } else {
      for name in names { devices[name] = "\(endpoint.path) (line \(endpoint.place.line))" }
    }
  }
}

extension Config.Clients {
  /// What `clients.max` is when nothing is said: a shared device is for a few, a proxy for many.
  static func standardMax(_ link: Config.Link) -> Int { link == .shared ? 8 : 1000 }
  /// Shared, it bounds how far behind a client may be; alone, reads of up to 256 KiB make a plain proxy faster.
  static func standardBuffer(_ link: Config.Link) -> Int { link == .shared ? 64 << 10 : 256 << 10 }
}
