// A snapshot as JSON and back: the answer to `status` at the control socket. Its keys are stable
// (Docs/control-socket.md). Later versions may add some, so a reader ignores unknown ones. Metrics are texts of their
// own: Admin/Metrics/MetricsText.swift.

import ByteStreams
import StreamBroker

extension Snapshot {
  /// Everything except the routes, for answers sent route by route. Ends after the routes' opening bracket.
  var opening: String {
    let head = JSONValue.object([
      "protocol": .integer(ControlRequest.version), "version": .text(version), "pid": .integer(process),
      "seconds": .seconds(nanoseconds), "healthy": .bool(isHealthy),
      "certificate-faults": certificateFaults.isEmpty ? nil : .array(certificateFaults.map { .text($0) }),
      "refused": refused.isEmpty
        ? nil
        : .object(refused.sorted { $0.key < $1.key }.map { JSONValue.Member(key: $0.key, value: .integer($0.value)) }),
      "reload-failed": failedReload.map { failed in
        .object([
          "seconds": .seconds(failed.nanoseconds), "problems": .array(failed.problems.map { .text($0) }),
          "more": failed.more > 0 ? .integer(failed.more) : nil,
        ])
      },
      "handshakes": handshakes?.json, "admin": admin.isEmpty ? nil : .array(admin.map(\.json)),
    ])
    return String(head.description.dropLast()) + ",\"routes\":["
  }

  static let closing = "]}"

  init?(_ json: JSONValue) {
    guard let version = json["version"]?.text, let process = json["pid"]?.integer,
      let nanoseconds = json["seconds"]?.nanoseconds, let isHealthy = json["healthy"]?.flag,
      let routes = json["routes"]?.array
    else { return nil }
    self.init(
      version: version, process: Int(clamping: process), nanoseconds: nanoseconds, isHealthy: isHealthy,
      certificateFaults: (json["certificate-faults"]?.array ?? []).compactMap(\.text),
      failedReload: json["reload-failed"].map { failed in
        FailedReload(
          problems: (failed["problems"]?.array ?? []).compactMap(\.text),
          more: Int(clamping: failed["more"]?.integer ?? 0),
          nanoseconds: failed["seconds"]?.nanoseconds ?? 0)
      }, routes: routes.compactMap { Route($0) })
    guard self.routes.count == routes.count else { return nil }
    for member in json["refused"]?.members ?? [] { refused[member.key] = member.value.integer }
    handshakes = json["handshakes"].flatMap { Handshakes($0) }
    admin = (json["admin"]?.array ?? []).compactMap { Listener($0) }
  }
}

extension Snapshot.Handshakes {
  fileprivate var json: JSONValue {
    .object(["unfinished": .integer(unfinished), "most": .integer(most), "refused": .integer(refused)])
  }

  fileprivate init?(_ json: JSONValue) {
    guard let unfinished = json["unfinished"]?.integer, let most = json["most"]?.integer else { return nil }
    self.init(
      unfinished: Int(clamping: unfinished), most: Int(clamping: most), refused: json["refused"]?.integer ?? 0)
  }
}

extension Snapshot.Route {
  /// Everything except the clients. Ends after their opening bracket.
  var opening: String {
    let counts = links.sorted { $0.key < $1.key }.map { JSONValue.Member(key: $0.key, value: .integer($0.value)) }
    let head = JSONValue.object([
      "route": .text(name), "endpoint": .text(endpoint), "link": .text(link.rawValue),
      "state": state?.json, "links": link == .perClient ? .object(counts) : nil,
      "max-clients": .integer(maxClients), "queued": .integer(queued), "stuck": isStuck ? .bool(true) : nil,
      "listeners": .array(listeners.map(\.json)), "capture": capture?.json, "totals": totals.json,
    ])
    return String(head.description.dropLast()) + ",\"clients\":["
  }

  static let closing = "]}"

  init?(_ json: JSONValue) {
    guard let name = json["route"]?.text, let endpoint = json["endpoint"]?.text,
      let link = json["link"]?.text.flatMap({ Config.Link(rawValue: $0) }), let max = json["max-clients"]?.integer,
      let clients = json["clients"]?.array, let listeners = json["listeners"]?.array
    else { return nil }
    self.init(name: name, endpoint: endpoint, link: link, maxClients: Int(clamping: max))
    queued = Int(clamping: json["queued"]?.integer ?? 0)
    self.listeners = listeners.compactMap { Snapshot.Listener($0) }
    state = json["state"].flatMap { Snapshot.LinkState($0) }
    capture = json["capture"].flatMap { Snapshot.Capture($0) }
    for member in json["links"]?.members ?? [] { links[member.key] = Int(clamping: member.value.integer ?? 0) }
    totals = json["totals"].map { Snapshot.Totals($0) } ?? Snapshot.Totals()
    self.clients = clients.compactMap { Snapshot.Client($0) }
    isStuck = json["stuck"]?.flag ?? false
  }
}

extension Snapshot.Listener {
  fileprivate var json: JSONValue {
    let (word, bound, error, retry): (String, String?, String?, Duration?) =
      switch state {
      case .starting: ("starting", nil, nil, nil)
      case .listening(let bound): ("listening", bound, nil, nil)
      case .waiting(let error, let retry): ("waiting", nil, error, retry)
      }
    return .object([
      "listen": .text(url), "state": .text(word), "seconds": .seconds(nanoseconds), "bound": bound.map { .text($0) },
      "error": error.map { .text($0) }, "retry": retry.map { .seconds($0.nanoseconds) },
      "limited": limit.map { .text($0) },
    ])
  }

  fileprivate init?(_ json: JSONValue) {
    guard let url = json["listen"]?.text, let nanoseconds = json["seconds"]?.nanoseconds else { return nil }
    let retry = Duration.nanoseconds(Int64(clamping: json["retry"]?.nanoseconds ?? 0))
    switch json["state"]?.text {
    case "listening"?: state = .listening(json["bound"]?.text ?? url)
    case "waiting"?: state = .waiting(error: json["error"]?.text ?? "", retry: retry)
    default: state = .starting
    }
    self.url = url
    self.nanoseconds = nanoseconds
    limit = json["limited"]?.text
  }
}

extension Snapshot.LinkState {
  fileprivate var json: JSONValue {
    .object([
      "word": .text(word), "seconds": .seconds(nanoseconds), "line": line.map { .text($0) },
      "device": device?.json, "reason": reason.map { .text($0) }, "released": isReleased ? .bool(true) : nil,
      "retry": retry.map { .seconds($0.nanoseconds) },
      "held": hold.map { .object(["by": .text($0.cause.rawValue), "seconds": .seconds($0.nanoseconds)]) },
      "overrun": overruns.map { .integer($0) },
    ])
  }

  fileprivate init?(_ json: JSONValue) {
    guard let word = json["word"]?.text, let nanoseconds = json["seconds"]?.nanoseconds else { return nil }
    self.init(
      word: word, nanoseconds: nanoseconds, line: json["line"]?.text,
      device: json["device"].flatMap { DeviceFacts($0) },
      reason: json["reason"]?.text, isReleased: json["released"]?.flag ?? false,
      retry: json["retry"]?.nanoseconds.map { .nanoseconds(Int64(clamping: $0)) },
      hold: json["held"].flatMap { held in
        held["by"]?.text.flatMap { OutputHold.Cause(rawValue: $0) }.map {
          Snapshot.Hold(cause: $0, nanoseconds: held["seconds"]?.nanoseconds ?? 0)
        }
      }, overruns: json["overrun"]?.integer)
  }
}

extension Snapshot.Capture {
  fileprivate var json: JSONValue {
    .object([
      "file": file.map { .text($0) }, "error": error.map { .text($0) }, "written": .integer(written),
      "dropped": .integer(dropped),
    ])
  }

  fileprivate init?(_ json: JSONValue) {
    guard let written = json["written"]?.integer, let dropped = json["dropped"]?.integer else { return nil }
    self.init(file: json["file"]?.text, error: json["error"]?.text, written: written, dropped: dropped)
  }
}

extension Snapshot.Totals {
  fileprivate var json: JSONValue {
    let words = Ending.Word.allCases.compactMap { word in
      ended[word].map { JSONValue.Member(key: word.rawValue, value: .integer($0)) }
    }
    return .object([
      "up": .integer(up), "down": .integer(down), "dropped": .integer(dropped), "sessions": .integer(sessions),
      "ended": .object(words), "per-address": .integer(perAddress),
      "line-changes": .integer(lineChanges), "line-refusals": .integer(lineRefusals),
    ])
  }

  fileprivate init(_ json: JSONValue) {
    up = json["up"]?.integer ?? 0
    down = json["down"]?.integer ?? 0
    dropped = json["dropped"]?.integer ?? 0
    perAddress = json["per-address"]?.integer ?? 0
    lineChanges = json["line-changes"]?.integer ?? 0
    lineRefusals = json["line-refusals"]?.integer ?? 0
    for member in json["ended"]?.members ?? [] {
      if let word = Ending.Word(rawValue: member.key), let count = member.value.integer { ended[word] = count }
    }
  }
}

extension Snapshot.Client {
  var json: JSONValue {
    .object([
      "session": .integer(number), "client": address.map { .text($0) },
      "user": user.map { .text($0) }, "tls": tls.map { .text($0) }, "listen": .text(listener),
      "role": .text(role.rawValue), "state": .text(phase.rawValue), "seconds": .seconds(nanoseconds),
      "closing-seconds": closingNanoseconds.map { .seconds($0) },
      "up": .integer(up), "down": .integer(down), "dropped": .integer(dropped), "queued-up": .integer(queuedUp),
      "queued-down": .integer(queuedDown), "writer": isWriter.map { .bool($0) },
    ])
  }

  fileprivate init?(_ json: JSONValue) {
    guard let number = json["session"]?.integer, let listener = json["listen"]?.text else { return nil }
    func count(_ key: String) -> UInt64 { json[key]?.integer ?? 0 }
    self.init(
      number: number, address: json["client"]?.text, user: json["user"]?.text, tls: json["tls"]?.text,
      listener: listener,
      role: json["role"]?.text.flatMap { Config.Listen.Role(rawValue: $0) } ?? .writer,
      nanoseconds: json["seconds"]?.nanoseconds ?? 0, up: count("up"), down: count("down"), dropped: count("dropped"),
      queuedUp: count("queued-up"), queuedDown: count("queued-down"), isWriter: json["writer"]?.flag,
      phase: json["state"]?.text.flatMap { Phase(rawValue: $0) } ?? .open,
      closingNanoseconds: json["closing-seconds"]?.nanoseconds)
  }
}
