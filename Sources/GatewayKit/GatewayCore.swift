// Puts the pieces together from a configuration: lanes, routes, control socket; starts and stops them. Lives on a lane of
// its own that carries no bytes; a route lives on the lane it was given at birth. Reloading: GatewayCore+Reload.swift, what
// is asked at the control socket: GatewayCore+Control.swift.

import ByteStreams
import CLinux
import Dispatch
import StreamBroker
import StreamBrokerBluetooth

final class GatewayCore {
  struct Running {
    var config: Config.Route
    let route: Resident<Route>
  }

  let lanes: [Lane]
  let home: Lane
  let poller: Poller
  let status: StatusSink
  let board: StatusBoard
  let surroundings: RouteSurroundings
  /// As they were at the start: to ask for them takes files.
  private let limits: ProcessLimits
  let handshakes: HandshakeCounts
  private var heap = HeapPlan()
  private let heapQueue = DispatchQueue(label: "baudway.heap")
  private let broker = Gateway.broker
  let began = monotonicNanoseconds()

  var config: Config?
  private(set) var source: ConfigSource?
  // By name: what is at work, and what is on its way out.
  private(set) var running: [String: Running] = [:]
  private var leaving: [String: Resident<Route>] = [:]
  private var whenStopped: (() -> Void)?
  private var nextLane = 0
  private(set) var isStopping = false

  var control: ControlServer?
  /// The second socket, at an abstract address, for commands that can't read where `control` is; nil where a link leads there.
  var controlElsewhere: ControlServer?
  /// Where `control` is, or will be when its old address is free.
  var controlAddress: ControlAddress?
  var watch: ConfigWatch?
  // What may block for long: reading the file, and finding out what device a path leads to.
  let reloadQueue = DispatchQueue(label: "baudway.reload")
  var reloading: Reloading?
  var reloadReport = ReloadReport()
  var reloadWaiters: [(ReloadOutcome) -> Void] = []
  var reloadsToCome: [(config: Config, done: (ReloadOutcome) -> Void)] = []

  // What closes last may take so long: a driver that hangs does not keep the process.
  private static let closingLimit = Duration.seconds(1)
  /// And programs, which have five seconds to end, and are killed then.
  private static let programLimit = Duration.seconds(6)
  /// How long sessions may take to end when their route does.
  private static let drainLimit = Duration.seconds(5)

  init(
    _ lanes: [Lane], home: isolated Lane, status: StatusSink, board: StatusBoard, surroundings: RouteSurroundings,
    limits: ProcessLimits = .current(), handshakes: HandshakeCounts = HandshakeCounts()
  ) {
    self.lanes = lanes
    self.home = home
    poller = home.poller
    self.status = status
    self.board = board
    self.surroundings = surroundings
    self.limits = limits
    self.handshakes = handshakes
  }

  func start(_ config: Config, from source: ConfigSource?, control address: ControlAddress?) {
    self.config = config
    self.source = source
    tellReception(config)
    if let address = address ?? source?.control(config) { openControl(at: address) }
    for route in config.routes { startRoute(route) }
    status.tell(.started(routes: config.routes.count))
  }

  /// What holds for all listeners, before any of them opens or changes.
  func tellReception(_ config: Config) {
    surroundings.rates.set(config.limits.connectsPerSecond)
    surroundings.proxies.set(config.proxies)
    surroundings.descriptors.set(isOn: config.limits.reserveDescriptors == .automatic)
    let bound = HandshakeBound(config, limits)
    handshakes.note(most: bound.most)
    let rules = Reception.Rules(config, handshakes: bound.most)
    let meetsPages = config.routes.contains { $0.websocket != nil }
    surroundings.reception?.post { _, reception in
      reception.follow(rules)
      if meetsPages { reception.renewMachineNames() }
      reception.renewCertificates()
    }
  }

  // MARK: - Memory

  /// So many clients have gone since the start.
  func haveLeft(_ count: UInt64) {
    if heap.haveLeft(count) { lookAtHeap() }
  }

  private func lookAtHeap() {
    poller.timers.after(HeapPlan.interval) { [weak self] in
      guard let self, !isStopping else { return }
      switch heap.look() {
      case .again: lookAtHeap()
      case .trim: trimHeap()
      }
    }
  }

  /// Never on a lane that carries bytes.
  private func trimHeap() {
    for lane in lanes { lane.post { $0.poller.shrink() } }
    surroundings.reception?.post { lane, reception in
      lane.poller.shrink()
      reception.shrink()
    }
    heapQueue.async { linux_trim_heap() }
  }

  // MARK: - Routes

  func startRoute(_ config: Config.Route) {
    let lane = lanes[nextLane % lanes.count]
    nextLane += 1
    let others = lanes.filter { $0 !== lane }
    let (status, surroundings, connector) = (status, surroundings, connector(of: config))
    board.expect(config.listen.map(\.place), of: config.name)
    let route = Resident(on: lane) { lane in
      Route(config, connector: connector, on: lane, others: others, status: status, surroundings: surroundings)
    }
    running[config.name] = Running(config: config, route: route)
  }

  /// Gives a running route another configuration; `done` when it has taken it on.
  func updateRoute(_ config: Config.Route, then done: @escaping () -> Void) {
    guard let route = running[config.name]?.route else { return done() }
    running[config.name]?.config = config
    let (connector, surroundings) = (connector(of: config), surroundings)
    board.expect(config.listen.map(\.place), of: config.name)
    let back = Resident(CallBack(done), on: home)
    route.post { _, route in
      route.update(config, connector: connector)
      surroundings.whenReceptionIsThrough { back.post { _, back in back.call() } }
    }
  }

  private func connector(of route: Config.Route) -> any Connector {
    guard var connector = try? broker.connector(route.endpoint) else {
      preconditionFailure("the configuration lets no URL through that its connector refuses")
    }
    if let bonds = surroundings.bonds, var bonding = connector as? any BondingConnector {
      bonding.bonds = bonds
      connector = bonding
    }
    guard let remarking = connector as? any RemarkingConnector else { return connector }
    let (name, endpoint, status) = (route.name, route.endpoint.description, status)
    return remarking.telling { status.tell(.endpointSaid(route: name, endpoint: endpoint, $0)) }
  }

  /// Ends a route. `letGo` is called when its listeners are closed, `done` when nothing is left of it.
  func stopRoute(
    _ name: String, _ word: Ending.Word, letGo: @escaping () -> Void = {}, then done: @escaping () -> Void = {}
  ) {
    guard let old = running.removeValue(forKey: name)?.route else { return done() }
    leaving[name] = old
    let closed = Resident(CallBack(letGo), on: home)
    let back = Resident(
      CallBack { [weak self] in
        self?.hasStopped(name)
        done()
      }, on: home)
    let (limit, surroundings) = (Self.drainLimit, surroundings)
    old.post { _, route in
      route.stop(Ending(word), within: limit) { back.post { _, back in back.call() } }
      surroundings.whenReceptionIsThrough { closed.post { _, back in back.call() } }
    }
  }

  private func hasStopped(_ name: String) {
    leaving.removeValue(forKey: name)?.evict()
    status.tell(.routeStopped(name))
    if leaving.isEmpty { whenStopped?() }
  }

  // MARK: - The end

  func stop(then done: @escaping () -> Void) {
    guard !isStopping else { return }
    isStopping = true
    status.tell(.stopping)
    watch?.cancel()
    giveUpReloads()
    for name in Array(running.keys) { stopRoute(name, .shutdown) }
    whenStopped = { [self] in
      whenStopped = nil
      closeControl { [status, poller, lanes] in
        Closings.settle(lanes.map(\.closings), within: Self.closingLimit, on: poller) {
          Closings.settle(lanes.map(\.programs), within: Self.programLimit, on: poller) {
            status.tell(.stopped)
            done()
          }
        }
      }
    }
    if leaving.isEmpty { whenStopped?() }
  }
}
