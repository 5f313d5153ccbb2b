// The gateway's control socket: opens, moves and closes it, and answers each request.

import ByteStreams
import Glibc
import StreamBroker

extension GatewayCore {
  // MARK: - The socket

  func openControl(at address: ControlAddress) {
    controlAddress = address
    var link: String?
    switch source?.socketLink(for: address) {
    case .path(let path)?: link = path
    case .abstract(let name)?:
      // Another gateway of the same user and file may have this address. Commands then find that one, so a failure here
      // is not reported.
      let other = controlServer(.abstract(name), link: nil)
      controlElsewhere = other
      other.start()
    case nil: break
    }
    let server = controlServer(address, link: link)
    control = server
    server.start(failed: { [status] error in status.publish(.controlFailed(error, path: address.description)) })
  }

  private func controlServer(_ address: ControlAddress, link: String?) -> ControlServer {
    ControlServer(address, socketLink: link, on: poller) { [weak self] request in
      self?.answer(request) ?? OneLine(ControlFault.stopping.answer)
    }
  }

  /// Requests at the old address still get their answers there.
  func moveControl(to address: ControlAddress?) {
    guard address != controlAddress else { return }
    controlAddress = address
    // The new main address may be the old address of the second server, or the reverse. So open only after both old
    // servers have closed.
    let old = [control, controlElsewhere].compactMap(\.self)
    (control, controlElsewhere) = (nil, nil)
    var left = old.count
    let openWhenFree = { [weak self] in
      left -= 1
      guard let self, left <= 0, control == nil, !isStopping, let address = controlAddress else { return }
      openControl(at: address)
    }
    if old.isEmpty { openWhenFree() }
    for server in old { server.stop(cuttingOff: false, then: openWhenFree) }
  }

  func closeControl(then done: @escaping () -> Void) {
    let old = [control, controlElsewhere].compactMap(\.self)
    (control, controlElsewhere) = (nil, nil)
    var left = old.count
    if old.isEmpty { done() }
    for server in old {
      server.stop(cuttingOff: true) {
        left -= 1
        if left == 0 { done() }
      }
    }
  }

  // MARK: - Answers

  private func answer(_ request: ControlRequest) -> any ControlAnswer {
    switch request {
    case .health: health()
    case .status: survey()
    case .reload: reload()
    case .kick(let route, let sessions): kick(route, sessions)
    case .reset(let route, let recipe): reset(route, recipe)
    }
  }

  // A listener reports its first result almost at once, unless its lane hangs.
  private static let healthLimit = Duration.seconds(1)
  private static let look = Duration.milliseconds(10)
  private static let placesLimit = Duration.milliseconds(500)

  /// Waits up to `healthLimit` for listeners that have not been tried yet: right after the start their state is
  /// unknown.
  private func health() -> any ControlAnswer {
    let line = OneLine()
    whenSettled { [board] in line.give(board.health) }
    return line
  }

  /// Calls `done` when every listener has been tried, and those whose socket file was removed have made it again.
  func whenSettled(_ done: @escaping () -> Void) {
    checkSocketFiles { [weak self] in self?.whenSettled(within: Self.healthLimit, done) }
  }

  /// No event reports that a socket file was removed, so each `health` and `status` looks. Calls `done` after
  /// `placesLimit` at the latest, since a file system may hang.
  private func checkSocketFiles(then done: @escaping () -> Void) {
    let looks = PendingCleanups()
    for running in running.values {
      let token = looks.begin {}
      running.route.post { _, route in route.checkSocketFiles { looks.end(token) } }
    }
    PendingCleanups.settle([looks], within: Self.placesLimit, on: poller, then: done)
  }

  private func whenSettled(within left: Duration, _ done: @escaping () -> Void) {
    if board.isSettled || left <= .zero { return done() }
    poller.timers.after(Self.look) { [weak self] in self?.whenSettled(within: left - Self.look, done) }
  }

  private func survey() -> any ControlAnswer { report(.status) { _ in true } }

  /// The state of the routes that `isMeant` accepts by name.
  func report(_ form: StatusReport.Form, of isMeant: (String) -> Bool) -> StatusReport {
    checkSocketFiles {}
    var head = Snapshot(
      version: Version.text, process: Int(getpid()), nanoseconds: poller.timers.now &- began,
      isHealthy: board.isHealthy, certificateFaults: board.certificateFaults, refused: board.refused,
      failedReload: board.failedReload)
    head.handshakes = handshakes.picture
    head.admin = board.listeners(of: AdminServer.owner)
    let meant = running.values.filter { isMeant($0.config.name) }
    let routes = meant.sorted { $0.config.name < $1.config.name }.map { ($0.config, $0.route) }
    return StatusReport(
      head, as: form, routes: routes, board: board, lanes: lanes, query: LaneQuery(on: home, poller))
  }

  private func reload() -> any ControlAnswer {
    let line = OneLine()
    reloadFromSource { outcome in line.give(outcome.json) }
    return line
  }

  private func kick(_ name: String, _ sessions: [UInt64]?) -> any ControlAnswer {
    let line = OneLine()
    kick(name, sessions) { answer in
      switch answer {
      case .reported(let ended): line.give(Self.kicked(ended))
      case .gone: line.give(ControlFault("there is no route '\(name)'").answer)
      case .stuck: line.give(ControlFault("the lane of '\(name)' does not answer").answer)
      }
    }
    return line
  }

  static func kicked(_ ended: [UInt64]) -> JSONValue {
    .object(["kicked": .array(ended.sorted().map { .integer($0) })])
  }

  /// Calls `done` with the numbers of the sessions that were ended; `.gone` where there is no such route.
  func kick(_ name: String, _ sessions: [UInt64]?, then done: @escaping (LaneQuery.Answer<[UInt64]>) -> Void) {
    guard let route = running[name]?.route else { return done(.gone) }
    LaneQuery(on: home, poller).ask(route) { _, route in
      Array(route.kick(sessions ?? Array(route.present.keys)))
    } then: {
      done($0)
    }
  }

  /// A recipe may take longer than a lane may take to answer, so its result comes by itself.
  private func reset(_ name: String, _ recipe: ResetRecipe?) -> any ControlAnswer {
    let line = OneLine()
    reset(name, recipe) { line.give(Self.json($0, route: name)) }
    return line
  }

  /// The name of the recipe that was carried out, or why not.
  typealias ResetResult = LaneQuery.Answer<Result<String, ResetRefusal>>

  /// Calls `done` with the result; `.gone` where there is no such route.
  func reset(_ name: String, _ recipe: ResetRecipe?, then done: @escaping (ResetResult) -> Void) {
    guard let route = running[name]?.route else { return done(.gone) }
    let back = LaneRef(ResetCallBack(done), on: home)
    LaneQuery(on: home, poller).ask(route) { _, route in
      route.reset(by: recipe) { result in back.post { _, back in back.call(.reported(result)) } }
    } then: { answer in
      switch answer {
      case .reported: break
      case .gone: done(.gone)
      case .stuck: done(.stuck)
      }
    }
  }

  private final class ResetCallBack {
    let call: (ResetResult) -> Void
    init(_ call: @escaping (ResetResult) -> Void) { self.call = call }
  }

  static func json(_ result: ResetResult, route: String) -> JSONValue {
    switch result {
    case .reported(.success(let recipe)):
      .object(["reset": .bool(true), "route": .text(route), "recipe": .text(recipe)])
    case .reported(.failure(let refusal)):
      .object(["reset": .bool(false), "route": .text(route), "error": .text(refusal.message)])
    case .gone: ControlFault("there is no route '\(route)'").answer
    case .stuck: ControlFault("the lane of '\(route)' does not answer").answer
    }
  }
}

extension ReloadOutcome {
  /// The answer to `reload`.
  var json: JSONValue {
    switch self {
    case .carriedOut(let report):
      .object([
        "reloaded": .bool(true), "added": .array(report.added.map { .text($0) }),
        "removed": .array(report.removed.map { .text($0) }),
        "changed": .array(
          report.changed.map { change in
            .object(["route": .text(change.route), "keys": .array(change.keys.map { .text($0) })])
          }),
        "untouched": .integer(report.untouched), "settings": .array(report.settings.map { .text($0) }),
        "certificate-faults": report.certificateFaults.isEmpty
          ? nil : .array(report.certificateFaults.map { .text($0) }),
      ])
    case .refused(let problems):
      .object([
        "reloaded": .bool(false),
        "problems": .array(problems.description.split(separator: "\n").map { .text(String($0)) }),
      ])
    case .stopping: ControlFault.stopping.answer
    case .noSource: ControlFault("this gateway was not started from a file").answer
    }
  }
}
