// One event as one log line: its level, its text, and its fields in reading order.

import ByteStreams
import Glibc
import Logging
import StreamBroker
import StreamWebSocket
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

  // Names and places first, results last. Other fields are in between, in alphabetical order.
  private static let first = ["session", "route", "client", "listen", "endpoint", "reason", "up", "down", "dropped"]
  private static let last = ["seconds", "changes", "error", "advice", "retry"]
  private static let rankOfOthers = first.count
  private static let ranks = Dictionary(
    uniqueKeysWithValues: first.enumerated().map { ($1, $0) } + last.enumerated().map { ($1, rankOfOthers + 1 + $0) })

  var fieldsInOrder: [(key: String, value: Value)] {
    let ranked = fields.map { (rank: Self.ranks[$0.key] ?? Self.rankOfOthers, field: $0) }
    // Most lines are in this order already.
    if zip(ranked, ranked.dropFirst()).allSatisfy({ Self.isBefore($0, $1) }) { return fields }
    return ranked.sorted(by: Self.isBefore).map(\.field)
  }

  private typealias Ranked = (rank: Int, field: (key: String, value: Value))
  private static func isBefore(_ one: Ranked, _ other: Ranked) -> Bool {
    one.rank == other.rank ? one.field.key < other.field.key : one.rank < other.rank
  }

  mutating func add(_ more: [(String, Value?)]) { fields += more.compactMap { key, value in value.map { (key, $0) } } }

  init(_ status: StatusEvent) {
    let level = Self.level(of: status)
    switch status {
    case .started(let routes):
      self.init(level, "started", [("routes", .number(UInt64(routes))), ("version", .text(Version.text))])
    case .listening(let route, _, let bound):
      self.init(level, "listening", [("route", Self.known(route)), ("listen", .text(bound))])
    case .listenerClosed(let route, let listener, let bound):
      self.init(level, "listener closed", [("route", Self.known(route)), ("listen", .text(bound ?? listener))])
    case .listenerWaits(let route, let listener, let error, let retry):
      self.init(
        level, "listener waiting",
        [
          ("route", Self.known(route)), ("listen", .text(listener)), ("error", .text(error.description)),
          ("retry", .seconds(retry.nanoseconds)),
        ])
    case .listenerLimited(let route, let listener, let limits):
      let context: [(String, Value?)] = [("route", .text(route)), ("listen", .text(listener))]
      let reasons = limits.map(\.description).joined(separator: " | ")
      self.init(
        level, limits.isEmpty ? "listener no longer limited" : "listener limited",
        context + [("error", limits.isEmpty ? nil : .text(reasons))])
    case .inheritedUnused(let socket, let name, let fault):
      self.init(
        level, "inherited socket closed",
        [("socket", .text(socket)), ("name", name.map { .text($0) }), ("error", .text(fault.description))])
    case .outOfDescriptors(let route, let listener, let error):
      self.init(
        level, "out of descriptors",
        [
          ("route", Self.known(route)), ("listen", .text(listener)), ("error", .text(error.description)),
          ("advice", .text("raise the limit of open files (ulimit -n, LimitNOFILE=) or lower clients.max")),
        ])
    case .queue(let route, let waiting):
      self.init(level, "queue", [("route", .text(route)), ("waiting", .number(UInt64(waiting)))])
    case .sessionOpened(let route, let number, let label):
      self.init(
        level, "session opened", text: "session \(number) opened",
        [
          ("session", .number(number)), ("route", .text(route)), ("client", label.clientValue),
          ("listen", .text(label.listener)), ("role", label.roleValue), ("tls", label.tls.map { .text($0) }),
          ("user", label.userValue),
        ])
    case .sessionEnded(let route, let number, let label, let report):
      self.init(route, number, label, report, saysOpening: false)
    case .requestRefused(let label, let fault):
      self.init(
        level, "request refused",
        [("client", label.clientValue), ("listen", .text(label.listener)), ("error", .text("\(fault)"))])
    case .subprotocolUnknown(let route, let label, let offered):
      self.init(
        level, "sub-protocol unknown",
        [
          ("route", .text(route)), ("client", label.clientValue), ("listen", .text(label.listener)),
          ("offered", .text(offered)),
          (
            "advice",
            .text(
              "a browser ends this connection; let the page ask for "
                + WebSocketSubprotocol.allCases.map(\.rawValue).joined(separator: " or ") + ", or for none")
          ),
        ])
    case .link(let route, let endpoint, let status, let retry):
      self.init(level, route: route, endpoint: endpoint, status, retry)
    case .clientLink(let route, let number, let endpoint, let status):
      self.init(level, route: route, endpoint: endpoint, status, nil)
      self = LogLine(level, event, text: "session \(number) \(event)", fields: [("session", .number(number))] + fields)
    case .deviceKnown(let route, let endpoint, let facts):
      self.init(
        level, "device known",
        [("route", .text(route)), ("endpoint", .text(endpoint))] + facts.named.map { ($0.name, .text($0.text)) })
    case .portShared(let route, let endpoint, let others):
      self.init(
        level, "port shared",
        [
          ("route", .text(route)), ("endpoint", .text(endpoint)), ("with", .text(others)),
          ("advice", .text("it reads bytes that are for this route; end it, or set exclusive=strict to wait for it")),
        ])
    case .linkDropped(let route, let endpoint, let bytes):
      self.init(
        level, "link drops",
        [("route", .text(route)), ("endpoint", .text(endpoint)), ("dropped", .number(bytes))])
    case .endpointReason(let route, let endpoint, let remark):
      self.init(
        level, "endpoint says",
        [("route", .text(route)), ("endpoint", .text(endpoint)), ("text", .text(remark.line))])
    case .captureBegun(let route, let path):
      self.init(level, "recording", [("route", .text(route)), ("path", .text(path))])
    case .captureStopped(let route, let path, let error):
      self.init(
        level, "recording stopped",
        [
          ("route", .text(route)), ("path", .text(path)), ("error", .text(error.description)),
          ("advice", .text(error.captureAdvice)),
        ])
    case .captureDrops(let route, let path, let loss, let error):
      self.init(
        level, "recording drops",
        [
          ("route", .text(route)), ("dropped", .number(loss.bytes)),
          ("events", loss.events > 0 ? .number(loss.events) : nil), ("path", .text(path)),
          ("error", error.map { .text("the recording had stopped: \($0)") }),
          ("advice", error == nil ? .text("the disk is too slow for this route; record to another one") : nil),
        ])
    case .bondKept(let device, let path):
      self.init(level, "bond kept", [("device", .text(device)), ("path", .text(path))])
    case .bondTrouble(let trouble): self.init(level, "bonds not kept", [("error", .text(trouble))])
    case .pairingRefused(let device, let reason):
      self.init(level, "pairing refused", [("device", .text(device)), ("error", .text(reason))])
    case .certificatesRenewed(let files):
      self.init(level, "certificates renewed", [("files", .text(files.joined(separator: " ")))])
    case .certificatesRefused(let fault):
      self.init(level, "certificates refused", [("error", .text(fault.description))])
    case .certificateDoubtful(let warning): self.init(level, "certificate in doubt", [("error", .text(warning))])
    case .certificateFaults(let faults):
      self.init(level, "certificates at fault", [("count", .number(UInt64(faults.count)))])
    case .internalFault(let route, let fault):
      self.init(
        level, "internal fault",
        [("route", .text(route)), ("place", .text(fault.location)), ("error", .text(fault.description))])
    case .routeStopped(let route): self.init(level, "route stopped", [("route", .text(route))])
    case .routeConfigured(let route, let listeners):
      self.init(level, "route configured", [("route", .text(route)), ("listeners", .number(UInt64(listeners.count)))])
    case .writerChanged(let route, let from, let to):
      self.init(
        level, "writer changed",
        [("route", .text(route)), ("from", from.map { .number($0) }), ("to", to.map { .number($0) })])
    case .lineAsked(let route, let number, let request, let refusal):
      let event = refusal == nil ? "line changed" : "line change refused"
      self.init(
        level, event, text: "session \(number) \(event)",
        [
          ("session", .number(number)), ("route", .text(route)), ("request", .text(request)),
          ("error", refusal.map { .text($0) }),
        ])
    case .dropped(let route, let number, let bytes, let total):
      self.init(
        level, "session drops", text: "session \(number) drops",
        [("session", .number(number)), ("route", .text(route)), ("dropped", .number(bytes)), ("total", .number(total))])
    case .lineReset(let route, let number, let recipe, let error):
      self.init(
        level, "device reset",
        [
          ("session", number.map { .number($0) }), ("route", .text(route)), ("recipe", .text(recipe)),
          ("error", error.map { .text($0.description) }),
        ])
    case .reloading: self.init(level, "reloading")
    case .reloaded(let report): self.init(level, report)
    case .reloadFailed(let problems):
      self.init(level, "reload failed", [("error", .text(problems.joined(separator: " | ")))])
    case .configurationDoubtful(let warning):
      self.init(level, "configuration in doubt", [("error", .text(warning.description))])
    case .watchFailed(let error, let path):
      self.init(
        level, "file not watched",
        [
          ("path", .text(path)), ("error", .text(error.description)),
          ("looks", .text("every \(Units.text(Inotify.pollInterval))")),
        ])
    case .watchesRefused(let refusal):
      let advice = refusal.limit.map { "; raise \($0.rawValue)" } ?? ""
      self.init(
        level, "files not watched",
        [
          ("error", .text(refusal.error.description + advice)),
          ("looks", .text("every \(Units.text(Inotify.pollInterval)), at ports, certificates and configuration")),
        ])
    case .watchesRestored: self.init(level, "files watched again")
    case .controlFailed(let error, let path):
      let taken = "another gateway uses it and answers there; set another path in control.socket"
      let failure =
        error.cause?.errno == EADDRINUSE ? OpenFailure(error.attempt, error.cause, advice: taken) : error
      self.init(
        level, "control socket failed", [("path", .text(path)), ("error", .text(failure.description))])
    case .administered(let action, let user, let client, let error):
      self.init(
        level, "admin \(action.name)",
        [
          ("route", action.route.map { .text($0) }), ("client", client.map { .text($0) }),
          ("detail", action.detail.map { .text($0) }), ("user", user.map { .text($0) }),
          ("error", error.map { .text($0) }),
        ])
    case .stopping: self.init(level, "stopping")
    case .stopped: self.init(level, "stopped")
    }
  }

  /// With `saysOpening` it also has the fields of the opening line.
  init(_ route: String, _ number: UInt64, _ label: AcceptedConnection.Label, _ report: SessionReport, saysOpening: Bool)
  {
    self.init(
      report.level, "session ended", text: "session \(number) ended",
      [
        ("session", .number(number)), ("route", Self.known(route)), ("client", label.clientValue),
        ("listen", saysOpening ? .text(label.listener) : nil), ("reason", .text(report.ending.word.rawValue)),
        ("up", .number(report.up)), ("down", .number(report.down)), ("dropped", .number(report.dropped)),
        ("place", (report.ending.cause as? InternalFault).map { .text($0.location) }),
        ("role", saysOpening ? label.roleValue : nil), ("tls", saysOpening ? label.tls.map { .text($0) } : nil),
        ("user", label.userValue), ("seconds", .seconds(report.nanoseconds)),
        ("error", report.ending.cause.map { .text("\($0)") }),
      ])
  }

  // A reload may change thousands of routes. The line names this many and counts all.
  private static let mostNamed = 20

  /// On a port that routes share, the route is unknown until the client has asked for it.
  private static func known(_ route: String) -> Value? { route.isEmpty ? nil : .text(route) }

  private init(_ level: Logger.Level, _ report: ReloadReport) {
    var changes = report.added.map { "+\($0)" } + report.removed.map { "-\($0)" }
    changes += report.changed.map { "\($0.route)(\($0.keys.joined(separator: ",")))" } + report.settings
    if changes.count > Self.mostNamed { changes = changes.prefix(Self.mostNamed) + ["…"] }
    self.init(
      level, "reloaded",
      [
        ("added", .number(UInt64(report.added.count))), ("removed", .number(UInt64(report.removed.count))),
        ("changed", .number(UInt64(report.changed.count))), ("routes", .number(UInt64(report.routes))),
        ("changes", changes.isEmpty ? nil : .text(changes.joined(separator: " "))),
        ("error", report.certificateFaults.isEmpty ? nil : .text(report.certificateFaults.joined(separator: " | "))),
      ])
  }

  private init(_ level: Logger.Level, route: String, endpoint: String, _ status: LinkStatus, _ retry: Duration?) {
    let link: [(String, Value?)] = [
      ("route", .text(route)), ("endpoint", .text(endpoint)), ("retry", retry.map { .seconds($0.nanoseconds) }),
    ]
    switch status {
    case .opening, .draining, .open, .closed: self.init(level, "link \(status.word)", link)
    case .waiting(.released): self.init(level, "link released", link)
    case .waiting(.lost(let error)):
      self.init(level, "link lost", link + [("error", .text(error?.description ?? "the endpoint ended"))])
    case .waiting(.exited(let end)):
      self.init(level, "link lost", link + [("error", .text(end.description))])
    case .waiting(.broken(let fault)):
      self.init(
        level, "link lost", link + [("place", .text(fault.location)), ("error", .text(fault.description))])
    case .waiting(.openFailed(let failure)):
      self.init(level, "link waiting", link + [("error", .text(failure.description))])
    }
  }

  /// The level of an event's line, without making the line.
  static func level(of status: StatusEvent) -> Logger.Level {
    switch status {
    // A certificate's file is reported once for all its listeners, so each listener's line is only for debugging.
    case .listenerWaits(_, _, let failure, _) where failure.attempt == SharedListenSocket.certificate: .debug
    case .link(_, _, .waiting(.broken), _): .error
    case .link(_, _, .waiting(.released), _): .info
    case .listenerWaits, .inheritedUnused, .controlFailed, .watchFailed, .watchesRefused, .dropped, .linkDropped,
      .certificateDoubtful, .configurationDoubtful, .bondTrouble, .pairingRefused, .portShared, .subprotocolUnknown,
      .captureStopped, .captureDrops, .link(_, _, .waiting, _):
      .warning
    case .outOfDescriptors, .reloadFailed, .certificatesRefused, .internalFault: .error
    case .link(_, _, .opening, _), .link(_, _, .draining, _), .clientLink, .routeConfigured, .queue, .reloading,
      .certificateFaults:
      .debug
    case .administered: .notice
    case .lineAsked(_, _, _, let refusal): refusal == nil ? .debug : .info
    case .sessionEnded(_, _, _, let report): report.level
    case .lineReset(_, _, _, let error): error == nil ? .info : .warning
    case .listenerLimited(_, _, let limits): limits.isEmpty ? .info : .warning
    case .endpointReason(_, _, let remark): remark.isWarning ? .warning : .info
    default: .info
    }
  }
}

extension SystemError {
  /// What to do when a recording has stopped.
  fileprivate var captureAdvice: String {
    switch errno {
    case ENOSPC, EDQUOT: "free some space, or lower capture.rotate and capture.keep; then reload"
    case EACCES, EPERM, EROFS, ENOENT, ENOTDIR:
      "name a file in a folder that the gateway may write to, such as its state folder; then reload"
    case EFBIG: "lower capture.rotate, then reload"
    case EMFILE, ENFILE: "raise the limit of open files (ulimit -n, LimitNOFILE=)"
    default: "reload to begin again"
    }
  }
}

extension LogLine.Value: CustomStringConvertible {
  /// From a value of swift-log; any but ours becomes text.
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

extension SessionReport {
  fileprivate var level: Logger.Level { ending.word == .internal ? .error : .info }
}

extension AcceptedConnection.Label {
  fileprivate var clientValue: LogLine.Value? { client.map { .text($0) } }
  fileprivate var roleValue: LogLine.Value? { role == .writer ? nil : .text(role.rawValue) }
  fileprivate var userValue: LogLine.Value? { identity.name.map { .text($0) } }
}
