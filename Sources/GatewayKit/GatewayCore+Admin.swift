// The gateway's admin listener: starts, changes and stops it, and answers its requests.

import ByteStreams
import Dispatch
import StreamBroker
import StreamTLS
import StreamWebSocket

extension GatewayCore {
  /// Follows `config`. Calls `done` when addresses that are not used any more are free: at once if nothing changes.
  func updateAdmin(_ config: Config, then done: @escaping () -> Void = {}) {
    guard admin != nil || !config.admin.listen.isEmpty else { return done() }
    let server =
      admin ?? AdminServer(on: home, poller, environment: environment, board: board, status: status, backend: self)
    admin = server
    server.follow(config)
    let back = LaneRef(CallBack(done), on: home)
    environment.whenHandshakesAreOver { back.post { _, back in back.call() } }
  }
}

extension GatewayCore: AdminBackend {
  func answer(_ request: AdminRequest, for caller: AdminCaller, then done: @escaping (AdminAnswer) -> Void) {
    switch request.resource {
    case .file(let file): done(.whole(file.response(to: request)))
    case .health: answerHealth(done)
    case .metrics: done(metrics(request, for: caller))
    case .openAPI: done(.whole(.json(OpenAPI.description)))
    case .routes: done(survey(.status, seenBy: caller, request))
    case .clients: done(survey(.clients, seenBy: caller, request))
    case .route(let name):
      guard running[name] != nil else { return done(.whole(AdminRefusal.noSuchRoute(name).response)) }
      done(survey(.route, seenBy: caller, request, only: name))
    case .devices:
      poller.offload(to: Self.processQueue) {
        DeviceList.survey().json
      } then: {
        done(.whole(.json(text: $0)))
      }
    case .user: done(.whole(.json(text: caller.description(on: runningInOrder.map(\.config.name)).description)))
    case .log(let route): done(.whole(log(of: route, seenBy: caller)))
    case .events, .reload, .kick, .reset, .release, .reopen, .line, .writer, .send, .terminal:
      done(.whole(.problem(.notFound, "Nothing here has this path.")))
    case .ready:
      if let route = request.query["route"] { return answerReady(route, done) }
      whenSettled { [board] in
        let isReady = board.isHealthy
        done(.whole(isReady ? .text("ready\n") : .text("not ready: a listener is not bound\n", .unavailable)))
      }
    }
  }

  // MARK: - Terminals

  func hasRoute(_ name: String) -> Bool { running[name] != nil }

  func admit(_ accepted: consuming AcceptedConnection, asTerminal acceptance: WebSocketAcceptance) {
    let parcel = AcceptedConnectionParcel(accepted)
    running[acceptance.route]?.route.post { _, route in
      if let accepted = parcel.take() { route.admit(accepted, asTerminal: acceptance) }
    }
  }

  func trusts(_ context: TLSServerContext) {
    for running in running.values { running.route.post { _, route in route.trusts(context) } }
  }

  // MARK: - The API

  private func survey(
    _ form: StatusReport.Form, seenBy caller: AdminCaller, _ request: AdminRequest, only name: String? = nil
  ) -> AdminAnswer {
    guard surveys < Self.mostSurveys else {
      return .whole(.problem(.unavailable, "The status is being read by others. Try again later."))
    }
    guard !request.isHead else { return .pieces(contentType: AdminResponse.json, OneLine()) }
    surveys += 1
    let report = report(form) { caller.role(on: $0) != nil && name.map { [$0] }?.contains($0) ?? true }
    report.whenReleased = { [weak self] in self?.surveys -= 1 }
    return .pieces(contentType: AdminResponse.json, report)
  }

  private func log(of route: String?, seenBy caller: AdminCaller) -> AdminResponse {
    if let route, running[route] == nil { return AdminRefusal.noSuchRoute(route).response }
    guard let admin else { return .problem(.unavailable, "The gateway is stopping.") }
    return .json(text: "{\"lines\":[\(admin.latestEvents(of: route, seenBy: caller).joined(separator: ","))]}")
  }

  func carryOut(_ action: AdminAction, for caller: AdminCaller, then done: @escaping (AdminAnswer) -> Void) {
    let answer = { [status] (response: AdminResponse, error: String?) in
      status.publish(.administered(action, user: caller.name, client: caller.client, error: error))
      done(.whole(response))
    }
    let refuse = { (status: HTTPStatus, detail: String) in answer(.problem(status, detail), detail) }
    switch action {
    case .capture: refuse(.notFound, "Nothing here has this path.")
    case .reload:
      reloadFromSource { outcome in
        switch outcome {
        case .carriedOut: answer(.json(outcome.json), nil)
        case .refused(let problems):
          let lines = problems.description.split(separator: "\n").map(String.init)
          answer(
            .problem(
              .unprocessableContent, "The configuration has mistakes, and nothing has changed.",
              more: ["problems": .array(lines.map { .text($0) })]), "the configuration has mistakes")
        case .stopping: refuse(.unavailable, "The gateway is stopping.")
        case .noSource: refuse(.conflict, "This gateway was not started from a file.")
        }
      }
    case .kick(let route, let sessions):
      kick(route, sessions) { result in
        switch result {
        case .reported(let ended): answer(.json(Self.kicked(ended)), nil)
        case .gone: refuse(.notFound, "There is no route \(Suggestion.quote(route)).")
        case .stuck: refuse(.gatewayTimeout, "The route does not answer.")
        }
      }
    case .link(let route, let action):
      carryOut(action, on: route, for: caller.label) { result in
        switch result {
        case .reported(.success(let value)): answer(.json(action.answer(.success(value), on: route)), nil)
        case .reported(.failure(let refusal)): refuse(.conflict, "\(refusal.message).")
        case .gone: refuse(.notFound, "There is no route \(Suggestion.quote(route)).")
        case .stuck: refuse(.gatewayTimeout, "The route does not answer.")
        }
      }
    }
  }

  // MARK: - Metrics

  /// Answers at a time: each asks all lanes.
  private static let mostSurveys = 4
  private static let processQueue = DispatchQueue(label: "baudway.process")

  private func metrics(_ request: AdminRequest, for caller: AdminCaller) -> AdminAnswer {
    guard surveys < Self.mostSurveys else {
      return .whole(.problem(.unavailable, "The metrics are being read by others. Try again later."))
    }
    let format = MetricsFormat(accept: request.accept)
    guard !request.isHead else { return .pieces(contentType: format.contentType, OneLine()) }
    surveys += 1
    let answer = MetricsAnswer(
      format, routes: runningInOrder, where: { caller.role(on: $0) != nil }, board: board,
      query: LaneQuery(on: home, poller), on: poller,
      gateway: { [weak self] done in self?.figures(done) },
      whenReleased: { [weak self] in self?.surveys -= 1 })
    return .pieces(contentType: format.contentType, answer)
  }

  private func figures(_ done: @escaping (GatewayFigures) -> Void) {
    var figures = GatewayFigures()
    figures.isReady = board.isHealthy
    figures.hasFailedReload = board.failedReload != nil
    figures.certificateFaults = board.certificateFaults.count
    figures.handshakes = handshakes.picture
    figures.handshakeFailures = handshakes.failed
    figures.refused = board.refused
    figures.adminConnections = admin?.connectionCount ?? 0
    let age = poller.timers.now &- began
    measureLanes { [poller] lanes in
      figures.lanes = lanes
      poller.offload(to: Self.processQueue) {
        ProcessFigures(age: age)
      } then: { process in
        figures.process = process
        done(figures)
      }
    }
  }

  /// All but the control lane, which asks.
  private var everyLane: [Lane] { lanes + [environment.handshakeServer?.lane].compactMap(\.self) }

  /// How long each lane takes to answer now.
  private func measureLanes(then done: @escaping ([GatewayFigures.Lane]) -> Void) {
    let lanes = everyLane
    var measured = lanes.map {
      GatewayFigures.Lane(name: String($0.label.dropFirst("baudway.".count)), nanoseconds: nil)
    }
    let query = LaneQuery(on: home, poller)
    let began = poller.timers.now
    var left = lanes.count
    for (index, lane) in lanes.enumerated() {
      query.knock(at: [lane]) { [poller] in
        if !query.stuck.contains(ObjectIdentifier(lane)) {
          measured[index].nanoseconds = poller.timers.now &- began
        }
        left -= 1
        if left == 0 { done(measured) }
      }
    }
  }

  // MARK: - Health

  /// A restart helps when a lane hangs.
  private func answerHealth(_ done: @escaping (AdminAnswer) -> Void) {
    let query = LaneQuery(on: home, poller)
    query.knock(at: everyLane) {
      done(
        .whole(
          query.stuck.isEmpty
            ? .text("ok\n") : .text("\(Figures.count(query.stuck.count, "lane")) does not answer\n", .unavailable)))
    }
  }

  /// Whether a client of the route would find its device: the link is open, or it opens on demand and no client waits
  /// for it.
  private func answerReady(_ name: String, _ done: @escaping (AdminAnswer) -> Void) {
    guard let running = running[name] else {
      return done(.whole(.text("there is no route \(Suggestion.quote(name))\n", .notFound)))
    }
    let isOnDemand = running.config.device.open == .onDemand
    guard running.config.link == .shared else { return done(.whole(.text("ready\n"))) }
    LaneQuery(on: home, poller).ask(running.route) { _, route in
      route.group.readiness
    } then: { answer in
      guard case .reported(let (word, hasClients)) = answer else {
        return done(.whole(.text("not ready: the route does not answer\n", .unavailable)))
      }
      let isReady = word == LinkStatus.open.word || isOnDemand && !hasClients
      done(.whole(isReady ? .text("ready\n") : .text("not ready: the link is \(word)\n", .unavailable)))
    }
  }
}

extension SessionGroup {
  /// The word of the shared link's status, and whether it has clients.
  fileprivate var readiness: (word: String, hasClients: Bool) {
    (sharedLink?.status.word ?? LinkStatus.closed.word, !sessions.isEmpty)
  }
}
