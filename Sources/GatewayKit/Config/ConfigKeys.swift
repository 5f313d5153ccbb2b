// Every key of config.yaml: its kind, its default, and whether this build obeys it. This table drives reading, checking
// and the output of `check`; it holds the whole format, so that a key of a later build is told from a mistyped one.

import StreamBroker

struct ConfigKey: Sendable {
  let name: String
  let shape: Shape
  /// In the text form of its kind; nil when "not given" means something of its own.
  let standard: String?
  let support: Support
  /// Means something on shared links only.
  let isForSharedLinks: Bool

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
    _ name: String, _ kind: ValueKind, _ standard: String? = nil, support: Support = .built, sharedOnly: Bool = false
  ) {
    self.init(name, .value(kind), standard, support: support, sharedOnly: sharedOnly)
  }

  init(
    _ name: String, _ shape: Shape, _ standard: String? = nil, support: Support = .built, sharedOnly: Bool = false
  ) {
    self.name = name
    self.shape = shape
    self.standard = standard
    self.support = support
    isForSharedLinks = sharedOnly
  }
}

enum ConfigKeys {
  static let top: [ConfigKey] = [
    ConfigKey("version", .words(["1"]), "1"),
    ConfigKey(
      "log",
      .mapping([
        ConfigKey("level", .words(Config.Log.Level.allCases.map(\.rawValue)), "info"),
        ConfigKey("format", .words(Config.Log.Format.allCases.map(\.rawValue)), "text"),
      ])),
    // sun_path of unix(7) holds 108 bytes, the last one NUL.
    ConfigKey("control", .mapping([ConfigKey("socket", .either(.words(["auto", "off"]), .file(limit: 107)), "auto")])),
    ConfigKey(
      "admin",
      .mapping([
        ConfigKey("listen", .url(web, built: .none, isList: true)), ConfigKey("insecure", .flag, "no"),
      ]), support: .later()),
    ConfigKey(
      "users", .named(.mapping([ConfigKey("password", .secret), ConfigKey("roles", .named(roles, .any))]), .any),
      support: .later()),
    ConfigKey("proxies", .list(.network), support: .later()),
    ConfigKey(
      "limits",
      .mapping([
        ConfigKey("handshakes-per-address", .integer(1...100_000), "100", support: .later(except: ["100"])),
        ConfigKey(
          "connects-per-second", .either(.words(["off"]), .integer(1...100_000)), "off",
          support: .later(except: ["off"])),
      ])),
    tls,
    ConfigKey("defaults", .mapping(policies)),
    ConfigKey("routes", .named(.mapping(route), .routes)),
  ]

  /// What stands under the name of a route.
  static let route: [ConfigKey] =
    [
      ConfigKey("listen", .url(ListenerSchemes.all, built: .listeners, isList: true)),
      ConfigKey("dial", .url(EndpointSchemes.all, built: .none, isList: false), support: .later()),
      ConfigKey("endpoint", .url(EndpointSchemes.all, built: .endpoints, isList: false)),
    ] + policies

  /// What stands under a route or under `defaults`.
  static let policies: [ConfigKey] = [
    ConfigKey("link", .words(Config.Link.allCases.map(\.rawValue))),
    clients, device, tls,
    ConfigKey(
      "websocket",
      .mapping([
        ConfigKey("origins", .list(.text)), ConfigKey("deflate", .flag, "no"),
        ConfigKey("max-message", .size(1...1 << 30), "16MiB"),
        ConfigKey("ping", .either(.words(["off"]), .duration(.seconds(1) ... .seconds(3600))), "20s"),
      ]), support: .later()),
    ConfigKey(
      "packets",
      .switched([
        ConfigKey("idle", .duration(.milliseconds(1) ... .seconds(60))), ConfigKey("max", .size(1...64 << 10)),
        ConfigKey("delimiter", .escapes),
      ]), "off"),
    ConfigKey(
      "capture",
      .switched([
        ConfigKey("file", .path), ConfigKey("format", .words(["pcapng", "hex", "raw"]), "pcapng"),
        ConfigKey("rotate", .size(4096...1 << 40)), ConfigKey("keep", .integer(1...10_000)),
      ]), "off", support: .later(except: ["off"])),
  ]

  private static let clients = ConfigKey(
    "clients",
    .mapping([
      // The default depends on the link: see Config.standardMax.
      ConfigKey("max", .integer(1...100_000)),
      ConfigKey("when-full", .words(Config.Clients.WhenFull.allCases.map(\.rawValue)), "refuse"),
      ConfigKey("writers", .words(Config.Clients.Writers.allCases.map(\.rawValue)), "all", sharedOnly: true),
      ConfigKey(
        "takeover", .either(.words(["refuse", "newest"]), .prefixed("idle", .duration(pause))), "refuse",
        sharedOnly: true),
      ConfigKey("slow", .words(Config.Clients.Slow.allCases.map(\.rawValue)), "auto"),
      ConfigKey("buffer", .size(4096...16 << 20)),  // the default depends on the link, too
      ConfigKey("backlog", .size(0...16 << 20), "0", sharedOnly: true),
      ConfigKey("idle-timeout", .either(.words(["off"]), .duration(pause)), "off"),
      ConfigKey("keepalive", .flag, "yes"),
      ConfigKey("notices", .flag, "yes"),
      ConfigKey("allow", .list(.network)), ConfigKey("deny", .list(.network)),
      ConfigKey("users", .list(.text), support: .later()), ConfigKey("banner", .lines),
    ]))

  private static let device = ConfigKey(
    "device",
    .mapping([
      ConfigKey("open", .words(Config.Device.Open.allCases.map(\.rawValue)), "on-demand", sharedOnly: true),
      ConfigKey("linger", .duration(.zero ... .seconds(86400)), "0s", sharedOnly: true),
      ConfigKey("retry", .durations(pause), "250ms..30s", sharedOnly: true),
      ConfigKey("absent", .words(Config.Device.Absent.allCases.map(\.rawValue)), "hold", sharedOnly: true),
      ConfigKey("connect-timeout", .duration(pause), "10s"),
      ConfigKey("drain", .duration(.zero ... .seconds(3600)), "5s"),
      ConfigKey("flush", .words(Config.Device.Flush.allCases.map(\.rawValue)), "connect", sharedOnly: true),
      ConfigKey("on-open", .escapes, sharedOnly: true), ConfigKey("on-close", .escapes, sharedOnly: true),
      ConfigKey(
        "reset", .words(["off", "esp32", "esp8266", "avr", "stm32"]), "off", support: .later(except: ["off"]),
        sharedOnly: true),
    ]))

  private static let tls = ConfigKey(
    "tls",
    .mapping([
      ConfigKey("certificate", .path), ConfigKey("key", .path), ConfigKey("client-ca", .path),
      ConfigKey("min-version", .words(["1.2", "1.3"]), "1.2"),
      ConfigKey("certificates", .mappings([ConfigKey("certificate", .path), ConfigKey("key", .path)])),
      ConfigKey("client-auth", .words(["required", "optional"]), "required"), ConfigKey("crl", .path),
      ConfigKey("ciphers", .text),
    ]), support: .later())

  private static let roles = ConfigKey.Shape.value(.words(["monitor", "writer"]))

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
