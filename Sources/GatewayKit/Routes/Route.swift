// A named entry of the configuration at work: its listeners, the lanes its sessions live on, and what a reload changes of
// it. Lives on its home lane, where it accepts; a shared link and all its clients stay there, per-client sessions spread
// over all. Who gets in is decided in Route+Admission.swift.

import ByteStreams
import StreamBroker
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
  /// What listeners go by, and who may be here.
  private(set) var terms: ListenerContext.Terms
  let surroundings: RouteSurroundings
  /// For a first client, and its own link where clients have such; nil while there is one.
  private var vacancy: DescriptorReservation?

  struct Door {
    var listen: Config.Listen
    let context: ListenerContext
    let listener: any Listener
  }
  private(set) var doors: [Door] = []
  private var lastDoor = 0
  /// Listeners that were stopped, until their addresses are free.
  private var closing: [(listen: Config.Listen, isClosed: Closed)] = []
  private var exchanges = 0
  let group: SessionGroup
  private(set) var groupsElsewhere: [Resident<SessionGroup>] = []
  // Per-client sessions go to home lane and the others in turns; random places would leave some clients half the speed.
  private var nextGroup = 0
  /// Which group has each session, by its number: 0 is the one at home. A session counts until its last byte is out.
  private(set) var present: [UInt64: Int] = [:]

  /// And how many of them each address has.
  private(set) var crowds = AddressCrowds()

  // Clients that found the route full; decided when the lanes have looked for clients that have just left.
  var candidates: [ArrivalParcel] = []
  var lateCandidates: [ArrivalParcel] = []  // came while the lanes were looking: the next look is theirs
  var answersAwaited = 0
  /// Those who wait for a place.
  private(set) lazy var queue = ClientQueue(
    on: poller, notice: { [unowned self] in queueNotice($0, $1) },  // the queue is the route's own
    hasLeft: { [unowned self] client, cause in
      turnAway(client, Ending(cause is InternalFault ? .internal : .queueLeft, cause))
    })
  /// Sessions that were told to go for somebody else, and have not ended yet.
  var replaced: Set<UInt64> = []
  var isServingQueue = false
  var queueTold = 0
  /// Why nobody gets in any more.
  private(set) var stopping: Ending?

  /// Makes a route on `lane`, its home. `others` are the lanes that sessions with links of their own may spread to.
  init(
    _ config: Config.Route, connector: any Connector, on lane: isolated Lane, others: [Lane], status: StatusSink,
    surroundings: RouteSurroundings = RouteSurroundings()
  ) {
    self.surroundings = surroundings
    settings = RouteSettings(config, connector: connector)
    clients = config.clients
    terms = ListenerContext.Terms(config)
    self.lane = lane
    self.status = status
    poller = lane.poller
    let endings = Endings()
    group = SessionGroup(
      settings, on: poller, status: status, wallTime: surroundings.wallTime, descriptors: surroundings.descriptors
    ) {
      endings.route?.sessionEnded($0)
    }
    endings.route = self
    keepVacancy()
    if !settings.hub.isShared { spread(over: others) }
    tellConfigured(config)
    for listen in config.listen { open(listen) }
  }

  private func tellConfigured(_ config: Config.Route) {
    status.tell(.routeConfigured(route: config.name, listeners: config.listen.map(\.place)))
  }

  // The group is made before the route is whole, and calls it later.
  private final class Endings {
    weak var route: Route?
  }

  private func spread(over lanes: [Lane]) {
    let settings = settings
    let (status, wallTime) = (status, surroundings.wallTime)
    let descriptors = surroundings.descriptors
    let home = Resident(self, on: lane)
    groupsElsewhere = lanes.map { lane in
      Resident(on: lane) { lane in
        SessionGroup(settings, on: lane.poller, status: status, wallTime: wallTime, descriptors: descriptors) {
          number in
          home.post { _, route in route.sessionEnded(number) }
        }
      }
    }
  }

  // MARK: - Sessions

  func nextNumber() -> UInt64 { nextSessionNumber() }

  private func keepVacancy() {
    let isWanted = present.isEmpty && stopping == nil
    vacancy = isWanted ? surroundings.descriptors.reserve(1 + (isShared ? 0 : settings.descriptorsNeeded)) : nil
  }

  private var isShared: Bool { settings.hub.isShared }

  /// What the link of a client of its own takes, until it is open. Others may be accepted meanwhile.
  private var linkToCome: DescriptorReservation? {
    isShared ? nil : surroundings.descriptors.reserve(settings.descriptorsNeeded)
  }

  /// Begins a session with a client.
  func place(_ arrival: consuming Arrival) {
    let number = nextNumber()
    let turn = nextGroup
    nextGroup = turn == groupsElsewhere.count ? 0 : turn + 1
    present[number] = turn
    crowds.enter(number, from: arrival.label.address)
    vacancy = nil
    if turn > 0 { return send(arrival, preface: [], to: turn, number) }
    let label = arrival.label
    group.take(arrival.stream(on: poller), label, preface: [], number, linkToCome)
  }

  /// Begins a session with one who waited here.
  func place(_ client: ClientQueue.Client) {
    let number = nextNumber()
    crowds.enter(number, from: client.label.address)
    vacancy = nil
    if nextGroup > 0, let stream = client.stream as? DescriptorStream, let descriptor = stream.release() {
      present[number] = nextGroup
      send(
        Arrival(descriptor, kind: stream.kind, label: client.label), preface: client.unsent, to: nextGroup, number)
    } else {
      present[number] = 0
      group.take(
        client.stream, client.label, preface: client.unsent, hasReadText: client.wasTold, number, linkToCome)
    }
    nextGroup = nextGroup == groupsElsewhere.count ? 0 : nextGroup + 1
  }

  private func send(_ arrival: consuming Arrival, preface: [UInt8], to turn: Int, _ number: UInt64) {
    let parcel = ArrivalParcel(arrival)
    let linkToCome = linkToCome
    groupsElsewhere[turn - 1].post { lane, group in
      guard let arrival = parcel.take() else { return }
      let label = arrival.label
      group.take(arrival.stream(on: lane.poller), label, preface: preface, number, linkToCome)
    }
  }

  private func sessionEnded(_ number: UInt64) {
    present[number] = nil
    crowds.leave(number)
    if present.isEmpty { keepVacancy() }
    replaced.remove(number)
    serveQueue()
  }

  func end(_ number: UInt64, _ ending: Ending) {
    guard let turn = present[number] else { return }
    if turn == 0 { return group.end(number, ending) }
    groupsElsewhere[turn - 1].post { _, group in group.end(number, ending) }
  }

  /// Ends the session of that number, or with nil all of them, with `kicked`. How many there were.
  @discardableResult
  func kick(_ number: UInt64?) -> Int {
    let numbers = number.map { present[$0] == nil ? [] : [$0] } ?? Array(present.keys)
    for number in numbers { end(number, Ending(.kicked)) }
    return numbers.count
  }

  private func everyGroup(_ body: @escaping @Sendable (SessionGroup) -> Void) {
    body(group)
    for group in groupsElsewhere { group.post { _, group in body(group) } }
  }

  // MARK: - Listeners

  private func open(_ listen: Config.Listen) {
    lastDoor += 1
    let context = ListenerContext(
      route: settings.name, on: lane, poller, status: status, isShared: settings.hub.isShared, door: lastDoor,
      terms: terms, role: listen.role, surroundings: surroundings,
      // Its own listeners, which stop before it goes.
      report: { [unowned self] label, ending, nanoseconds in
        group.report(label, nextNumber(), ending, nanoseconds: nanoseconds)
      }, admit: { [unowned self] arrival in admit(arrival) })
    context.trusts = { [weak self] trusted in
      self?.everyGroup { $0.clientTrust.changed(to: trusted, sessions: $0.sessions) }
    }
    let door = Door(listen: listen, context: context, listener: Listeners.make(listen, context))
    doors.append(door)
    door.listener.start()
  }

  // MARK: - Reload

  /// Follows a changed configuration of the same name and kind of link. Who is here stays, but for those whom it forbids; a
  /// listener that is still named keeps its address, and one that is not hands over who has connected already.
  func update(_ config: Config.Route, connector: any Connector) {
    guard stopping == nil else { return }
    guard config.name == settings.name, (config.link == .shared) == settings.hub.isShared else {
      let fault = InternalFault("route.update", "it is '\(config.name)' with a \(config.link.rawValue) link now")
      return status.tell(.internalFault(route: settings.name, fault))
    }
    let settings = RouteSettings(config, connector: connector)
    self.settings = settings
    if vacancy != nil { keepVacancy() }
    clients = config.clients
    let terms = ListenerContext.Terms(config)
    self.terms = terms
    let narrowed = updateDoors(config.listen)
    tellConfigured(config)  // last: those that can't be opened yet are to be waited for
    let isAdmitted: @Sendable (Arrival.Label) -> Bool = {
      terms.admits($0) && !($0.role == .writer && narrowed.contains($0.door))
    }
    for client in queue.takeAll(where: { !isAdmitted($0) }) { turnAway(client, Ending(.denied)) }
    refuseCandidates(Ending(.denied), unless: isAdmitted)
    everyGroup { group in
      group.update(settings)
      group.endForbidden(unless: isAdmitted)
    }
    serveQueue()
  }

  /// The doors that writers came in by and that are for monitors now.
  private func updateDoors(_ wanted: [Config.Listen]) -> Set<Int> {
    var old = doors
    doors = []
    var new: [Config.Listen] = []
    var narrowed: Set<Int> = []
    for listen in wanted {
      guard let index = old.firstIndex(where: { $0.listen.isAtSamePlace(as: listen) }) else {
        new.append(listen)
        continue
      }
      var door = old.remove(at: index)
      if door.context.role == .writer && listen.role == .monitor { narrowed.insert(door.context.door) }
      door.listen = listen
      door.context.role = listen.role
      door.context.terms = terms
      door.listener.contextChanged()
      doors.append(door)
    }
    exchange(old, for: new)
    return narrowed
  }

  /// Old ones first: a new one may want the same port. But where both are ways through one entrance of the reception, the new
  /// one first: so it stays open, and who has connected finds his way.
  private func exchange(_ old: [Door], for new: [Config.Listen]) {
    let shared = { (door: Door) in new.contains { $0.sharesEntrance(with: door.listen) } }
    closing.removeAll { $0.isClosed.isSettled }
    for door in old where !shared(door) {
      let isClosed = Closed()
      closing.append((door.listen, isClosed))
      door.listener.stop { isClosed.settle() }
    }
    exchanges += 1
    for listen in new { openWhenFree(listen, exchanges) }
    for door in old where shared(door) { door.listener.stop {} }
  }

  /// On another lane, and in the file system, the address is free a little later; unless there is another configuration by then.
  private func openWhenFree(_ listen: Config.Listen, _ exchange: Int) {
    guard exchange == exchanges, stopping == nil else { return }
    guard let inTheWay = closing.first(where: { !$0.isClosed.isSettled && $0.listen.collides(with: listen) }) else {
      return open(listen)
    }
    inTheWay.isClosed.then { [weak self] in self?.openWhenFree(listen, exchange) }
  }

  /// Whether a listener has closed, for who waits for that.
  private final class Closed {
    private(set) var isSettled = false
    private var then: [() -> Void] = []
    func settle() {
      isSettled = true
      for next in then { next() }
      then = []
    }
    func then(_ next: @escaping () -> Void) { then.append(next) }
  }

  // MARK: - The end

  /// Accepts no more, and ends every session after what is kept for it, at the latest when `limit` is over. `done` is
  /// called on the home lane when nothing is left.
  func stop(_ ending: Ending, within limit: Duration, then done: @escaping () -> Void) {
    stopping = ending
    vacancy = nil
    let stopped = doors
    doors = []
    refuseCandidates(ending)
    for client in queue.takeAll() { turnAway(client, ending) }
    var left = 1 + groupsElsewhere.count + stopped.count
    let oneIsDone = { [self] in
      left -= 1
      guard left == 0 else { return }
      for group in groupsElsewhere { group.evict() }
      done()
    }
    for door in stopped {
      door.context.closing = ending.word
      door.listener.stop(then: oneIsDone)
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

extension Config.Listen {
  /// Whether a listener for `other` can stay where it is: all that differs is what its clients may do.
  func isAtSamePlace(as other: Config.Listen) -> Bool {
    let settings = { (listen: Config.Listen) in listen.url.settingsInForce.filter { $0.name != "role" } }
    return place == other.place && settings(self) == settings(other)
  }
}
