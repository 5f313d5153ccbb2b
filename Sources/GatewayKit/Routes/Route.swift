// A running route: its listeners, its sessions' lanes, and how a reload changes it. Lives on its home lane, where it
// accepts. A shared link and all its clients stay there; per-client sessions are spread over all lanes.
// Route+Admission.swift decides which clients get a slot.

import ByteStreams
import StreamBroker
import StreamTLS
import Synchronization

private let lastSession = Atomic<UInt64>(0)

/// Numbers sessions, for log and status.
func nextSessionNumber() -> UInt64 { lastSession.add(1, ordering: .relaxed).newValue }

final class Route {
  private(set) var settings: RouteSettings
  private(set) var clients: Config.Clients
  let poller: Poller
  let lane: Lane
  let status: StatusSink
  /// The rules for listeners, and for which clients may be here.
  private(set) var terms: ListenerContext.Terms
  let environment: RouteEnvironment
  /// Reserves descriptors for a first client, and for its link on per-client routes; nil while there is a client.
  private var vacancy: DescriptorReservation?

  struct ActiveListener {
    var listen: Config.Listen
    let context: ListenerContext
    let listener: any Listener
  }
  private(set) var listeners: [ActiveListener] = []
  private var lastListener = 0
  /// Listeners that were stopped, until their addresses are free.
  private var closing: [(listen: Config.Listen, isClosed: Closed)] = []
  private var exchanges = 0
  let group: SessionGroup
  private(set) var groupsElsewhere: [LaneRef<SessionGroup>] = []
  // Per-client sessions go to the home lane and the others in turn. A random choice would give some clients half the
  // speed.
  private var nextGroup = 0
  /// The group of each session, by the session's number; 0 is the group on the home lane. A session counts until its
  /// last byte is sent.
  private(set) var present: [UInt64: Int] = [:]

  /// The number of sessions of each address.
  private(set) var crowds = AddressCrowds()

  // Clients that found the route full; decided when the lanes have looked for clients that have just left.
  var candidates: [AcceptedConnectionParcel] = []
  var lateCandidates: [AcceptedConnectionParcel] = []  // came during a look; they get the next one
  var answersAwaited = 0
  /// Clients that wait for a slot.
  private(set) lazy var queue = ClientQueue(
    on: poller, notice: { [unowned self] in queueNotice($0, $1) },  // the route owns the queue
    hasLeft: { [unowned self] client, cause in
      refuse(client, Ending(cause is InternalFault ? .internal : .queueLeft, cause))
    }, hasClaimed: { [unowned self] in serveQueue() })
  /// Sessions that are being ended for other clients, and have not ended yet.
  var replaced: Set<UInt64> = []
  var isServingQueue = false
  var queueTold = 0
  /// Why the route refuses every client, once it stops.
  private(set) var stopping: Ending?

  /// Makes a route on `lane`, its home. Per-client sessions may spread to `others`.
  init(
    _ config: Config.Route, connector: any Connector, on lane: isolated Lane, others: [Lane], status: StatusSink,
    environment: RouteEnvironment = RouteEnvironment()
  ) {
    self.environment = environment
    settings = Self.settings(config, connector, status, environment)
    clients = config.clients
    terms = ListenerContext.Terms(config)
    self.lane = lane
    self.status = status
    poller = lane.poller
    let endings = Endings()
    group = SessionGroup(
      settings, on: poller, status: status, wallTime: environment.wallTime, descriptors: environment.descriptors,
      captures: environment.captures,
      lineChanged: { endings.route?.listeners.forEach { $0.listener.lineChanged() } }
    ) {
      endings.route?.sessionEnded($0, from: $1)
    }
    endings.route = self
    keepVacancy()
    if !settings.hub.isShared { spread(over: others) }
    publishConfigured(config)
    for listen in config.listen { open(listen) }
  }

  private static func settings(
    _ config: Config.Route, _ connector: any Connector, _ status: StatusSink, _ environment: RouteEnvironment
  ) -> RouteSettings {
    let (name, endpoint) = (config.name, config.endpoint.description)
    environment.ownConnections.route(name, leadsTo: config.endpoint)
    return RouteSettings(config, connector: connector, ownConnections: environment.ownConnections) {
      status.publish(.endpointReason(route: name, endpoint: endpoint, $0))
    }
  }

  private func publishConfigured(_ config: Config.Route) {
    status.publish(.routeConfigured(route: config.name, listeners: config.listen.map(\.target)))
  }

  // The group is made before `self` is complete, and calls it later.
  private final class Endings {
    weak var route: Route?
  }

  private func spread(over lanes: [Lane]) {
    let settings = settings
    let (status, wallTime) = (status, environment.wallTime)
    let descriptors = environment.descriptors
    let home = LaneRef(self, on: lane)
    groupsElsewhere = lanes.map { lane in
      LaneRef(on: lane) { lane in
        SessionGroup(settings, on: lane.poller, status: status, wallTime: wallTime, descriptors: descriptors) {
          number, address in
          home.post { _, route in route.sessionEnded(number, from: address) }
        }
      }
    }
  }

  // MARK: - Sessions

  func nextNumber() -> UInt64 { nextSessionNumber() }

  private func keepVacancy() {
    let isWanted = present.isEmpty && stopping == nil
    vacancy = isWanted ? environment.descriptors.reserve(1 + (isShared ? 0 : settings.descriptorsNeeded)) : nil
  }

  private var isShared: Bool { settings.hub.isShared }

  /// Descriptors for a per-client link until it is open. Other clients may be accepted meanwhile.
  private var linkToCome: DescriptorReservation? {
    isShared ? nil : environment.descriptors.reserve(settings.descriptorsNeeded)
  }

  /// Begins a session with a client.
  func admitted(_ accepted: consuming AcceptedConnection) {
    let number = nextNumber()
    let turn = nextGroup
    nextGroup = turn == groupsElsewhere.count ? 0 : turn + 1
    present[number] = turn
    crowds.enter(from: accepted.label.address)
    vacancy = nil
    if turn > 0 { return send(accepted, preface: [], to: turn, number) }
    let label = accepted.label
    group.take(accepted.stream(on: poller), label, preface: [], number, linkToCome)
  }

  /// Begins a session with a client of the gateway's own, which needs no slot; returns its number. Only a shared link has
  /// such clients.
  func admit(
    _ stream: any ByteStream, _ label: AcceptedConnection.Label, whenOver: @escaping (SessionReport) -> Void
  ) -> UInt64 {
    let number = nextNumber()
    present[number] = 0
    crowds.enter(from: label.address)
    vacancy = nil
    group.take(stream, label, preface: [], number, whenOver: whenOver)
    return number
  }

  /// Begins a session with a client from the queue.
  func admitted(_ client: ClientQueue.Client) {
    let number = nextNumber()
    crowds.enter(from: client.label.address)
    vacancy = nil
    if nextGroup > 0, let stream = client.stream as? DescriptorStream, let descriptor = stream.release() {
      present[number] = nextGroup
      send(
        AcceptedConnection(descriptor, kind: stream.kind, label: client.label), preface: client.unsent, to: nextGroup,
        number)
    } else {
      present[number] = 0
      group.take(
        client.stream, client.label, preface: client.unsent, hasReadText: client.wasTold, number, linkToCome)
    }
    nextGroup = nextGroup == groupsElsewhere.count ? 0 : nextGroup + 1
  }

  private func send(_ accepted: consuming AcceptedConnection, preface: [UInt8], to turn: Int, _ number: UInt64) {
    let parcel = AcceptedConnectionParcel(accepted)
    let linkToCome = linkToCome
    groupsElsewhere[turn - 1].post { lane, group in
      guard let accepted = parcel.take() else { return }
      let label = accepted.label
      group.take(accepted.stream(on: lane.poller), label, preface: preface, number, linkToCome)
    }
  }

  private func sessionEnded(_ number: UInt64, from address: SocketAddress?) {
    present[number] = nil
    crowds.leave(from: address)
    if present.isEmpty { keepVacancy() }
    replaced.remove(number)
    serveQueue()
  }

  func end(_ number: UInt64, _ ending: Ending) {
    guard let turn = present[number] else { return }
    if turn == 0 { return group.end(number, ending) }
    groupsElsewhere[turn - 1].post { _, group in group.end(number, ending) }
  }

  /// Ends those of these sessions that exist, with `kicked`, and returns their numbers.
  @discardableResult
  func kick(_ numbers: [UInt64]) -> Set<UInt64> {
    let found = Set(numbers).filter { present[$0] != nil }
    for number in found { end(number, Ending(.kicked)) }
    return found
  }

  private func everyGroup(_ body: @escaping @Sendable (SessionGroup) -> Void) {
    body(group)
    for group in groupsElsewhere { group.post { _, group in body(group) } }
  }

  /// After each reload: a recording that has stopped begins again.
  func retryRecording() { group.retryRecording() }

  // MARK: - Listeners

  private func open(_ listen: Config.Listen) {
    lastListener += 1
    let owner = ListenerContext.Owner(
      route: settings.name, isShared: settings.hub.isShared, listenerNumber: lastListener, lane: lane, poller: poller,
      status: status)
    let context = ListenerContext(
      of: owner, terms: terms, role: listen.role, environment: environment,
      // `unowned` is safe: the route's listeners stop before the route does.
      report: { [unowned self] label, ending, nanoseconds in
        group.report(label, nextNumber(), ending, nanoseconds: nanoseconds)
      }, admit: { [unowned self] accepted in admit(accepted) })
    context.lineSettings = { [unowned self] in group.sharedLink?.hub.lineSettings ?? LineSettings(settings.url) }
    context.trusts = { [weak self] trusted in self?.trusts(trusted) }
    let active = ActiveListener(listen: listen, context: context, listener: listen.listener(context))
    listeners.append(active)
    active.listener.start()
  }

  /// A listener, or the admin listener, verifies clients' certificates by `context` from now on.
  func trusts(_ context: TLSServerContext) {
    everyGroup { $0.clientTrust.changed(to: context, sessions: $0.sessions) }
  }

  // MARK: - Reload

  /// Applies a changed configuration of the same name and kind of link. Clients stay, unless it forbids them. A
  /// listener that is still named keeps its address; one that is not hands over clients that have connected already.
  func update(_ config: Config.Route, connector: any Connector) {
    guard stopping == nil else { return }
    guard config.name == settings.name, (config.link == .shared) == settings.hub.isShared else {
      let fault = InternalFault("route.update", "it is '\(config.name)' with a \(config.link.rawValue) link now")
      return status.publish(.internalFault(route: settings.name, fault))
    }
    let settings = Self.settings(config, connector, status, environment)
    self.settings = settings
    if vacancy != nil { keepVacancy() }
    clients = config.clients
    let terms = ListenerContext.Terms(config)
    self.terms = terms
    let narrowed = updateListeners(config.listen)
    publishConfigured(config)  // last, so that listeners that can't be opened yet are waited for
    let isAdmitted: @Sendable (AcceptedConnection.Label) -> Bool = {
      terms.admits($0) && !($0.role == .writer && narrowed.contains($0.listenerNumber))
    }
    for client in queue.takeAll(where: { !isAdmitted($0) }) { refuse(client, Ending(.denied)) }
    refuseCandidates(Ending(.denied), unless: isAdmitted)
    everyGroup { group in
      group.update(settings)
      group.endForbidden(unless: isAdmitted)
    }
    serveQueue()
  }

  /// Returns the numbers of listeners that were for writers and are for monitors now.
  private func updateListeners(_ wanted: [Config.Listen]) -> Set<Int> {
    var old = listeners
    listeners = []
    var new: [Config.Listen] = []
    var narrowed: Set<Int> = []
    for listen in wanted {
      guard let index = old.firstIndex(where: { $0.listen.hasSameTarget(as: listen) }) else {
        new.append(listen)
        continue
      }
      var active = old.remove(at: index)
      if active.context.role == .writer && listen.role == .monitor { narrowed.insert(active.context.listenerNumber) }
      active.listen = listen
      active.context.role = listen.role
      active.context.terms = terms
      active.listener.contextChanged()
      listeners.append(active)
    }
    exchange(old, for: new)
    return narrowed
  }

  /// Old listeners first: a new one may need the same port. If both share one listen socket of the handshake server,
  /// the new one first: then the socket stays open, and clients that have connected find their route.
  private func exchange(_ old: [ActiveListener], for new: [Config.Listen]) {
    let shared = { (active: ActiveListener) in new.contains { $0.sharesListenSocket(with: active.listen) } }
    closing.removeAll { $0.isClosed.isSettled }
    for active in old where !shared(active) {
      let isClosed = Closed()
      closing.append((active.listen, isClosed))
      active.listener.stop { isClosed.evaluate() }
    }
    exchanges += 1
    for listen in new { openWhenFree(listen, exchanges) }
    for active in old where shared(active) { active.listener.stop {} }
  }

  /// Opens a listener once its address is free. A listener on another lane, or with a file, needs a moment to free it.
  /// Does nothing after a newer reload.
  private func openWhenFree(_ listen: Config.Listen, _ exchange: Int) {
    guard exchange == exchanges, stopping == nil else { return }
    guard let inTheWay = closing.first(where: { !$0.isClosed.isSettled && $0.listen.collides(with: listen) }) else {
      return open(listen)
    }
    inTheWay.isClosed.then { [weak self] in self?.openWhenFree(listen, exchange) }
  }

  /// Whether a listener has closed, and what waits for that.
  private final class Closed {
    private(set) var isSettled = false
    private var then: [() -> Void] = []
    func evaluate() {
      isSettled = true
      for next in then { next() }
      then = []
    }
    func then(_ next: @escaping () -> Void) { then.append(next) }
  }

  // MARK: - The end

  /// Accepts no more clients, and ends every session after everything kept for its client is sent, or after `limit`.
  /// Calls `done` on the home lane when nothing is left.
  func stop(_ ending: Ending, within limit: Duration, then done: @escaping () -> Void) {
    stopping = ending
    environment.ownConnections.routeEnds(settings.name)
    vacancy = nil
    let stopped = listeners
    listeners = []
    refuseCandidates(ending)
    for client in queue.takeAll() { refuse(client, ending) }
    var left = 1 + groupsElsewhere.count + stopped.count
    let oneIsDone = { [self] in
      left -= 1
      guard left == 0 else { return }
      for group in groupsElsewhere { group.evict() }
      done()
    }
    for active in stopped {
      active.context.closing = ending.word
      active.listener.stop(then: oneIsDone)
    }
    let here = LaneRef(CallBack(oneIsDone), on: lane)
    for group in [LaneRef(group, on: lane)] + groupsElsewhere {
      group.post { lane, group in
        group.stop(ending) { here.post { _, back in back.call() } }
        lane.poller.timers.after(limit) { group.cutOff(ending) }
      }
    }
  }
}

extension Config.Listen {
  /// Whether a listener for `other` can stay open: only the role differs.
  func hasSameTarget(as other: Config.Listen) -> Bool {
    let settings = { (listen: Config.Listen) in listen.url.settingsInForce.filter { $0.name != "role" } }
    return target == other.target && settings(self) == settings(other)
  }
}
