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
    ControlServer(address, socketLink: link, on: poller) { [weak self] request, peer in
      self?.answer(request, from: peer) ?? OneLine(ControlFault.stopping.answer)
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

  private func answer(_ request: ControlRequest, from peer: ControlPeer) -> any ControlAnswer {
    switch request {
    case .health: return health()
    case .status: return survey()
    case .reload: return change(.reload, of: peer) { reload($0) }
    case .kick(let route, let sessions):
      return change(.kick(route: route, sessions: sessions), of: peer) { kick(route, sessions, $0) }
    case .link(let route, let action):
      return change(.link(route: route, action), of: peer) { carryOut(action, on: route, $0) }
    case .capture(let route, let format): return capture(route, format, for: peer)
    }
  }

  /// Live recordings at a time: each has a buffer of 1 MiB and a connection to the control socket.
  private static let mostCaptures = 8

  private func capture(_ name: String, _ format: Config.Capture.Format, for peer: ControlPeer) -> any ControlAnswer {
    guard let route = running[name]?.route else { return OneLine(ControlFault("there is no route '\(name)'").answer) }
    guard captures < Self.mostCaptures else {
      return OneLine(ControlFault("\(captures) live recordings are running, and no more are allowed").answer)
    }
    guard let buffer = try? CaptureBuffer() else { return OneLine(ControlFault("no memory for a recording").answer) }
    captures += 1
    let capture = LiveCapture(format, from: buffer, on: poller, wallTime: environment.captures.wallTime)
    let writer = LiveCaptureWriter(LaneRef(LiveCaptureWriter.Reference(capture), on: home))
    capture.whenReleased = { [weak self] in
      self?.captures -= 1
      route.post { _, route in route.endCapture(writer) }
    }
    LaneQuery(on: home, poller).ask(route) { _, route in
      route.capture(buffer, to: writer)
    } then: { [weak capture, status] answer in
      var error: String?
      switch answer {
      case .reported(.success(let subject)): capture?.begin(subject)
      case .reported(.failure(let refusal)): error = refusal.message
      case .gone: error = "there is no route '\(name)'"
      case .stuck: error = "the lane of '\(name)' does not answer"
      }
      if let error { capture?.refuse(ControlFault(error).answer) }
      status.publish(
        .administered(.capture(route: name, format), user: nil, client: peer.description, error: error))
    }
    return capture
  }

  /// Gets the answer to a change, and why it was not made.
  private typealias Changed = (_ answer: JSONValue, _ error: String?) -> Void

  /// A change, and its line in the log.
  private func change(
    _ action: AdminAction, of peer: ControlPeer, _ make: (@escaping Changed) -> Void
  ) -> any ControlAnswer {
    let line = OneLine()
    make { [status] answer, error in
      status.publish(.administered(action, user: nil, client: peer.description, error: error))
      line.give(answer)
    }
    return line
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
    let routes = runningInOrder.filter { isMeant($0.config.name) }
    return StatusReport(
      head, as: form, routes: routes, board: board, lanes: lanes, query: LaneQuery(on: home, poller))
  }

  private func reload(_ changed: @escaping Changed) {
    reloadFromSource { outcome in changed(outcome.json, outcome.error) }
  }

  private func kick(_ name: String, _ sessions: [UInt64]?, _ changed: @escaping Changed) {
    kick(name, sessions) { answer in
      switch answer {
      case .reported(let ended): changed(Self.kicked(ended), nil)
      case .gone: Self.isGone(name, changed)
      case .stuck: Self.isStuck(name, changed)
      }
    }
  }

  private static func isGone(_ route: String, _ changed: Changed) {
    let fault = ControlFault("there is no route '\(route)'")
    changed(fault.answer, fault.message)
  }

  private static func isStuck(_ route: String, _ changed: Changed) {
    let fault = ControlFault("the lane of '\(route)' does not answer")
    changed(fault.answer, fault.message)
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

  private func carryOut(_ action: LinkAction, on name: String, _ changed: @escaping Changed) {
    carryOut(action, on: name) { answer in
      switch answer {
      case .reported(let result):
        var error: String?
        if case .failure(let refusal) = result { error = refusal.message }
        changed(action.answer(result, on: name), error)
      case .gone: Self.isGone(name, changed)
      case .stuck: Self.isStuck(name, changed)
      }
    }
  }

  typealias LinkResult = LaneQuery.Answer<Result<JSONValue, LinkRefusal>>

  /// Calls `done` with the result; `.gone` where there is no such route. It may take longer than a lane may take to answer:
  /// a recipe has pauses, and a port is closed once its output is sent. So the result comes by itself.
  func carryOut(
    _ action: LinkAction, on name: String, for label: AcceptedConnection.Label? = nil,
    then done: @escaping (LinkResult) -> Void
  ) {
    guard let route = running[name]?.route else { return done(.gone) }
    let callBack = LinkCallBack(done)
    let back = LaneRef(callBack, on: home)
    LaneQuery(on: home, poller).ask(route) { _, route in
      route.carryOut(action, for: label) { result in back.post { _, back in back.call(.reported(result)) } }
    } then: { answer in
      switch answer {
      case .reported: break
      case .gone: callBack.call(.gone)
      case .stuck: callBack.call(.stuck)
      }
    }
  }

  /// Only the first result counts: a lane that was stuck may answer later.
  private final class LinkCallBack {
    private var done: ((LinkResult) -> Void)?
    init(_ done: @escaping (LinkResult) -> Void) { self.done = done }
    func call(_ result: LinkResult) { done.take()?(result) }
  }
}

extension ReloadOutcome {
  /// For the log.
  fileprivate var error: String? {
    switch self {
    case .carriedOut: nil
    case .refused: "the configuration has mistakes"
    case .stopping: "the gateway is stopping"
    case .noSource: "this gateway was not started from a file"
    }
  }

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
