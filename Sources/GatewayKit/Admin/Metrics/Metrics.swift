// The metrics of a gateway: which families there are, and their samples from figures. Docs/admin.md lists them. The
// labels are names of routes and words of ours, so their number is bounded.

import StreamBroker

/// Figures that belong to no route.
struct GatewayFigures: Sendable {
  struct Lane: Sendable {
    let name: String
    /// How long it took to answer; nil if it did not within a second.
    var nanoseconds: UInt64?
  }

  var version = Version.text
  var isReady = false
  var hasFailedReload = false
  var certificateFaults = 0
  var handshakes = Snapshot.Handshakes(unfinished: 0, most: 0, refused: 0)
  var handshakeFailures: [Ending.Word: UInt64] = [:]
  var refused: [String: UInt64] = [:]
  var lanes: [Lane] = []
  var process = ProcessFigures()
  var adminConnections = 0
}

/// Figures of one route, with what the configuration and the board know.
struct RouteSample: Sendable {
  let name: String
  let maxClients: Int
  let listeners: [Snapshot.Listener]
  let figures: RouteFigures
}

enum Metrics {
  /// A family whose samples come from `Source`.
  struct Family<Source>: Sendable {
    let family: MetricFamily
    let samples: @Sendable (Source, MetricFamily) -> String

    init(
      _ name: String, _ kind: MetricFamily.Kind, _ help: String,
      samples: @escaping @Sendable (Source, MetricFamily) -> String
    ) {
      family = MetricFamily(name, kind, help)
      self.samples = samples
    }
  }

  static let ofGateway: [Family<GatewayFigures>] = [
    Family("baudway_build", .info, "The gateway's version.") { $1.sample(["version": $0.version], true) },
    Family("baudway_ready", .gauge, "1 while every listener is bound.") { $1.sample([:], MetricValue($0.isReady)) },
    Family(
      "baudway_last_reload_successful", .gauge,
      "0 when the last reload was refused; the configuration before it is in force."
    ) {
      $1.sample([:], MetricValue(!$0.hasFailedReload))
    },
    Family("baudway_certificate_faults", .gauge, "Certificate files that cannot be used.") {
      $1.sample([:], MetricValue($0.certificateFaults))
    },
    Family("baudway_handshakes_unfinished", .gauge, "Clients in a handshake: TLS, HTTP, PROXY header or log-in.") {
      $1.sample([:], MetricValue($0.handshakes.unfinished))
    },
    Family("baudway_handshakes_limit", .gauge, "The most unfinished handshakes at a time.") {
      $1.sample([:], MetricValue($0.handshakes.most))
    },
    Family(
      "baudway_handshakes_refused", .counter,
      "Handshakes refused because too many were unfinished or descriptors were short."
    ) {
      $1.sample([:], MetricValue($0.handshakes.refused))
    },
    Family("baudway_handshake_failures", .counter, "Clients that ended before their handshake was finished, by ending.")
    { figures, family in
      Ending.Word.allCases.map { word in
        figures.handshakeFailures[word].map { family.sample(["reason": word.rawValue], MetricValue($0)) } ?? ""
      }.joined()
    },
    Family("baudway_refusals", .counter, "Clients refused for one of these reasons, as status counts them.") {
      figures, family in
      figures.refused.sorted { $0.key < $1.key }.map { family.sample(["reason": $0.key], MetricValue($0.value)) }
        .joined()
    },
    Family("baudway_lane_up", .gauge, "1 if the lane answered within a second.") { figures, family in
      figures.lanes.map { family.sample(["lane": $0.name], MetricValue($0.nanoseconds != nil)) }.joined()
    },
    Family("baudway_lane_answer_seconds", .gauge, "How long the lane took to answer just now.") { figures, family in
      figures.lanes.map { lane in
        lane.nanoseconds.map { family.sample(["lane": lane.name], .decimal(Double($0) / 1e9)) } ?? ""
      }.joined()
    },
    Family("baudway_admin_connections", .gauge, "Connections to the admin listener.") {
      $1.sample([:], MetricValue($0.adminConnections))
    },
    Family("process_resident_memory_bytes", .gauge, "Memory in use, shared pages included.") {
      $1.sample([:], MetricValue($0.process.memory))
    },
    Family("process_virtual_memory_bytes", .gauge, "Address space in use.") {
      $1.sample([:], MetricValue($0.process.addressSpace))
    },
    Family("process_open_fds", .gauge, "Open file descriptors.") {
      $1.sample([:], MetricValue($0.process.descriptors))
    },
    Family("process_max_fds", .gauge, "The limit of open file descriptors.") { figures, family in
      figures.process.mostDescriptors.map { family.sample([:], MetricValue($0)) } ?? ""
    },
    Family("process_cpu_seconds", .counter, "User and system time.") {
      $1.sample([:], .decimal($0.process.processorSeconds))
    },
    Family("process_start_time_seconds", .gauge, "When the gateway started, in seconds since 1970.") {
      $1.sample([:], .decimal($0.process.startTime))
    },
  ]

  private static let linkWords = ["closed", "opening", "open", "waiting", "draining"]

  static let ofRoute: [Family<RouteSample>] = [
    Family("baudway_route_up", .gauge, "1 if the route's lanes answered; 0 means that its figures are incomplete.") {
      $1.sample(["route": $0.name], MetricValue(!$0.figures.isStuck))
    },
    Family("baudway_listeners", .gauge, "Listeners by state.") { route, family in
      ["listening", "waiting", "starting"].map { word in
        family.sample(
          ["route": route.name, "state": word], MetricValue(route.listeners.count { $0.state.word == word }))
      }.joined()
    },
    Family("baudway_clients", .gauge, "Clients with a slot.") {
      $1.sample(["route": $0.name], MetricValue($0.figures.clients))
    },
    Family("baudway_clients_limit", .gauge, "clients.max") {
      $1.sample(["route": $0.name], MetricValue($0.maxClients))
    },
    Family("baudway_clients_waiting", .gauge, "Clients that wait for a slot.") {
      $1.sample(["route": $0.name], MetricValue($0.figures.waiting))
    },
    Family("baudway_forwarded_bytes", .counter, "Bytes delivered: up from clients to the endpoint, down to clients.") {
      $1.sample(["route": $0.name, "direction": "up"], MetricValue($0.figures.totals.up))
        + $1.sample(["route": $0.name, "direction": "down"], MetricValue($0.figures.totals.down))
    },
    Family("baudway_dropped_bytes", .counter, "Bytes of either direction that were dropped.") {
      $1.sample(["route": $0.name], MetricValue($0.figures.totals.dropped))
    },
    Family("baudway_queued_bytes", .gauge, "Bytes kept from clients (up) and for them (down).") {
      $1.sample(["route": $0.name, "direction": "up"], MetricValue($0.figures.queuedUp))
        + $1.sample(["route": $0.name, "direction": "down"], MetricValue($0.figures.queuedDown))
    },
    Family(
      "baudway_sessions_ended", .counter,
      "Clients that ended, refused ones included, by ending; endings that never occurred are left out."
    ) { route, family in
      Ending.Word.allCases.map { word in
        route.figures.totals.ended[word].map {
          family.sample(["route": route.name, "ending": word.rawValue], MetricValue($0))
        } ?? ""
      }.joined()
    },
    Family("baudway_per_address_refusals", .counter, "Clients refused because of clients.per-address.") {
      $1.sample(["route": $0.name], MetricValue($0.figures.totals.perAddress))
    },
    Family("baudway_line_changes", .counter, "Requests of clients to change the line, by result.") {
      $1.sample(["route": $0.name, "result": "done"], MetricValue($0.figures.totals.lineChanges))
        + $1.sample(["route": $0.name, "result": "refused"], MetricValue($0.figures.totals.lineRefusals))
    },
    Family("baudway_links", .gauge, "Links to the endpoint by state; a shared link is one.") { route, family in
      linkWords.map {
        family.sample(["route": route.name, "state": $0], MetricValue(route.figures.links[$0] ?? 0))
      }.joined()
    },
    Family("baudway_link_opens", .counter, "How often a link was opened.") {
      $1.sample(["route": $0.name], MetricValue($0.figures.linkCounts.opened))
    },
    Family("baudway_link_losses", .counter, "How often an open link was lost.") {
      $1.sample(["route": $0.name], MetricValue($0.figures.linkCounts.lost))
    },
    Family("baudway_link_open_failures", .counter, "How often a link could not be opened.") {
      $1.sample(["route": $0.name], MetricValue($0.figures.linkCounts.failed))
    },
    Family(
      "baudway_line_errors", .counter,
      "Characters that the serial port's driver counted as wrong or lost, since the driver started."
    ) { route, family in
      guard let line = route.figures.line else { return "" }
      let errors = [
        ("framing", line.framing), ("parity", line.parity), ("overrun", line.overruns),
        ("buffer-overrun", line.bufferOverruns),
      ]
      return errors.map { family.sample(["route": route.name, "error": $0], MetricValue(UInt64($1))) }.joined()
    },
    Family("baudway_line_breaks", .counter, "Breaks that the serial port's driver counted, since the driver started.") {
      route, family in
      route.figures.line.map { family.sample(["route": route.name], MetricValue(UInt64($0.breaks))) } ?? ""
    },
    Family("baudway_capture_up", .gauge, "1 while the route is recorded, 0 if the recording has stopped.") {
      route, family in
      route.figures.capture.map { family.sample(["route": route.name], MetricValue($0.error == nil)) } ?? ""
    },
    Family("baudway_capture_written_bytes", .counter, "Bytes in files of the recording, with their headers.") {
      route, family in
      route.figures.capture.map { family.sample(["route": route.name], MetricValue($0.written)) } ?? ""
    },
    Family("baudway_capture_dropped_bytes", .counter, "Bytes of clients and device that are in no recording.") {
      route, family in
      route.figures.capture.map { family.sample(["route": route.name], MetricValue($0.dropped)) } ?? ""
    },
  ]
}

extension Snapshot.Listener.State {
  /// As in `status`.
  var word: String {
    switch self {
    case .starting: "starting"
    case .listening: "listening"
    case .waiting: "waiting"
    }
  }
}
