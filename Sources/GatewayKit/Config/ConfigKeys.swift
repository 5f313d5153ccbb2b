// Every key of config.yaml: its kind, its default, and whether this version obeys it. This table drives reading, checking
// and the output of `check`; it holds the whole format, so that a key of a later build is told from a mistyped one.

import StreamBroker

struct ConfigKey: Sendable {
  let name: String
  let shape: Shape
  /// In the text form of its kind; nil when "not given" means something of its own.
  let standard: String?
  /// In a build that can't listen on any of `listeners`, where some are named.
  let support: Support
  /// Schemes of the listeners that it is for.
  let listeners: Set<String>
  /// Means something on shared links only.
  let isForSharedLinks: Bool
  /// What it does, in one line for people; config.yaml has more room.
  let summary: String

  indirect enum Shape: Sendable {
    case value(ValueKind)
    /// Values of one kind; a single one needs no list.
    case list(ValueKind)
    case mapping([ConfigKey])
    /// The word `off`, or a mapping.
    case switched([ConfigKey])
    case mappings([ConfigKey])
    /// A mapping whose keys are names.
    case named(Shape, Names)
    /// A URL of these schemes, alone or as `url:` among its parameters.
    case url([SchemeGrammar], built: BuiltSchemes, isList: Bool)
  }

  enum Names: Sendable {
    case any
    /// `[a-z0-9._-]+`
    case routes
  }

  /// Which schemes can be used.
  enum BuiltSchemes: Sendable {
    case listeners
    /// What the broker has connectors for, as the caller of ConfigFile says.
    case endpoints
    case none
  }

  init(
    _ name: String, _ kind: ValueKind, _ standard: String? = nil, support: Support = .built,
    listeners: Set<String> = [], sharedOnly: Bool = false, says summary: String = ""
  ) {
    self.init(
      name, .value(kind), standard, support: support, listeners: listeners, sharedOnly: sharedOnly, says: summary)
  }

  init(
    _ name: String, _ shape: Shape, _ standard: String? = nil, support: Support = .built,
    listeners: Set<String> = [], sharedOnly: Bool = false, says summary: String = ""
  ) {
    self.name = name
    self.shape = shape
    self.standard = standard
    self.support = support
    self.listeners = listeners
    isForSharedLinks = sharedOnly
    self.summary = summary
  }

  /// Whether a build that listens on `built` obeys it.
  func support(with built: Set<String>) -> Support {
    listeners.isEmpty ? support : listeners.isDisjoint(with: built) ? support : .built
  }
}

enum ConfigKeys {
  static let top: [ConfigKey] = [
    ConfigKey("version", .words(["1"]), "1", says: "of this format"),
    ConfigKey(
      "log",
      .mapping([
        ConfigKey("level", .words(Config.Log.Level.allCases.map(\.rawValue)), "info", says: "the least that is told"),
        ConfigKey("format", .words(Config.Log.Format.allCases.map(\.rawValue)), "text", says: "for people or programs"),
        ConfigKey(
          "repeats", .words(Config.Log.Repeats.allCases.map(\.rawValue)), "summary",
          says: "whether lines beyond a number a second are counted in a summary"),
      ]), says: "what is told on standard error"),
    // sun_path of unix(7) holds 108 bytes, the last one NUL.
    ConfigKey(
      "control",
      .mapping([
        ConfigKey(
          "socket", .either(.words(["auto", "off"]), .file(limit: 107)), "auto",
          says: "auto: $RUNTIME_DIRECTORY, /run/baudway, else an abstract one; or a path")
      ]), says: "where the commands reach the running gateway"),
    ConfigKey(
      "admin",
      .mapping([
        ConfigKey("listen", .url(web, built: .none, isList: true), says: "its addresses"),
        ConfigKey("insecure", .flag, "no", says: "beyond this machine without TLS or users"),
      ]), support: .later(), says: "status page, API and metrics"),
    users, proxies, limits, tls,
    ConfigKey("defaults", .mapping(policies), says: "what holds for every route that does not say otherwise"),
    ConfigKey("routes", .named(.mapping(route), .routes), says: "by name: who is led where"),
  ]

  /// What stands under the name of a route.
  static let route: [ConfigKey] =
    [
      ConfigKey(
        "listen", .url(ListenerSchemes.all, built: .listeners, isList: true), says: "where its clients arrive"),
      ConfigKey(
        "dial", .url(EndpointSchemes.all, built: .none, isList: false), support: .later(),
        says: "whom to call for a client, instead of listening"),
      ConfigKey(
        "endpoint", .url(EndpointSchemes.all, built: .endpoints, isList: false),
        says: "the device or server it leads to"),
    ] + policies

  /// What stands under a route or under `defaults`.
  static let policies: [ConfigKey] = [
    ConfigKey(
      "link", .words(Config.Link.allCases.map(\.rawValue)),
      says: "one link for all clients, or one for each; serial ports and sim are shared unless it is said"),
    clients, device, tls, websocket,
    ConfigKey(
      "packets",
      .switched([
        ConfigKey(
          "idle", .duration(.milliseconds(1) ... .seconds(60)), says: "a silence that ends a packet"),
        ConfigKey("max", .size(1...64 << 10), says: "the length at which it ends"),
        ConfigKey("delimiter", .escapes, says: "the bytes behind which it ends"),
      ]), "off", says: "for devices that speak in frames, which are kept whole"),
    ConfigKey(
      "capture",
      .switched([
        ConfigKey("file", .path, says: "with {route} and {date}"),
        ConfigKey("format", .words(["pcapng", "hex", "raw"]), "pcapng", says: "how it is written"),
        ConfigKey("rotate", .size(4096...1 << 40), says: "a new file after so much"),
        ConfigKey("keep", .integer(1...10_000), says: "how many old files stay"),
      ]), "off", support: .later(except: ["off"]), says: "record what is said"),
  ]

  private static let clients = ConfigKey(
    "clients",
    .mapping([
      // The default depends on the link: see Config.standardMax.
      ConfigKey(
        "max", .integer(1...100_000),
        says: "how many at once; unless it is said 8 on a shared link, 1000 else, 64 for exec"),
      ConfigKey(
        "when-full", .words(Config.Clients.WhenFull.allCases.map(\.rawValue)), "refuse",
        says: "what happens to one more"),
      ConfigKey(
        "writers", .words(Config.Clients.Writers.allCases.map(\.rawValue)), "all", sharedOnly: true,
        says: "who may send to the device; one is who has the pen"),
      ConfigKey(
        "takeover", .either(.words(["refuse", "newest"]), .prefixed("idle", .duration(pause))), "refuse",
        sharedOnly: true, says: "with one writer: who may take the pen, and when"),
      ConfigKey(
        "slow", .words(Config.Clients.Slow.allCases.map(\.rawValue)), "auto",
        says: "when a client does not read; auto: block the device while it is alone, else disconnect it"),
      ConfigKey(
        "buffer", .size(4096...16 << 20),  // the default depends on the link, too
        says: "bytes kept per client and direction; unless it is said 64KiB on a shared link, 256KiB else"),
      ConfigKey(
        "backlog", .size(0...16 << 20), "0", sharedOnly: true,
        says: "the last bytes of device output, sent to each new client first"),
      ConfigKey(
        "idle-timeout", .either(.words(["off"]), .duration(pause)), "off",
        says: "end a client after so long without a byte either way"),
      ConfigKey(
        "half-close", .either(.words(["off"]), .duration(pause)), "5s", sharedOnly: true,
        says: "how long a client still receives after its FIN, or the last byte sent to it; off: its FIN ends it"),
      ConfigKey("keepalive", .flag, "yes", says: "find dead clients within 30 seconds"),
      ConfigKey("notices", .flag, "yes", says: "tell people in a line of text why they are refused"),
      ConfigKey(
        "refuse-http", .flag, "yes", sharedOnly: true,
        says: "refuse a client that begins with an HTTP request, as web pages do, on tcp and tls listeners"),
      // The default depends on max: see Config.Clients.standardPerAddress.
      ConfigKey(
        "per-address", .either(.words(["off"]), .integer(1...100_000)),
        says:
          "how many of one address at once, loopback and proxies apart; unless it is said max - 1 where max is 4 or more"
      ),
      ConfigKey("allow", .list(.network), says: "networks that may come; all unless it is said"),
      ConfigKey("deny", .list(.network), says: "networks of those that may not"),
      ConfigKey(
        "users", .list(.text), support: .later(), listeners: greeting,
        says: "who may come, by name or by the subject of a certificate; all who can log in unless it is said"),
      ConfigKey(
        "banner", .escapes, says: "what each reads first, with {route}, {endpoint}, {client} and escapes such as \\r\\n"
      ),
    ]), says: "who may come, and what they may do")

  private static let device = ConfigKey(
    "device",
    .mapping([
      ConfigKey(
        "open", .words(Config.Device.Open.allCases.map(\.rawValue)), "on-demand", sharedOnly: true,
        says: "while there are clients, or always"),
      ConfigKey(
        "linger", .duration(.zero ... .seconds(86400)), "0s", sharedOnly: true,
        says: "how long it stays open after the last client"),
      ConfigKey(
        "retry", .durations(pause), "250ms..30s", sharedOnly: true,
        says: "pauses between two tries while it is not there; and at once when it comes"),
      ConfigKey(
        "absent", .words(Config.Device.Absent.allCases.map(\.rawValue)), "hold", sharedOnly: true,
        says: "while it is not there: hold clients and what they send, discard what they send, or close them"),
      ConfigKey(
        "connect-timeout", .duration(pause), "10s",
        says: "how long one try to open or connect may take; of Bluetooth only connecting"),
      ConfigKey(
        "drain", .duration(.zero ... .seconds(3600)), "5s",
        says: "how long what a client sent before it left may stand still before it is given up"),
      ConfigKey(
        "flush", .words(Config.Device.Flush.allCases.map(\.rawValue)), "connect", sharedOnly: true,
        says: "throw away what was said before the link was opened, what is unsent when the last client leaves, or both"
      ),
      ConfigKey("on-open", .escapes, sharedOnly: true, says: "bytes to send when the link has opened"),
      ConfigKey("on-close", .escapes, sharedOnly: true, says: "bytes to send before it closes"),
      ConfigKey(
        "reset", .words(["off", "esp32", "esp8266", "avr", "stm32"]), "off", support: .later(except: ["off"]),
        sharedOnly: true, says: "reset lines for programmers"),
    ]), says: "when it is opened, and what happens while it is not there")

  private static let web = [
    SchemeGrammar("http", example: "http://127.0.0.1:8080", authority: .listening(ports: 0...65535)),
    SchemeGrammar("https", example: "https://:8443", authority: .listening(ports: 0...65535)),
  ]

  private static let pause = Duration.milliseconds(1)...Duration.seconds(86400)

  /// Where a key that is unknown in its place belongs, when it has a place elsewhere.
  static func home(of name: String, under path: String, isSection: Bool) -> String? {
    if path.isEmpty || path == "defaults", ["listen", "endpoint", "dial"].contains(name) { return "under a route" }
    if path.isEmpty, policies.contains(where: { $0.name == name }) { return "under a route or under 'defaults'" }
    guard isSection, path.hasPrefix("routes.") else { return nil }
    if EndpointSchemes.all.contains(where: { $0.parameter(name) != nil }) {
      return "in the endpoint's URL (?\(name)=…) or beside its 'url'"
    }
    return top.contains { $0.name == name } ? "at the top of the file" : nil
  }
}
