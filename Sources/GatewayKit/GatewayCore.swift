// Makes routes and the control socket from a configuration, starts and stops them. Lives on the control lane, which
// carries no bytes; each route stays on the lane on which it was made. Reloads: GatewayCore+Reload.swift. Requests at
// the control socket: GatewayCore+Control.swift.

import ByteStreams
import CLinux
import Dispatch
import StreamBroker
import StreamBrokerBluetooth

final class GatewayCore {
  /// A class: answers list thousands of them, and a configuration has many parts to copy.
  final class Running: Sendable {
    let config: Config.Route
    let route: LaneRef<Route>

    init(config: Config.Route, route: LaneRef<Route>) {
      self.config = config
      self.route = route
    }
  }

  let lanes: [Lane]
  let home: Lane
  let poller: Poller
  let status: StatusSink
  let board: StatusBoard
  let environment: RouteEnvironment
  /// The limits at the start; reading them opens files.
  private let limits: ProcessLimits
  let handshakes: HandshakeCounts
  private var heap = HeapTrimming()
  private let heapQueue = DispatchQueue(label: "baudway.heap")
  private let broker = Gateway.broker
  let began: UInt64

  var config: Config?
  private(set) var source: ConfigSource?
  // By name: routes that run, and routes that are stopping.
  private(set) var running: [String: Running] = [:] { didSet { sorted = nil } }
  private var sorted: [Running]?
  private var leaving: [String: LaneRef<Route>] = [:]
  private var whenStopped: (() -> Void)?
  private var nextLane = 0
  private(set) var isStopping = false

  var control: ControlServer?
  /// A second server at an abstract address, for commands that cannot read the path of `control` in the configuration;
  /// nil where a link leads to `control`.
  var controlElsewhere: ControlServer?
  /// The address of `control`, or of the server that opens when the old ones have closed.
  var controlAddress: ControlAddress?
  /// The admin listener; nil until a configuration has one.
  var admin: AdminServer?
  private var isAdminStopping = false
  /// Answers of the admin listener that ask all lanes at the moment.
  var surveys = 0
  /// Live recordings that run.
  var captures = 0
  var watch: ConfigWatch?
  // For work that may block for long: reading the file, and resolving device paths.
  let reloadQueue = DispatchQueue(label: "baudway.reload")
  var reloading: ReloadSequence?
  var reloadReport = ReloadReport()
  var reloadWaiters: [(ReloadOutcome) -> Void] = []
  var reloadsToCome: [(config: Config, done: (ReloadOutcome) -> Void)] = []
  /// The configuration that was read last had mistakes; one that was read before may still be being carried out.
  var newestIsRefused = false

  // How long the process waits for cleanups after closing, since a driver may hang.
  private static let closingLimit = Duration.seconds(1)
  /// How long it waits for programs and for sockets that still connect. Both are ended after five seconds anyway.
  private static let slowLimit = Duration.seconds(6)
  /// How long sessions may take to end when their route stops.
  private static let drainLimit = Duration.seconds(5)

  init(
    _ lanes: [Lane], home: isolated Lane, status: StatusSink, board: StatusBoard, environment: RouteEnvironment,
    limits: ProcessLimits = .current(), handshakes: HandshakeCounts = HandshakeCounts()
  ) {
    self.lanes = lanes
    self.home = home
    poller = home.poller
    began = home.poller.timers.now
    self.status = status
    self.board = board
    self.environment = environment
    self.limits = limits
    self.handshakes = handshakes
  }

  func start(_ config: Config, from source: ConfigSource?, control address: ControlAddress?) {
    self.config = config
    self.source = source
    updateHandshakeServer(config)
    if let address = address ?? source?.control(config) { openControl(at: address) }
    updateAdmin(config)
    for route in config.routes { startRoute(route) }
    status.publish(.started(routes: config.routes.count))
  }

  /// Sets what holds for all listeners, before any of them opens or changes.
  func updateHandshakeServer(_ config: Config) {
    environment.rates.set(config.limits.connectsPerSecond)
    environment.proxies.set(config.proxies)
    environment.descriptors.set(isOn: config.limits.reserveDescriptors == .automatic)
    let bound = HandshakeLimit(config, limits)
    handshakes.note(most: bound.most)
    let rules = HandshakeServer.Rules(config, handshakes: bound.most)
    let hasNames = config.routes.contains { $0.websocket != nil } || !config.admin.listen.isEmpty
    environment.handshakeServer?.post { _, handshakeServer in
      handshakeServer.follow(rules)
      if hasNames { handshakeServer.renewMachineNames() }
      handshakeServer.renewCertificates()
    }
  }

  // MARK: - Memory

  /// `count` clients have left since the start.
  func haveLeft(_ count: UInt64) {
    if heap.haveLeft(count) { lookAtHeap() }
  }

  private func lookAtHeap() {
    poller.timers.after(HeapTrimming.interval) { [weak self] in
      guard let self, !isStopping else { return }
      switch heap.look() {
      case .again: lookAtHeap()
      case .trim: trimHeap()
      }
    }
  }

  /// malloc_trim(3) runs on a queue, never on a lane that carries bytes.
  private func trimHeap() {
    for lane in lanes { lane.post { $0.poller.shrink() } }
    environment.handshakeServer?.post { lane, handshakeServer in
      lane.poller.shrink()
      handshakeServer.shrink()
    }
    heapQueue.async { linux_trim_heap() }
  }

  // MARK: - Routes

  func startRoute(_ config: Config.Route) {
    let lane = lanes[nextLane % lanes.count]
    nextLane += 1
    let others = lanes.filter { $0 !== lane }
    let (status, environment, connector) = (status, environment, connector(of: config))
    board.expect(config.listen.map(\.target), of: config.name)
    let route = LaneRef(on: lane) { lane in
      Route(config, connector: connector, on: lane, others: others, status: status, environment: environment)
    }
    running[config.name] = Running(config: config, route: route)
  }

  /// The running routes in the order of their names. Sorted once after a change, and not for each answer: thousands of
  /// names would hold the control lane for milliseconds.
  var runningInOrder: [Running] {
    let found = sorted ?? running.values.sorted { $0.config.name < $1.config.name }
    sorted = found
    return found
  }

  /// Gives a running route another configuration. Calls `done` when it is applied.
  func updateRoute(_ config: Config.Route, then done: @escaping () -> Void) {
    guard let route = running[config.name]?.route else { return done() }
    running[config.name] = Running(config: config, route: route)
    let (connector, environment) = (connector(of: config), environment)
    board.expect(config.listen.map(\.target), of: config.name)
    let back = LaneRef(CallBack(done), on: home)
    route.post { _, route in
      route.update(config, connector: connector)
      environment.whenHandshakesAreOver { back.post { _, back in back.call() } }
    }
  }

  private func connector(of route: Config.Route) -> any Connector {
    guard var connector = try? broker.connector(route.endpoint) else {
      preconditionFailure("the configuration lets no URL through that its connector refuses")
    }
    if let bonds = environment.bonds, var bonding = connector as? any BondingConnector {
      bonding.bonds = bonds
      connector = bonding
    }
    return connector
  }

  /// Stops a route. Calls `letGo` when its listeners are closed, `done` when nothing is left of it.
  func stopRoute(
    _ name: String, _ word: Ending.Word, letGo: @escaping () -> Void = {}, then done: @escaping () -> Void = {}
  ) {
    guard let old = running.removeValue(forKey: name)?.route else { return done() }
    leaving[name] = old
    let closed = LaneRef(CallBack(letGo), on: home)
    let back = LaneRef(
      CallBack { [weak self] in
        self?.hasStopped(name)
        done()
      }, on: home)
    let (limit, environment) = (Self.drainLimit, environment)
    old.post { _, route in
      route.stop(Ending(word), within: limit) { back.post { _, back in back.call() } }
      environment.whenHandshakesAreOver { closed.post { _, back in back.call() } }
    }
  }

  private func hasStopped(_ name: String) {
    leaving.removeValue(forKey: name)?.evict()
    status.publish(.routeStopped(name))
    reportIfStopped()
  }

  // MARK: - The end

  private func reportIfStopped() { if leaving.isEmpty && !isAdminStopping { whenStopped?() } }

  func stop(then done: @escaping () -> Void) {
    guard !isStopping else { return }
    isStopping = true
    status.publish(.stopping)
    watch?.cancel()
    giveUpReloads()
    for name in Array(running.keys) { stopRoute(name, .shutdown) }
    isAdminStopping = admin != nil
    admin?.stop(.shutdown) { [self] in
      isAdminStopping = false
      reportIfStopped()
    }
    whenStopped = { [self] in
      whenStopped = nil
      closeControl { [status, poller, lanes] in
        PendingCleanups.settle(lanes.map(\.closings), within: Self.closingLimit, on: poller) {
          PendingCleanups.settle(
            lanes.flatMap { [$0.programs, $0.abandonedConnects] }, within: Self.slowLimit, on: poller
          ) {
            status.publish(.stopped)
            done()
          }
        }
      }
    }
    reportIfStopped()
  }
}
