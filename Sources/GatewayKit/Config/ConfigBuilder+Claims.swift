// Reports what is used twice (addresses, paths, devices) and routes that lead back to themselves.

import ByteStreams
import StreamBroker

extension ConfigBuilder {
  /// Two listeners on one port collide when their hosts are the same or one of them is for all addresses.
  mutating func claimAddress(_ listener: ConfigURL) {
    guard listener.url.grammar.authority.isNetwork, let port = listener.url.port, port != 0 else { return }
    let host = listener.url.host
    func taken(_ host: String) -> String? { addresses[port]?[host] }
    let isAll = host.isEmpty || host == "0.0.0.0" || host == "::"
    let other =
      taken(host) ?? taken("") ?? taken(host.contains(":") ? "::" : "0.0.0.0")
      ?? (isAll ? addresses[port]?.filter { host.isEmpty || $0.key.contains(":") == (host == "::") }.values.min() : nil)
    if let other {
      reader.report("port \(port) is taken by \(other)", at: listener.location, listener.path)
    } else {
      addresses[port, default: [:]][host] =
        "\(listener.path) (\(listener.url.target), \(reader.place(listener.location)))"
    }
  }

  /// Whether the listener shares its port with others, from which its name (SNI) or path distinguishes it. Reports one
  /// that nothing distinguishes.
  mutating func claimSharedPort(_ listener: ConfigURL) -> Bool {
    let listen = Config.Listen(url: listener.url)
    let address = SharedListenSocket.Address(listen)
    guard address.canBeShared else { return false }
    let hasCompany = sharedNames[address] != nil
    if let other = sharedNames[address, default: [:]][listen.serverName, default: SharedName()].claim(
      listen, shown(listener))
    {
      let how = listen.usesTLS ? "'server-name'\(listen.usesHTTP ? " or the path" : "")" : "the path"
      reader.report(
        "the same as \(other); listeners on one port must differ in \(how)", at: listener.location, listener.path)
    }
    return hasCompany
  }

  /// The TLS handshake is done before the path selects a route. So listeners of one name (SNI) need the same `tls`.
  mutating func checkCompany(_ listener: ConfigURL, _ tls: Config.TLS?) {
    let listen = Config.Listen(url: listener.url)
    let address = SharedListenSocket.Address(listen)
    guard listen.usesTLS, let tls else { return }
    guard let first = sharedNames[address]?[listen.serverName]?.tls else {
      let name = shown(listener)
      sharedNames[address]?[listen.serverName]?.tls = (tls, name)
      return
    }
    if first.settings != tls {
      reader.report(
        "'tls' differs from that of \(first.listener), which has the same port and name",
        at: listener.location, listener.path)
    }
  }

  /// Reports a path that another listener has, or that an endpoint makes.
  mutating func claimPath(_ listener: ConfigURL) {
    guard listener.url.grammar.path == .file else { return }
    let target = listener.url.target
    // A pty and a socket cannot have the same path either.
    let names = [target, "file \(Self.plain(listener.url.path))"]
    if let other = names.compactMap({ devices[$0] }).first {
      reader.report("\(target) is taken by \(other)", at: listener.location, listener.path)
    } else {
      for name in names { devices[name] = "\(listener.path) (\(reader.place(listener.location)))" }
    }
  }

  mutating func claimDevice(_ endpoint: ConfigURL) {
    guard let written = endpoint.url.device else { return }
    // Two symbolic links may lead to one port, at least at present.
    let real = (try? reader.broker.connector(endpoint.url))?.realDevice
    let names = [written, real ?? written]
    if let device = names.first(where: { devices[$0] != nil }), let other = devices[device] {
      reader.report(
        "\(device) is taken by \(other); one device can have one route", at: endpoint.location, endpoint.path)
    } else {
      for name in names { devices[name] = "\(endpoint.path) (\(reader.place(endpoint.location)))" }
    }
  }

  /// Reports a route that connects to itself: each client would make another, until the route is full. Returns whether
  /// it does.
  mutating func checkLoop(_ listener: ConfigURL, _ endpoint: ConfigURL) -> Bool {
    let (from, to) = (listener.url, endpoint.url)
    let isSame =
      if from.grammar.authority.isNetwork, to.grammar.authority.isNetwork {
        from.port == to.port && Self.isReached(from.host, by: to.host) && !Self.areApart(from, to)
      } else {
        to.scheme == listener.traits.family.endpointScheme && Self.plain(from.path) == Self.plain(to.path)
      }
    let own = "leads back to the route's own listener (\(from.target), \(reader.place(listener.location)))"
    if isSame {
      reader.report(own, at: endpoint.location, endpoint.path)
      return true
    } else if to.host == "localhost", Self.mayBeLocalhost.contains(from.host), from.port == to.port,
      from.grammar.authority.isNetwork, to.grammar.authority.isNetwork, !Self.areApart(from, to)
    {
      reader.warn("\(own), unless something else answers there", at: endpoint.location, endpoint.path)
      return true
    }
    return false
  }

  /// Warns of routes that lead back to themselves by an address or a name of this machine, or by way of other routes.
  mutating func checkCircles() {
    var byPort: [Int: [Int]] = [:]
    var byPath: [String: [Int]] = [:]
    for (index, way) in ways.enumerated() {
      for listener in way.listeners {
        if !listener.url.grammar.authority.isNetwork {
          byPath[Self.plain(listener.url.path), default: []].append(index)
        } else if let port = listener.url.port, port != 0 {
          byPort[port, default: []].append(index)
        }
      }
    }
    // A route has one endpoint, so it leads to one other at most.
    var own: Set<SocketAddress>?
    let next = ways.map { way -> Int? in
      let endpoint = way.endpoint.url
      let isNetwork = endpoint.grammar.authority.isNetwork
      let candidates = isNetwork ? endpoint.port.flatMap { byPort[$0] } : byPath[Self.plain(endpoint.path)]
      return candidates?.first { other in ways[other].listeners.contains { leads(endpoint, to: $0, &own) } }
    }
    var walks = [Int](repeating: 0, count: ways.count)
    for start in ways.indices {
      var at: Int? = start
      while let index = at, walks[index] == 0 {
        walks[index] = start + 1
        at = next[index]
      }
      if let first = at, walks[first] == start + 1 { reportCircle(from: first, next) }
    }
  }

  private mutating func reportCircle(from first: Int, _ next: [Int?]) {
    let way = ways[first]
    var others: [String] = []
    var at = next[first]
    while let index = at, index != first {
      others.append("\(Suggestion.quote(ways[index].name)) (\(reader.place(ways[index].endpoint.location)))")
      at = next[index]
    }
    guard !others.isEmpty || !way.isReported else { return }
    let what =
      others.isEmpty
      ? "leads back to the route's own listener, by an address of this machine"
      : "leads back to this route, by way of \(others.joined(separator: ", "))"
    reader.warn("\(what); each client becomes connections without end", at: way.endpoint.location, way.endpoint.path)
  }

  /// Whether a connection to the endpoint reaches the listener, as far as this machine can tell. `own` is filled with
  /// the addresses of its interfaces when they are first needed.
  private func leads(_ endpoint: EndpointURL, to listener: ConfigURL, _ own: inout Set<SocketAddress>?) -> Bool {
    let from = listener.url
    guard from.grammar.authority.isNetwork, endpoint.grammar.authority.isNetwork else {
      return endpoint.scheme == listener.traits.family.endpointScheme
        && Self.plain(from.path) == Self.plain(endpoint.path)
    }
    guard from.port == endpoint.port, !Self.areApart(from, endpoint) else { return false }
    if Self.isReached(from.host, by: endpoint.host) { return true }
    let targets = reader.environment.addresses(endpoint.host).map(\.connected)
    guard !targets.isEmpty else { return false }
    let isAll = from.host.isEmpty || from.host == "::"
    guard isAll || from.host == "0.0.0.0" else {
      let bound = reader.environment.addresses(from.host).map(\.unmapped)
      return targets.contains { bound.contains($0) }
    }
    let interfaces = own ?? Set(reader.environment.interfaces())
    own = interfaces
    return targets.contains { target in
      (isAll || target.family == .ipv4) && (target.isLoopback || interfaces.contains(target))
    }
  }

  /// A listener's name in messages.
  private func shown(_ listener: ConfigURL) -> String {
    "\(listener.path) (\(listener.url.target), \(reader.place(listener.location)))"
  }

  private static let mayBeLocalhost = ["127.0.0.1", "0.0.0.0", "::1", "::"]

  /// The path without empty components and `.`. It keeps `..`, which may lead anywhere after a link.
  private static func plain(_ path: String) -> String {
    path.split(separator: "/").filter { $0 != "." }.joined(separator: "/")
  }

  /// Whether clients of the two URLs reach different routes on one port, by a path or a name (SNI).
  private static func areApart(_ listener: EndpointURL, _ endpoint: EndpointURL) -> Bool {
    let pathsDecide = [listener, endpoint].allSatisfy { $0.grammar.path == .any }
    let (own, other) = (RouteBindingTable.normal(listener.path), RouteBindingTable.normal(endpoint.path))
    return listener.string("server-name") != nil || (pathsDecide && own != other)
  }

  /// Whether a connection to `host` from this machine certainly reaches the listener. `localhost` may be ::1, where
  /// another program may listen.
  private static func isReached(_ listener: String, by host: String) -> Bool {
    switch listener {
    case "": host == "localhost" || host == "::1" || host.hasPrefix("127.")
    case "0.0.0.0": host.hasPrefix("127.")
    case "::": host == "::1"
    default: host == listener
    }
  }
}

/// Where a route's clients come from and where they lead.
struct RouteWay {
  let name: String
  let listeners: [ConfigURL]
  let endpoint: ConfigURL
  /// It leads to itself, and that was reported.
  let isReported: Bool
}

extension ConfigURL {
  /// For a listener's URL.
  var traits: ListenerTraits { Config.Listen(url: url).traits }
}

/// The listeners for one name (SNI) at an address that several may share.
struct SharedName {
  /// The first of these listeners, named in messages about the others.
  private var first: String?
  private var withoutPath: String?
  private var admin: String?
  private var paths: [String: String] = [:]
  /// The TLS settings that all of them must have, and the listener that set them.
  var tls: (settings: Config.TLS, listener: String)?

  /// Adds a listener. Returns an earlier one with the same name and path, or nil.
  mutating func claim(_ listen: Config.Listen, _ listener: String) -> String? {
    let path = RouteBindingTable.normal(listen.url.path)
    if listen.isAdmin {
      let other = admin ?? withoutPath
      admin = other ?? listener
      first = first ?? listener
      return other
    }
    let other =
      listen.usesWebSocket
      ? withoutPath ?? paths[path] ?? (AdminResource.isReserved(path) ? admin : nil) : first
    if !listen.usesWebSocket {
      withoutPath = withoutPath ?? listener
    } else if paths[path] == nil {
      paths[path] = listener
    }
    first = first ?? listener
    return other
  }
}

extension ListenerTraits.Family {
  /// The scheme of endpoints that open the file of such a listener.
  fileprivate var endpointScheme: String? {
    switch self {
    case .unix: "unix"
    case .pty: "tty"
    case .tcp, .rfcomm: nil
    }
  }
}
