// What only one can have, or one route can't have twice: addresses, places in the file system, devices.

import StreamBroker

extension ConfigBuilder {
  /// Two listeners on one port get in each other's way when their hosts are the same or one of them is all addresses.
  mutating func claimAddress(_ listener: ConfigURL) {
    guard listener.url.grammar.authority.isNetwork, let port = listener.url.port, port != 0 else { return }
    let host = listener.url.host
    func taken(_ host: String) -> String? { addresses[port]?[host] }
    let isAll = host.isEmpty || host == "0.0.0.0" || host == "::"
    let other =
      taken(host) ?? taken("") ?? taken(host.contains(":") ? "::" : "0.0.0.0")
      ?? (isAll ? addresses[port]?.filter { host.isEmpty || $0.key.contains(":") == (host == "::") }.values.min() : nil)
    if let other {
      reader.report("port \(port) is taken by \(other)", at: listener.place, listener.path)
    } else {
      addresses[port, default: [:]][host] = "\(listener.path) (\(listener.url.place), line \(listener.place.line))"
    }
  }

  /// Two listeners can't have one place in the file system, nor a listener the place that an endpoint makes.
  mutating func claimPath(_ listener: ConfigURL) {
    guard listener.url.grammar.path == .file else { return }
    let place = listener.url.place
    // A pty and a socket can't have one name either.
    let names = [place, "file \(Self.plain(listener.url.path))"]
    if let other = names.compactMap({ devices[$0] }).first {
      reader.report("\(place) is taken by \(other)", at: listener.place, listener.path)
    } else {
      for name in names { devices[name] = "\(listener.path) (line \(listener.place.line))" }
    }
  }

  mutating func claimDevice(_ endpoint: ConfigURL) {
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

  /// A route that calls itself: each client makes another, until none is let in.
  mutating func checkLoop(_ listener: ConfigURL, _ endpoint: ConfigURL) {
    let (from, to) = (listener.url, endpoint.url)
    let isSame =
      if from.grammar.authority.isNetwork, to.grammar.authority.isNetwork {
        from.port == to.port && Self.isReached(from.host, by: to.host) && !Self.areApart(from, to)
      } else {
        [("unix", "unix"), ("pty", "tty")].contains { $0 == (from.scheme, to.scheme) }
          && Self.plain(from.path) == Self.plain(to.path)
      }
    let own = "leads back to the route's own listener (\(from.place), line \(listener.place.line))"
    if isSame {
      reader.report(own, at: endpoint.place, endpoint.path)
    } else if to.host == "localhost", Self.mayBeLocalhost.contains(from.host), from.port == to.port,
      from.grammar.authority.isNetwork, to.grammar.authority.isNetwork, !Self.areApart(from, to)
    {
      reader.warn("\(own), unless something else answers there", at: endpoint.place, endpoint.path)
    }
  }

  private static let mayBeLocalhost = ["127.0.0.1", "0.0.0.0", "::1", "::"]

  /// The path without what says nothing; `..` may lead anywhere, behind a link.
  private static func plain(_ path: String) -> String {
    path.split(separator: "/").filter { $0 != "." }.joined(separator: "/")
  }

  /// Whether the port leads them to different routes: by a path, or by a name in TLS.
  private static func areApart(_ listener: EndpointURL, _ endpoint: EndpointURL) -> Bool {
    let pathsDecide = [listener, endpoint].allSatisfy { ["ws", "wss"].contains($0.scheme) }
    return listener.string("server-name") != nil || (pathsDecide && listener.path != endpoint.path)
  }

  /// Whether who calls `host` from this machine certainly comes to a listener there. `localhost` may be ::1, and somebody else's there.
  private static func isReached(_ listener: String, by host: String) -> Bool {
    switch listener {
    case "": host == "localhost" || host == "::1" || host.hasPrefix("127.")
    case "0.0.0.0": host.hasPrefix("127.")
    case "::": host == "::1"
    default: host == listener
    }
  }
}
