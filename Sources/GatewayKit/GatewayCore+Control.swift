// What the gateway does at its control socket: the answer to each request.

import ByteStreams
import Glibc
import StreamBroker

extension GatewayCore {
  // MARK: - The socket

  func openControl(at address: ControlAddress) {
    controlAddress = address
    var link: String?
    switch source?.signpost(for: address) {
    case .path(let path)?: link = path
    case .abstract(let name)?:
      // Another gateway of this user and this file may have it; then that one is found there.
      let other = controlServer(.abstract(name), link: nil)
      controlElsewhere = other
      other.start()
    case nil: break
    }
    let server = controlServer(address, link: link)
    control = server
    server.start(failed: { [status] error in status.tell(.controlFailed(error, path: address.description)) })
  }

  private func controlServer(_ address: ControlAddress, link: String?) -> ControlServer {
    ControlServer(address, signpost: link, on: poller) { [weak self] request in
      self?.answer(request) ?? OneLine(ControlFault.stopping.answer)
    }
  }

  /// Who asked at the old address still gets the answer there.
  func moveControl(to address: ControlAddress?) {
    guard address != controlAddress else { return }
    controlAddress = address
    // What is new may be what was old the other way round.
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
    }
  }

  // A listener has its first answer as good as at once, unless its lane hangs.
  private static let healthLimit = Duration.seconds(1)
  private static let look = Duration.milliseconds(10)
  private static let placesLimit = Duration.milliseconds(500)

  /// Waits a little for listeners that have not been tried yet: between the start and that, nothing is known.
  private func health() -> any ControlAnswer {
    let line = OneLine()
    lookAfterPlaces { [weak self] in self?.answerHealth(line, within: Self.healthLimit) }
    return line
  }

  /// Nobody tells us that a name was removed from the file system, so who asks how we are has it looked after. Waits for no file
  /// system that hangs.
  private func lookAfterPlaces(then done: @escaping () -> Void) {
    let looks = Closings()
    for running in running.values {
      let token = looks.begin {}
      running.route.post { _, route in route.lookAfterPlaces { looks.end(token) } }
    }
    Closings.settle([looks], within: Self.placesLimit, on: poller, then: done)
  }

  private func answerHealth(_ line: OneLine, within left: Duration) {
    if board.isSettled || left <= .zero { return line.give(board.health) }
    poller.timers.after(Self.look) { [weak self] in self?.answerHealth(line, within: left - Self.look) }
  }

  private func survey() -> any ControlAnswer {
    lookAfterPlaces {}
    var head = Snapshot(
      version: Version.text, process: Int(getpid()), nanoseconds: monotonicNanoseconds() &- began,
      isHealthy: board.isHealthy, certificateFaults: board.certificateFaults, refused: board.refused,
      failedReload: board.failedReload)
    head.handshakes = handshakes.picture
    let routes = running.values.sorted { $0.config.name < $1.config.name }.map { ($0.config, $0.route) }
    return StatusSurvey(
      head, routes: routes, board: board, lanes: lanes, inquiry: LaneInquiry(on: home, poller))
  }

  private func reload() -> any ControlAnswer {
    let line = OneLine()
    reloadFromSource { outcome in line.give(outcome.json) }
    return line
  }

  private func kick(_ name: String, _ sessions: [UInt64]?) -> any ControlAnswer {
    guard let route = running[name]?.route else {
      return OneLine(ControlFault("there is no route '\(name)'").answer)
    }
    let line = OneLine()
    let inquiry = LaneInquiry(on: home, poller)
    inquiry.ask(route) { _, route in
      route.kick(sessions)
    } then: { answer in
      switch answer {
      case .told(let ended): line.give(.object(["kicked": .array(ended.sorted().map { .integer($0) })]))
      case .gone: line.give(ControlFault("there is no route '\(name)' any more").answer)
      case .stuck: line.give(ControlFault("the lane of '\(name)' does not answer").answer)
      }
    }
    return line
  }
}

extension Route {
  /// Ends these sessions, nil for all, with `kicked`, and says which of them there were.
  fileprivate func kick(_ sessions: [UInt64]?) -> [UInt64] {
    let numbers = Set(sessions ?? Array(present.keys)).filter { present[$0] != nil }
    for number in numbers { kick(number) }
    return Array(numbers)
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
