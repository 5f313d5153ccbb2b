// The output of `baudway status`: a snapshot as text tables. With an earlier snapshot it also shows rates.

import ByteStreams

package struct StatusTable {
  private let snapshot: Snapshot
  private let before: Snapshot?
  /// The earlier figures of routes by name, and of their clients by number.
  private let earlier: [String: (totals: Snapshot.Totals, clients: [UInt64: Snapshot.Client])]
  private let paint: Paint
  private let room: Int?

  /// `before` is an earlier snapshot of the same gateway, for rates. `room` is the width of the terminal in columns;
  /// nil = no limit.
  package init(_ snapshot: Snapshot, since before: Snapshot? = nil, hasColours: Bool, within room: Int? = nil) {
    self.snapshot = snapshot
    self.room = room
    let isEarlier = before.map { $0.process == snapshot.process && $0.nanoseconds < snapshot.nanoseconds } ?? false
    self.before = isEarlier ? before : nil
    let routes = (self.before?.routes ?? []).map { route in
      (route.name, (route.totals, Dictionary(route.clients.map { ($0.number, $0) }) { first, _ in first }))
    }
    earlier = Dictionary(routes) { first, _ in first }
    paint = Paint(isOn: hasColours)
  }

  /// Lines without line ends. Nothing in them moves a terminal's cursor.
  package var lines: [String] {
    var lines = [headline] + faults + refusals + handshakes + admin + [""] + routes
    if snapshot.routes.contains(where: { !$0.clients.isEmpty }) { lines += [""] + clients }
    if snapshot.routes.contains(where: { !$0.totals.ended.isEmpty }) { lines += [""] + endings }
    return lines
  }

  private var headline: String {
    let count = snapshot.routes.reduce(0) { $0 + $1.clients.count }
    let health = snapshot.isHealthy ? paint("healthy", .green) : paint("not healthy", .red)
    let name = paint(TextTable.Cell("baudway \(snapshot.version)").text, .bold)
    let figures = "\(Figures.count(snapshot.routes.count, "route")), \(Figures.count(count, "client"))"
    return "\(name), pid \(snapshot.process), up \(Figures.age(snapshot.nanoseconds)): \(health), \(figures)"
  }

  private var handshakes: [String] {
    guard let handshakes = snapshot.handshakes, handshakes.refused > 0 else { return [] }
    let refused = Figures.count(Int(clamping: handshakes.refused), "handshake")
    return [paint("\(refused) refused: \(handshakes.unfinished) of \(handshakes.most) are unfinished", .yellow)]
  }

  private var admin: [String] {
    snapshot.admin.map { one in
      let cell = listener(one)
      guard case .waiting(let error, _) = one.state else { return TextTable.Cell("admin: \(cell.text)").text }
      return paint(TextTable.Cell("admin: \(cell.text): \(error)").text, .yellow)
    }
  }

  private var faults: [String] {
    let certificates = snapshot.certificateFaults.map { "not applied: \($0)" }
    return (certificates + failedReload).map { paint(TextTable.Cell($0).text, .red) }
  }

  private var failedReload: [String] {
    guard let failed = snapshot.failedReload else { return [] }
    let more = failed.more > 0 ? ["  and \(failed.more) more"] : []
    return ["the last reload failed \(Figures.age(failed.nanoseconds)) ago; the previous configuration is in force:"]
      + failed.problems.map { "  \($0)" } + more
  }

  private var refusals: [String] {
    let refused = snapshot.refused.filter { $0.value > 0 }.sorted { ($1.value, $0.key) < ($0.value, $1.key) }
    guard !refused.isEmpty else { return [] }
    let text = refused.map { "\($0.value) \($0.key)" }.joined(separator: ", ")
    return [paint(TextTable.Cell("refused: \(text)").text, .yellow)]
  }

  // MARK: - Routes

  private var routes: [String] {
    var table = TextTable(["ROUTE", "LINK", "ENDPOINT", "LISTENERS", "CLIENTS"] + traffic + ["DROPPED"], paint)
    table.alignRight(4...5 + traffic.count)
    table.allow(.init(least: 8, weight: 2), of: 0)
    table.allow(.init(least: 12, weight: 2), of: 1)
    table.allow(.init(least: 12, weight: 2, rank: 2), of: 2)
    table.allow(.init(least: 12, rank: 1), of: 3)
    for route in snapshot.routes {
      var cells: [TextTable.Cell] = [
        .init(route.name), link(of: route), .init(route.endpoint), listener(route.listeners.first),
        .init("\(route.clients.count)/\(route.maxClients)"),
      ]
      let rates = rate(of: route)
      cells += figures(route.totals.up, rates?.up) + figures(route.totals.down, rates?.down)
      table.add(cells + [dropped(route.totals.dropped)])
      for other in route.listeners.dropFirst() { table.add(["", "", "", listener(other)]) }
      for note in notes(on: route) { table.note("  " + note) }
    }
    return table.lines(within: room)
  }

  private func link(of route: Snapshot.Route) -> TextTable.Cell {
    if route.isStuck { return .init("no answer", .red) }
    guard let state = route.state else {
      let words = route.links.sorted { $0.key > $1.key }.filter { $0.value > 0 }
      return words.isEmpty ? .init("-", .dim) : .init(words.map { "\($0.value) \($0.key)" }.joined(separator: ", "))
    }
    let colour: Paint.Colour = ["open": .green, "closed": .dim][state.word] ?? .yellow
    let line = state.line.map { " at \($0)" } ?? ""
    return .init("\(state.word) \(Figures.age(state.nanoseconds))\(line)", colour)
  }

  private func listener(_ listener: Snapshot.Listener?) -> TextTable.Cell {
    switch listener?.state {
    case .listening(let bound)?: .init(bound)
    case .waiting?: .init((listener?.url ?? "") + " waits", .yellow)
    case .starting?: .init((listener?.url ?? "") + " starts", .dim)
    case nil: ""
    }
  }

  private func notes(on route: Snapshot.Route) -> [String] {
    var notes: [String] = []
    if route.isStuck { notes.append("a lane of this route does not answer; its part of the status is missing here") }
    if let device = route.state?.device, !device.isEmpty { notes.append("device: \(device.summary)") }
    if let hold = route.state?.hold {
      notes.append("output is held by \(hold.cause.rawValue.uppercased()) since \(Figures.age(hold.nanoseconds))")
    }
    if let lost = route.state?.overruns, lost > 0 {
      notes.append("overrun: the port has lost \(Figures.count(Int(clamping: lost), "byte")) since it was opened")
    }
    if let capture = route.capture, let error = capture.error {
      notes.append("the recording has stopped" + (capture.file.map { " (\($0))" } ?? "") + ": \(error)")
    }
    if let capture = route.capture, capture.dropped > 0 {
      notes.append("not recorded: \(Figures.count(Int(clamping: capture.dropped), "byte"))")
    }
    if let reason = route.state?.reason {
      notes.append(reason + (route.state?.retry.map { "; next try in \(Figures.age($0.nanoseconds))" } ?? ""))
    }
    for listener in route.listeners {
      if case .waiting(let error, _) = listener.state {
        notes.append("\(listener.url) has been waiting for \(Figures.age(listener.nanoseconds)): \(error)")
      }
      if let limit = listener.limit { notes.append("\(listener.url) is limited: \(limit)") }
    }
    if route.totals.perAddress > 0 {
      notes.append("\(route.totals.perAddress) refused: too many clients from their address (clients.per-address)")
    }
    if route.totals.lineRefusals > 0 {
      notes.append("changes of the line refused: \(route.totals.lineRefusals)")
    }
    if route.queued > 0 { notes.append("\(Figures.count(route.queued, "client")) in the queue") }
    return notes
  }

  // MARK: - Clients

  private var clients: [String] {
    var table = TextTable(
      ["SESSION", "ROUTE", "CLIENT", "LISTENER", "SINCE"] + traffic + ["QUEUED", "DROPPED", ""], paint)
    table.alignRight(0...0)
    table.alignRight(4...6 + traffic.count)
    table.allow(.init(least: 8, weight: 2), of: 1)
    table.allow(.init(least: 14, weight: 2), of: 2)
    table.allow(.init(least: 10, rank: 1), of: 3)
    table.allow(.init(rank: 2), of: 4)
    var least = 0
    for route in snapshot.routes {
      for client in route.clients {
        least = max(least, rights(of: client).joined(separator: ", ").count)
        var cells: [TextTable.Cell] = [
          .init("\(client.number)"), .init(route.name), .init(client.address ?? "local"), .init(client.listener),
          .init(Figures.age(client.nanoseconds)),
        ]
        let rates = rate(of: client, on: route)
        cells += figures(client.up, rates?.up) + figures(client.down, rates?.down)
        cells.append(.init(Figures.bytesOrNone(client.queuedUp &+ client.queuedDown)))
        table.add(cells + [dropped(client.dropped), marks(of: client)])
      }
    }
    // The rights of a client are never cut; its user and its TLS version may be.
    table.allow(.init(least: least, weight: 2), of: 7 + traffic.count)
    return table.lines(within: room)
  }

  private func marks(of client: Snapshot.Client) -> TextTable.Cell {
    let marks = rights(of: client) + [client.user, client.tls].compactMap(\.self)
    return .init(marks.joined(separator: ", "), client.isWriter == true ? .green : .dim)
  }

  private func rights(of client: Snapshot.Client) -> [String] {
    var rights: [String] = []
    if client.isWriter == true { rights.append("writer") }
    if client.role == .monitor { rights.append("monitor") }
    if client.phase != .open {
      rights.append(client.phase.rawValue + (client.closingNanoseconds.map { " " + Figures.age($0) } ?? ""))
    }
    return rights
  }

  // MARK: - Endings

  private var endings: [String] {
    var table = TextTable(["ROUTE", "ENDED", "BY"], paint)
    table.alignRight(1...1)
    for route in snapshot.routes where !route.totals.ended.isEmpty {
      let words = route.totals.ended.sorted { ($1.value, $0.key.rawValue) < ($0.value, $1.key.rawValue) }
      table.add([
        .init(route.name), .init("\(route.totals.sessions)"),
        .init(words.map { "\($0.value) \($0.key.rawValue)" }.joined(separator: ", ")),
      ])
    }
    return table.lines(within: room)
  }

  // MARK: - Bytes and rates

  private typealias Rates = (up: UInt64, down: UInt64)

  private var traffic: [String] { before == nil ? ["UP", "DOWN"] : ["UP", "UP/S", "DOWN", "DOWN/S"] }

  private func figures(_ bytes: UInt64, _ rate: UInt64?) -> [TextTable.Cell] {
    let total = TextTable.Cell(Figures.bytes(bytes))
    guard before != nil else { return [total] }
    return [total, .init(Figures.bytesOrNone(rate ?? 0), rate ?? 0 > 0 ? .green : .dim)]
  }

  private func dropped(_ bytes: UInt64) -> TextTable.Cell {
    .init(Figures.bytesOrNone(bytes), bytes > 0 ? .yellow : .dim)
  }

  private func rate(of route: Snapshot.Route) -> Rates? {
    guard let old = earlier[route.name]?.totals else { return nil }
    return (perSecond(route.totals.up, old.up), perSecond(route.totals.down, old.down))
  }

  private func rate(of client: Snapshot.Client, on route: Snapshot.Route) -> Rates? {
    guard before != nil else { return nil }
    let old = earlier[route.name]?.clients[client.number]
    return (perSecond(client.up, old?.up ?? 0), perSecond(client.down, old?.down ?? 0))
  }

  private func perSecond(_ new: UInt64, _ old: UInt64) -> UInt64 {
    guard let before, new > old else { return 0 }
    let seconds = Double(snapshot.nanoseconds - before.nanoseconds) / 1e9
    return UInt64(min(Double(new - old) / seconds, 1e15))
  }
}

/// Numbers in readable units.
enum Figures {
  /// "340 B", "3.4 MiB"
  static func bytes(_ count: UInt64) -> String {
    guard count >= 1024 else { return "\(count) B" }
    var (tenths, unit) = (count / 1024 * 10 + count % 1024 * 10 / 1024, 0)
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while tenths >= 10240 && unit < units.count - 1 { (tenths, unit) = (tenths / 1024, unit + 1) }
    return tenths >= 1000 ? "\(tenths / 10) \(units[unit])" : "\(tenths / 10).\(tenths % 10) \(units[unit])"
  }

  static func bytesOrNone(_ count: UInt64) -> String { count == 0 ? "-" : bytes(count) }

  /// The two largest units: "3d 4h", "2m 5s", "12s", "0.3s".
  static func age(_ nanoseconds: UInt64) -> String {
    let seconds = nanoseconds / 1_000_000_000
    guard seconds > 0 else { return "0.\(nanoseconds / 100_000_000)s" }
    let parts = [(seconds / 86400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")]
    let first = parts.firstIndex { $0.0 > 0 }!  // seconds > 0
    return parts[first...].prefix(2).filter { $0.0 > 0 }.map { "\($0.0)\($0.1)" }.joined(separator: " ")
  }

  static func count(_ number: Int, _ noun: String) -> String { "\(number) \(noun)\(number == 1 ? "" : "s")" }
}
