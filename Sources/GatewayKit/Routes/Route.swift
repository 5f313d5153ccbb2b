// A named entry of the configuration at work: its listeners, who gets in, and the lanes its sessions live on. Lives on
// its home lane, where it accepts; a shared link and all its clients stay there, per-client sessions spread over all.

import ByteStreams
import StreamBroker

final class Route {
  private let settings: RouteSettings
  private let poller: Poller
  private let status: StatusSink
  private let lane: Lane

  private var listeners: [any Listener] = []
  private let group: SessionGroup
  private var groupsElsewhere: [Resident<SessionGroup>] = []
  // Per-client sessions go to home lane and the others in turns; random places would leave some clients half the speed.
  private var nextGroup = 0

  /// Sessions on all lanes; a session counts until its last byte is out.
  private var count = 0
  // Clients that found the route full; decided when the lanes have looked for clients that have just left.
  private var candidates: [ArrivalParcel] = []
  private var lateCandidates: [ArrivalParcel] = []  // came while the lanes were looking: the next look is theirs
  private var answersAwaited = 0
  private var isStopping = false

  /// Makes a route on `lane`, its home. `others` are the lanes that sessions with links of their own may spread to.
  init(_ config: Config.Route, connector: any Connector, on lane: isolated Lane, others: [Lane], status: StatusSink) {
    let settings = RouteSettings(config, connector: connector)
    self.settings = settings
    self.lane = lane
    self.status = status
    poller = lane.poller
    let endings = Endings()
    group = SessionGroup(settings, on: poller, status: status) { endings.route?.sessionEnded() }
    endings.route = self
    if !settings.hub.isShared { spread(over: others) }
    let context = ListenerContext(
      route: settings.name, poller: poller, status: status, sendsNotices: settings.sendsNotices,
      isShared: settings.hub.isShared, keepsAlive: config.clients.keepalive
    ) { [unowned self] arrival in  // its own listeners, which stop before it goes
      admit(arrival)
    }
    listeners = config.listen.map { Listeners.make($0, context) }
    for listener in listeners { listener.start() }
  }

  // The group is made before the route is whole, and calls it later.
  private final class Endings {
    weak var route: Route?
  }

  private func spread(over lanes: [Lane]) {
    let settings = settings
    let status = status
    let home = Resident(self, on: lane)
    groupsElsewhere = lanes.map { lane in
      Resident(on: lane) { lane in
        SessionGroup(settings, on: lane.poller, status: status) { home.post { _, route in route.sessionEnded() } }
      }
    }
  }

  // MARK: - Clients

  private func admit(_ arrival: consuming Arrival) {
    guard !isStopping else { return }
    if count < settings.maxClients { return place(arrival) }
    lateCandidates.append(ArrivalParcel(arrival))
    if answersAwaited == 0 { lookForGhosts() }
  }

  private func place(_ arrival: consuming Arrival) {
    count += 1
    let turn = nextGroup
    nextGroup = turn == groupsElsewhere.count ? 0 : turn + 1
    if turn == 0 { return group.take(arrival) }
    let parcel = ArrivalParcel(arrival)
    groupsElsewhere[turn - 1].post { _, group in
      if let arrival = parcel.take() { group.take(arrival) }
    }
  }

  /// Nobody is refused because of somebody who has just left: his end may be waiting in some lane's epoll set.
  private func lookForGhosts() {
    candidates = lateCandidates
    lateCandidates = []
    let me = Resident(self, on: lane)
    answersAwaited = 1 + groupsElsewhere.count
    for group in groupsElsewhere {
      group.post { lane, _ in
        lane.poller.sweep()
        me.post { _, route in route.laneHasLooked() }
      }
    }
    me.post { lane, route in
      lane.poller.sweep()
      route.laneHasLooked()
    }
  }

  private func laneHasLooked() {
    answersAwaited -= 1
    guard answersAwaited == 0 else { return }
    let waiting = candidates
    candidates = []
    for parcel in waiting {
      guard let arrival = parcel.take() else { continue }
      if count >= settings.maxClients { group.freePlaceOfHalfClosed() }
      if count < settings.maxClients && !isStopping {
        place(arrival)
      } else {
        let notice = "baudway: \(settings.name) is full (\(count) of \(settings.maxClients) clients)"
        group.refuse(arrival, Ending(isStopping ? .shutdown : .full), notice: notice)
      }
    }
    if !lateCandidates.isEmpty { lookForGhosts() }
  }

  private func sessionEnded() { count -= 1 }

  // MARK: - The end

  /// Accepts no more, and ends every session after what is kept for it, at the latest when `limit` is over. `done` is
  /// called on the home lane when nothing is left.
  func stop(_ ending: Ending, within limit: Duration, then done: @escaping () -> Void) {
    isStopping = true
    for listener in listeners { listener.stop() }
    listeners = []
    var left = 1 + groupsElsewhere.count
    let oneIsDone = { [self] in
      left -= 1
      guard left == 0 else { return }
      for group in groupsElsewhere { group.evict() }
      done()
    }
    let here = Resident(CallBack(oneIsDone), on: lane)
    for group in [Resident(group, on: lane)] + groupsElsewhere {
      group.post { lane, group in
        group.stop(ending) { here.post { _, back in back.call() } }
        lane.poller.timers.after(limit) { group.cutOff(ending) }
      }
    }
  }
}
