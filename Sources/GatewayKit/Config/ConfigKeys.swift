// Every key of config.yaml: its kind, its summary, and the property of Config that holds its value. `top` is the whole
// format and drives reading and the schema. It includes keys of later versions, so that they are not reported as
// mistyped. `global` and `ofRoute` drive the output of `check` and a reload's report; CheckTable.swift and
// ConfigDifference.swift add what has no BoundKey there: `version`, users, the names of routes. A default is the
// initial value of the property, unless ConfigBuilder computes it.

import StreamBroker

enum ConfigKeys {
  static let top: [ConfigKey] = [
    ConfigKey("version", .words(["1"]), "1", says: "the version of this format"),
    ConfigKey(
      "include", .list(.path),
      says: "further files with routes and users, such as conf.d/*.yaml; read in the order of their names"),
    log.key, control.key,
    admin.key, users, proxies.key, limits.key, tls.key,
    ConfigKey("defaults", .mapping(policies), says: "settings for every route that does not set them itself"),
    ConfigKey(
      "routes", .named(.mapping(route), .routes), says: "routes by name: where clients connect, and to which endpoint"),
  ]

  /// Keys that belong to no route, in the order of `check`.
  static let global: [BoundKey<Config>] = [
    BoundKey(log, \.log), BoundKey(control, \.control), adminIfAny,
    BoundKey(optional: tls, \.admin.tls), BoundKey(limits, \.limits), proxies,
  ]

  /// Keys of a route.
  static let route: [ConfigKey] =
    [
      listen.key,
      ConfigKey(
        "dial", .url(EndpointSchemes.all, built: .none, isList: false), for: .later,
        says: "where to connect to for a client, instead of listening"),
      endpoint.key,
    ] + policies

  /// Keys of a route that are also allowed under `defaults`.
  static let policies: [ConfigKey] = [
    link.key, clients.key, device.key, tls.key, websocket.key, packets.key, capture.key,
  ]

  /// Keys of a route with their properties, in the order of `check`.
  static let ofRoute: [BoundKey<Config.Route>] = [
    listen, endpoint, link, BoundKey(clients, \.clients), BoundKey(device, \.device),
    BoundKey(optional: packets, \.packets), BoundKey(optional: capture, \.capture),
    BoundKey(optional: tls, \.tls), BoundKey(optional: websocket, \.websocket),
  ]

  /// Dotted names of keys that apply to shared links only.
  static let sharedOnly: Set<String> = {
    var names: Set<String> = []
    for policy in policies {
      switch policy.shape {
      case .mapping(let keys), .switched(let keys):
        names.formUnion(keys.filter(\.isForSharedLinks).map { "\(policy.name).\($0.name)" })
      default: break
      }
    }
    return names
  }()

  // MARK: - Sections and keys at the top

  static let log = KeySection<Config.Log>(
    "log",
    [
      BoundKey("level", \.level, .word, says: "the lowest level that is logged"),
      BoundKey("format", \.format, .word, says: "text for people, json for programs"),
      BoundKey(
        "repeats", \.repeats, .word, says: "summary: lines beyond a limit per second are only counted"),
    ], says: "the log, on standard error")

  static let control = KeySection<Config.Control>(
    "control",
    [
      BoundKey(
        "socket", \.socket, .controlSocket,
        says: "auto: $RUNTIME_DIRECTORY, /run/baudway, otherwise an abstract socket; or an absolute path")
    ], says: "where the commands reach the running gateway")

  static let admin = KeySection<Config.Admin>(
    "admin",
    [
      BoundKey(
        ConfigKey(
          "listen", .url(ListenerSchemes.admin.map(\.grammar), built: .admin, isList: true),
          says: "addresses of the admin listener"), reads: \.listen
      ) { YAMLText.oneOrList($0.map { YAMLText.scalar($0.url.description) }) },
      BoundKey(
        "hosts", \.hosts, .list(.text),
        says: "names of the gateway in requests, in addition to its addresses, machine and certificate names"),
      BoundKey(
        "insecure", \.insecure, .flag, says: "allow addresses beyond this machine without TLS or users"),
    ], says: "health checks, metrics and the API, by HTTP")

  /// `check` prints it where it is on.
  private static let adminIfAny: BoundKey<Config> = {
    let section = BoundKey<Config>(admin, \.admin)
    return BoundKey(
      key: section.key, fill: section.fill,
      text: { $0.admin.listen.isEmpty ? nil : section.text($0, $1) }, differences: section.differences)
  }()

  // MARK: - Keys of a route

  static let listen = BoundKey<Config.Route>(
    ConfigKey("listen", .url(ListenerSchemes.all, built: .listeners, isList: true), says: "where clients connect"),
    reads: \.listen
  ) { YAMLText.oneOrList($0.map { YAMLText.scalar($0.url.description) }) }

  static let endpoint = BoundKey<Config.Route>(
    key: ConfigKey(
      "endpoint", .url(EndpointSchemes.all, built: .endpoints, isList: false),
      says: "the device or server that clients are connected to"),
    fill: { _, _ in }, text: { route, _ in route.endpoint.table },
    differences: { $0.endpoint.keysThatDiffer(from: $1.endpoint) })

  static let link = BoundKey<Config.Route>(
    "link", \.link, .word, standard: nil,
    says: "one link for all clients, or one for each; default: by the endpoint, shared for serial ports and sim")

  /// Whether a route has a key of this name.
  static func isOfRoute(_ name: String) -> Bool {
    ["listen", "endpoint", "link"].contains(name) || policies.contains { $0.name == name }
  }

  /// The right place for a key that is unknown at `path`; nil when there is none.
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

extension KeyForm<Config.Control.Socket> {
  // sun_path of unix(7) holds 108 bytes, the last one NUL.
  fileprivate static var controlSocket: Self {
    Self(
      kind: .either(.words(["auto", "off"]), .file(limit: 107)),
      read: { value in
        switch value.description {
        case "auto": .automatic
        case "off": .off
        case let path: .path(path)
        }
      },
      value: { socket in
        switch socket {
        case .automatic: .text("auto")
        case .off: .text("off")
        case .path(let path): .text(path)
        }
      })
  }
}
