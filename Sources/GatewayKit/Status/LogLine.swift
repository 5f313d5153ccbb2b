// One event as one line for the log: its level, its words and its fields in the order people read them.

import ByteStreams
import Glibc
import Logging
import StreamBroker
import StreamTLS

struct LogLine: Sendable {
  enum Value: Sendable {
    case text(String)
    case number(UInt64)
    case seconds(UInt64)  // nanoseconds, shown with three places
  }

  let level: Logger.Level
  /// The same for all events of a kind: "session ended".
  let event: String
  /// With the session's number: "session 17 ended".
  let text: String
  private(set) var fields: [(key: String, value: Value)]

  init(_ level: Logger.Level, _ event: String, text: String? = nil, _ fields: [(String, Value?)] = []) {
    self.level = level
    self.event = event
    self.text = text ?? event
    self.fields = fields.compactMap { key, value in value.map { (key, $0) } }
  }

  private init(_ level: Logger.Level, _ event: String, text: String, fields: [(key: String, value: Value)]) {
    self.level = level
    self.event = event
    self.text = text
    self.fields = fields
  }

  // Who and where first, what it came to last; words that are not here stand in between, by the alphabet.
  private static let first = ["session", "route", "client", "listen", "endpoint", "reason", "up", "down", "dropped"]
  private static let last = ["seconds", "changes", "error", "advice", "retry"]
  private static let rankOfOthers = first.count
  private static let ranks = Dictionary(
    uniqueKeysWithValues: first.enumerated().map { ($1, $0) } + last.enumerated().map { ($1, rankOfOthers + 1 + $0) })

  var fieldsInOrder: [(key: String, value: Value)] {
    let ranked = fields.map { (rank: Self.ranks[$0.key] ?? Self.rankOfOthers, field: $0) }
    // Most lines are made in this order.
    if zip(ranked, ranked.dropFirst()).allSatisfy({ Self.isBefore($0, $1) }) { return fields }
    return ranked.sorted(by: Self.isBefore).map(\.field)
  }

  private typealias Ranked = (rank: Int, field: (key: String, value: Value))
  private static func isBefore(_ one: Ranked, _ other: Ranked) -> Bool {
    one.rank == other.rank ? one.field.key < other.field.key : one.rank < other.rank
  }

  mutating func add(_ more: [(String, Value?)]) { fields += more.compactMap { key, value in value.map { (key, $0) } } }

  init(_ status: StatusEvent) {
    switch status {
    case .started(let routes):
      self.init(.info, "started", [("routes", .number(UInt64(routes))), ("version", .text(Version.text))])
    case .listening(let route, _, let bound):
      self.init(.info, "listening", [("route", .text(route)), ("listen", .text(bound))])
    case .listenerClosed(let route, let listener, let bound):
      self.init(.info, "listener closed", [("route", .text(route)), ("listen", .text(bound ?? listener))])
    case .listenerWaits(let route, let listener, let error, let retry):
      self.init(
        Self.level(of: status), "listener waiting",
        [
          ("route", .text(route)), ("listen", .text(listener)), ("error", .text(error.description)),
          ("retry", .seconds(retry.nanoseconds)),
        ])
    case .listenerLimited(let route, let listener, let limits):
      let place: [(String, Value?)] = [("route", .text(route)), ("listen", .text(listener))]
      let reasons = limits.map(\.description).joined(separator: " | ")
      self.init(
        limits.isEmpty ? .info : .warning, limits.isEmpty ? "listener no longer limited" : "listener limited",
        place + [("error", limits.isEmpty ? nil : .text(reasons))])
    case .inheritedUnused(let socket, let name, let fault):
      self.init(
        .warning, "inherited socket closed",
        [("socket", .text(socket)), ("name", name.map { .text($0) }), ("error", .text(fault.description))])
    case .outOfDescriptors(let route, let listener, let error):
      self.init(
        .error, "out of descriptors",
        [
          ("route", Self.known(route)), ("listen", .text(listener)), ("error", .text(error.description)),
          ("advice", .text("raise the limit of open files (ulimit -n, LimitNOFILE=) or lower clients.max")),
        ])
    case .queue(let route, let waiting):
      self.init(.debug, "queue", [("route", .text(route)), ("waiting", .number(UInt64(waiting)))])
    case .sessionOpened(let route, let number, let label):
      self.init(
        .info, "session opened", text: "session \(number) opened",
        [
          ("session", .number(number)), ("route", .text(route)), ("client", label.clientValue),
          ("listen", .text(label.listener)), ("role", label.roleValue), ("tls", label.tls.map { .text($0) }),
          ("user", label.userValue),
        ])
    case .sessionEnded(let route, let number, let label, let report):
      self.init(route, number, label, report, saysOpening: false)
    case .requestRefused(let label, let fault):
      self.init(
        .info, "request refused",
        [("client", label.clientValue), ("listen", .text(label.listener)), ("error", .text("\(fault)"))])
    case .link(let route, let endpoint, let status, let retry):
      self.init(route: route, endpoint: endpoint, status, retry)
    case .clientLink(let route, let number, let endpoint, let status):
      self.init(route: route, endpoint: endpoint, status, nil)
      self = LogLine(.debug, event, text: "session \(number) \(event)", fields: [("session", .number(number))] + fields)
    case .deviceKnown(let route, let endpoint, let facts):
      self.init(
        .info, "device known",
        [("route", .text(route)), ("endpoint", .text(endpoint))] + facts.named.map { ($0.name, .text($0.text)) })
    case .linkDropped(let route, let endpoint, let bytes):
      self.init(
        .warning, "link drops",
        [("route", .text(route)), ("endpoint", .text(endpoint)), ("dropped", .number(bytes))])
    case .endpointSaid(let route, let endpoint, let remark):
      self.init(
        remark.isWarning ? .warning : .info, "endpoint says",
        [("route", .text(route)), ("endpoint", .text(endpoint)), ("text", .text(remark.line))])
    case .bondKept(let device, let path):
      self.init(.info, "bond kept", [("device", .text(device)), ("path", .text(path))])
    case .bondTrouble(let trouble): self.init(.warning, "bonds not kept", [("error", .text(trouble))])
    case .pairingRefused(let device, let reason):
      self.init(.warning, "pairing refused", [("device", .text(device)), ("error", .text(reason))])
    case .certificatesRenewed(let files):
      self.init(.info, "certificates renewed", [("files", .text(files.joined(separator: " ")))])
    case .certificatesRefused(let fault):
      self.init(.error, "certificates refused", [("error", .text(fault.description))])
    case .certificateDoubtful(let warning): self.init(.warning, "certificate in doubt", [("error", .text(warning))])
    case .certificateFaults(let faults):
      self.init(.debug, "certificates at fault", [("count", .number(UInt64(faults.count)))])
    case .internalFault(let route, let fault):
      self.init(
        .error, "internal fault",
        [("route", .text(route)), ("place", .text(fault.place)), ("error", .text(fault.description))])
    case .routeStopped(let route): self.init(.info, "route stopped", [("route", .text(route))])
    case .routeConfigured(let route, let listeners):
      self.init(.debug, "route configured", [("route", .text(route)), ("listeners", .number(UInt64(listeners.count)))])
    case .writerChanged(let route, let from, let to):
      self.init(
        .info, "writer changed",
        [("route", .text(route)), ("from", from.map { .number($0) }), ("to", to.map { .number($0) })])
    case .dropped(let route, let number, let bytes, let total):
      self.init(
        .warning, "session drops", text: "session \(number) drops",
        [("session", .number(number)), ("route", .text(route)), ("dropped", .number(bytes)), ("total", .number(total))])
    case .reloading: self.init(.debug, "reloading")
    case .reloaded(let report): self.init(report)
    case .reloadFailed(let problems):
      self.init(.error, "reload failed", [("error", .text(problems.joined(separator: " | ")))])
    case .watchFailed(let error, let path):
      self.init(
        .warning, "configuration not watched", [("path", .text(path)), ("error", .text(error.description))])
    case .controlFailed(let error, let path):
      let taken = "another gateway has it, and answers there: name another under control.socket"
      let failure =
        error.cause?.errno == EADDRINUSE ? OpenFailure(error.attempt, error.cause, advice: taken) : error
      self.init(
        .warning, "control socket failed", [("path", .text(path)), ("error", .text(failure.description))])
    case .stopping: self.init(.info, "stopping")
    case .stopped: self.init(.info, "stopped")
    }
  }

  /// With `saysOpening` it has what an opening line would have said.
  init(_ route: String, _ number: UInt64, _ label: Arrival.Label, _ report: SessionReport, saysOpening: Bool) {
    self.init(
      report.ending.word == .internal ? .error : .info, "session ended", text: "session \(number) ended",
      [
        ("session", .number(number)), ("route", Self.known(route)), ("client", label.clientValue),
        ("listen", saysOpening ? .text(label.listener) : nil), ("reason", .text(report.ending.word.rawValue)),
        ("up", .number(report.up)), ("down", .number(report.down)), ("dropped", .number(report.dropped)),
        ("place", (report.ending.cause as? InternalFault).map { .text($0.place) }),
        ("role", saysOpening ? label.roleValue : nil), ("tls", saysOpening ? label.tls.map { .text($0) } : nil),
        ("user", label.userValue), ("seconds", .seconds(report.nanoseconds)),
        ("error", report.ending.cause.map { .text("\($0)") }),
      ])
  }

  // A reload may change thousands of routes; the line names so many and counts all.
  private static let mostNamed = 20

  /// On a port that routes share it is not known before somebody has said where he wants to go.
  private static func known(_ route: String) -> Value? { route.isEmpty ? nil : .text(route) }

  private init(_ report: ReloadReport) {
    var changes = report.added.map { "+\($0)" } + report.removed.map { "-\($0)" }
    changes += report.changed.map { "\($0.route)(\($0.keys.joined(separator: ",")))" } + report.settings
    if changes.count > Self.mostNamed { changes = changes.prefix(Self.mostNamed) + ["…"] }
    self.init(
      .info, "reloaded",
      [
        ("added", .number(UInt64(report.added.count))), ("removed", .number(UInt64(report.removed.count))),
        ("changed", .number(UInt64(report.changed.count))), ("routes", .number(UInt64(report.routes))),
        ("changes", changes.isEmpty ? nil : .text(changes.joined(separator: " "))),
        ("error", report.certificateFaults.isEmpty ? nil : .text(report.certificateFaults.joined(separator: " | "))),
      ])
  }

  private init(route: String, endpoint: String, _ status: LinkStatus, _ retry: Duration?) {
    let place: [(String, Value?)] = [
      ("route", .text(route)), ("endpoint", .text(endpoint)), ("retry", retry.map { .seconds($0.nanoseconds) }),
    ]
    switch status {
    case .opening, .draining: self.init(.debug, "link \(status.word)", place)
    case .open, .closed: self.init(.info, "link \(status.word)", place)
    case .waiting(.lost(let error)):
      self.init(.warning, "link lost", place + [("error", .text(error?.description ?? "the endpoint ended"))])
    case .waiting(.exited(let end)):
      self.init(.warning, "link lost", place + [("error", .text(end.description))])
    case .waiting(.broken(let fault)):
      self.init(
        .error, "link lost", place + [("place", .text(fault.place)), ("error", .text(fault.description))])
    case .waiting(.openFailed(let failure)):
      self.init(.warning, "link waiting", place + [("error", .text(failure.description))])
    }
  }

  /// What an event's line will be, without making it.
  static func level(of status: StatusEvent) -> Logger.Level {
    switch status {
    // The file is reported once, for all its listeners.
    case .listenerWaits(_, _, let failure, _) where failure.attempt == Entrance.certificate: .debug
    case .link(_, _, .waiting(.broken), _): .error
    case .listenerWaits, .inheritedUnused, .controlFailed, .watchFailed, .dropped, .linkDropped, .certificateDoubtful,
      .bondTrouble, .pairingRefused, .link(_, _, .waiting, _):
      .warning
    case .outOfDescriptors, .reloadFailed, .certificatesRefused, .internalFault: .error
    case .link(_, _, .opening, _), .link(_, _, .draining, _), .clientLink, .routeConfigured, .queue, .reloading,
      .certificateFaults:
      .debug
    case .sessionEnded(_, _, _, let report): report.ending.word == .internal ? .error : .info
    case .listenerLimited(_, _, let limits): limits.isEmpty ? .info : .warning
    case .endpointSaid(_, _, let remark): remark.isWarning ? .warning : .info
    default: .info
    }
  }
}

extension LogLine.Value: CustomStringConvertible {
  /// Of swift-log's, as far as it is one of ours.
  init(_ value: Logger.MetadataValue) {
    switch value {
    case .stringConvertible(let number as UInt64): self = .number(number)
    case .stringConvertible(let seconds as Seconds): self = .seconds(seconds.nanoseconds)
    default: self = .text("\(value)")
    }
  }

  var description: String {
    switch self {
    case .text(let text): text
    case .number(let number): String(number)
    case .seconds(let nanoseconds): Seconds(nanoseconds: nanoseconds).description
    }
  }
}

extension Arrival.Label {
  fileprivate var clientValue: LogLine.Value? { client.map { .text($0) } }
  fileprivate var roleValue: LogLine.Value? { role == .writer ? nil : .text(role.rawValue) }
  fileprivate var userValue: LogLine.Value? { identity.name.map { .text($0) } }
}
