// All routes of an import: unique names, one route for each device, and nothing that `check` would refuse.

import StreamBroker

struct ImportDraft {
  let source: Ser2netFile
  let file: String
  var routes: [RouteDraft] = []
  /// The connections whose listeners a route has as well, by its index.
  var joined: [Int: [Ser2netFile.Connection]] = [:]

  init(_ source: Ser2netFile, file: String) {
    self.source = source
    self.file = file
    routes = source.connections.map(Self.route)
    nameRoutes()
    shareDevices()
  }

  private static func route(_ connection: Ser2netFile.Connection) -> RouteDraft {
    var route = RouteDraft(connection)
    route.obstacles = connection.faults
    if connection.faults.isEmpty {
      route.readAccepter()
      let serial = route.readConnector()
      route.readOptions(serial)
    }
    if !route.obstacles.isEmpty { (route.lost, route.notes) = ([], []) }
    if !connection.isEnabled {
      route.pause = Ser2netFile.Text(
        text: "it is off in ser2net; without the # it is a route", location: connection.location)
    }
    return route
  }

  // MARK: - Names

  private static let nameLimit = 64

  private mutating func nameRoutes() {
    var taken: Set<String> = []
    for index in routes.indices {
      let name = Self.name(routes[index].connection.name)
      var unique = name
      var number = 2
      while !taken.insert(unique).inserted {
        let end = "-\(number)"
        unique = name.prefix(Self.nameLimit - end.count) + end
        number += 1
      }
      routes[index].name = unique
    }
  }

  /// `[a-z0-9._-]+`
  private static func name(_ text: String) -> String {
    let letters = text.lowercased().map { letter -> Character in
      letter.isASCII && (letter.isLowercase || letter.isNumber || "._-".contains(letter)) ? letter : "-"
    }
    let name = String(letters.prefix(nameLimit))
    return name.contains { $0 != "." && $0 != "-" } ? name : "connection"
  }

  // MARK: - Devices

  /// ser2net opens a device for one of its connections at a time; here one route has it, and its listeners.
  private mutating func shareDevices() {
    var owners: [String: Int] = [:]
    for index in routes.indices where routes[index].isLive {
      guard let device = routes[index].exclusive else { continue }
      guard let owner = owners[device] else {
        owners[device] = index
        continue
      }
      let (first, other) = (routes[owner].name, routes[index])
      let place = other.connection.location
      guard routes[owner].absorb(other) else {
        let settings = routes[owner].endpoint?.split(separator: "?").last ?? ""
        let isSame = routes[owner].endpoint == other.endpoint
        routes[index].pause = Ser2netFile.Text(
          text: isSame
            ? "route '\(first)' has this device, with other limits for clients; a device has one route"
            : "route '\(first)' has this device, with \(settings); a device has one route and one set of line settings",
          location: place)
        continue
      }
      let differences = other.differences(from: routes[owner])
      if !differences.isEmpty {
        routes[owner].lost.append(
          RouteDraft.Lost(
            names: ["own \(differences.joined(separator: ", ")) for \(Suggestion.plain(other.connection.title))"],
            reason: "a route has one for all its listeners", location: place))
      }
      routes[owner].lost += other.lost
      routes[owner].notes += other.notes.filter { !routes[owner].notes.contains($0) }
      joined[owner, default: []].append(other.connection)
      routes[index].listen = []
      routes[index].lost = []
    }
  }

  // MARK: - What `check` says

  /// Comments out the routes that `check` refuses, until it accepts the rest.
  mutating func settle(in environment: ConfigEnvironment, broker: Broker) throws(ConfigProblems) {
    for _ in 0...routes.count {
      guard routes.contains(where: \.isLive) else { return }
      var owners: [(first: Int, route: Int)] = []
      var lines = ["defaults: { clients: { max: 1 } }", "routes:"]
      for index in routes.indices where routes[index].isLive {
        owners.append((lines.count + 1, index))
        lines += Self.judged(routes[index], broker.schemes).lines().map { "  \($0)" }
      }
      do throws(ConfigProblems) {
        _ = try ConfigFile.read(
          Array(lines.joined(separator: "\n").utf8), file: file, in: environment, broker: broker)
        return
      } catch {
        var isOver = true
        for problem in error.list {
          guard let line = problem.location?.line, let owner = owners.last(where: { $0.first <= line }) else {
            continue
          }
          guard routes[owner.route].isLive else { continue }
          isOver = false
          let key = problem.path.split(separator: ".").dropFirst(2).joined(separator: ".")
          routes[owner.route].pause = Ser2netFile.Text(
            text: "\(key.isEmpty ? "" : "\(key): ")\(Self.withoutLines(problem.message))",
            location: routes[owner.route].connection.location)
        }
        if isOver { throw error }
      }
    }
  }

  /// Places in what was judged are none in the result.
  private static func withoutLines(_ message: String) -> String {
    var message = message
    for mark in [", line ", " (line "] {
      while let start = message.firstRange(of: mark) {
        let end = message[start.upperBound...].drop { $0.isNumber || mark.contains("(") && $0 == ")" }.startIndex
        message.removeSubrange(start.lowerBound..<end)
      }
    }
    return message
  }

  /// The route with schemes of this build in the place of those that only later ones have.
  private static func judged(_ route: RouteDraft, _ endpoints: Set<String>) -> RouteDraft {
    var route = route
    let others = ["telnet": "tcp", "telnets": "tls"]
    route.listen = route.listen.map { url in
      let scheme = String(url.prefix { $0 != ":" })
      guard !ListenerSchemes.built.contains(scheme), let other = others[scheme] else { return url }
      return other + url.dropFirst(scheme.count)
    }
    if let endpoint = route.endpoint, !endpoints.contains(String(endpoint.prefix { $0 != ":" })) {
      (route.endpoint, route.link) = ("sim://echo", nil)
    }
    return route
  }

  /// Everything that has no equivalent, with its place in ser2net's file.
  var lost: [ConfigProblem] {
    var lost: [ConfigProblem] = []
    func add(_ text: Ser2netFile.Text, _ title: String) {
      lost.append(
        ConfigProblem(
          file: file, location: text.location, path: Suggestion.plain(title), message: text.text, suggestion: nil))
    }
    for other in source.others { add(Ser2netFile.Text(text: other.reason, location: other.location), other.title) }
    for route in routes {
      let lost = route.lost.map { Ser2netFile.Text(text: $0.text, location: $0.location) }
      for text in route.obstacles + [route.pause].compactMap(\.self) + lost { add(text, route.connection.title) }
    }
    return lost
  }
}

extension Ser2netFile.Other {
  var title: String {
    let word =
      switch kind {
      case .rotator: "rotator"
      case .admin: "admin"
      case .led: "led"
      case .include: "include"
      case .standard: "default"
      case .unknown: "entry"
      }
    return Suggestion.plain([word, name].filter { !$0.isEmpty }.joined(separator: " "))
  }

  var reason: String {
    switch kind {
    case .rotator: "no listener leads to the first free of several devices"
    case .admin: "'baudway status', 'kick' and 'reload' ask the gateway through its control socket"
    case .led: "no LED shows traffic"
    case .standard: RouteDraft.unknownHere[name]?.reason ?? "not carried over"
    case .include: "not read; import the files that it names, too"
    case .unknown: "ser2net has no such entry either"
    }
  }
}
