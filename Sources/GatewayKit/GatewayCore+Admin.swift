// The gateway's admin listener: starts, changes and stops it, and answers its requests.

import ByteStreams
import StreamBroker
import StreamWebSocket

extension GatewayCore {
  /// Follows `config`. Calls `done` when addresses that are not used any more are free: at once if nothing changes.
  func updateAdmin(_ config: Config, then done: @escaping () -> Void = {}) {
    guard admin != nil || !config.admin.listen.isEmpty else { return done() }
    let server =
      admin ?? AdminServer(on: home, poller, environment: environment, board: board, backend: self)
    admin = server
    server.follow(config)
    let back = LaneRef(CallBack(done), on: home)
    environment.whenHandshakesAreOver { back.post { _, back in back.call() } }
  }
}

extension GatewayCore: AdminBackend {
  func answer(_ request: AdminRequest, for caller: AdminCaller, then done: @escaping (AdminAnswer) -> Void) {
    switch request.resource {
    case .index: done(.whole(.text(Self.index)))
    case .health: answerHealth(done)
    case .ready:
      if let route = request.query["route"] { return answerReady(route, done) }
      whenSettled { [board] in
        let isReady = board.isHealthy
        done(.whole(isReady ? .text("ready\n") : .text("not ready: a listener is not bound\n", .unavailable)))
      }
    }
  }

  private static let index = """
    Baudway \(Version.text)
    /healthz  whether the process works
    /readyz   whether all listeners are bound; ?route=NAME: whether the route's device is there

    """

  /// A restart helps when a lane hangs.
  private func answerHealth(_ done: @escaping (AdminAnswer) -> Void) {
    let query = LaneQuery(on: home, poller)
    query.knock(at: lanes) {
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
