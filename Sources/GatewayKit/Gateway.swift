// Puts the pieces together from a configuration: lanes, routes, control socket; starts, reloads and stops them. Its own
// work happens on the first lane; a route lives on the lane it was given at birth.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import StreamBroker

/// A gateway as its process holds it. Calls return at once; what they bring about is told as events.
public final class Gateway: Sendable {
  /// Opens every endpoint of this build.
  public static let broker = Broker(Schemes.standard)

  private let core: Resident<GatewayCore>
  private let lanes: [Lane]

  /// Throws when the process is out of descriptors before it began.
  public init(status: StatusSink, board: StatusBoard) throws(SystemError) {
    let cores = max(1, min(4, Int(sysconf(Int32(_SC_NPROCESSORS_ONLN)))))
    var lanes: [Lane] = []
    for number in 0..<cores { lanes.append(try Lane("baudway.lane-\(number)")) }
    let all = lanes
    self.lanes = all
    core = Resident(on: all[0]) { lane in GatewayCore(all, home: lane, status: status, board: board) }
  }

  public func start(_ config: Config, control: ControlAddress?) {
    core.post { _, core in core.start(config, control: control) }
  }

  /// Starts routes that are new, removes those that are gone, replaces those that have changed, and touches no other.
  public func reload(_ config: Config) { core.post { _, core in core.reload(config) } }

  /// Calls `answered` once every lane has come round to its inbox, one after the other. A lane that hangs never does.
  public func ping(then answered: @escaping @Sendable () -> Void) { Self.ping(lanes[...], answered) }

  static func ping(_ lanes: ArraySlice<Lane>, _ answered: @escaping @Sendable () -> Void) {
    guard let lane = lanes.first else { return answered() }
    lane.post { _ in ping(lanes.dropFirst(), answered) }
  }

  /// Accepts no more, lets sessions drain for at most five seconds, then calls `done` on a lane.
  public func stop(then done: @escaping @Sendable () -> Void) { core.post { _, core in core.stop(then: done) } }
}

final class GatewayCore {
  private struct Running {
    let config: Config.Route
    let route: Resident<Route>
  }

  private let lanes: [Lane]
  private let home: Lane
  private let poller: Poller
  private let status: StatusSink
  private let board: StatusBoard
  private let broker = Gateway.broker
  // By name: what the configuration says, what is at work, and what is on its way out.
  private var wanted: [String: Config.Route] = [:]
  private var running: [String: Running] = [:]
  private var leaving: Set<String> = []
  private var whenStopped: (() -> Void)?
  private var nextLane = 0
  private var config: Config?
  private var control: ControlServer?
  private var controlRetry: Timers.Token?
  private var isStopping = false

  /// How long sessions may take to end when their route does.
  private static let drainLimit = Duration.seconds(5)

  init(_ lanes: [Lane], home: isolated Lane, status: StatusSink, board: StatusBoard) {
    self.lanes = lanes
    self.home = home
    poller = home.poller
    self.status = status
    self.board = board
  }

  func start(_ config: Config, control address: ControlAddress?) {
    if let address {
      control = ControlServer(address, on: poller) { [board] request in request == "health" ? board.health : nil }
      startControl(at: address)
    }
    self.config = config
    wanted = Dictionary(uniqueKeysWithValues: config.routes.map { ($0.name, $0) })
    for route in config.routes { startIfWanted(route.name) }
    status.tell(.started(routes: config.routes.count))
  }

  private func startControl(at address: ControlAddress, isRetry: Bool = false) {
    do {
      try control?.start()
    } catch {
      if !isRetry { status.tell(.controlFailed(error, path: address.description)) }
      controlRetry = poller.timers.after(.seconds(1)) { [weak self] in
        self?.startControl(at: address, isRetry: true)
      }
    }
  }

  func reload(_ new: Config) {
    guard !isStopping else { return }
    guard let before = config else { return }
    let plan = ReloadPlan(from: before, to: new)
    config = new
    let stuck = plan.report.settings.filter { $0.hasPrefix("control.") }
    if !stuck.isEmpty { status.tell(.takesRestart(keys: stuck)) }
    wanted = Dictionary(uniqueKeysWithValues: new.routes.map { ($0.name, $0) })
    for (name, route) in running where wanted[name] != route.config { stop(name, .routeRemoved) }
    for route in new.routes { startIfWanted(route.name) }
    status.tell(.reloaded(plan.report))
  }

  /// One that is on its way out under the same name goes first: it has the same addresses and the same device.
  private func startIfWanted(_ name: String) {
    guard let config = wanted[name], running[name] == nil, !leaving.contains(name) else { return }
    let lane = lanes[nextLane % lanes.count]
    nextLane += 1
    let others = lanes.filter { $0 !== lane }
    let status = status
    guard let connector = try? broker.connector(config.endpoint) else {
      preconditionFailure("the configuration lets no URL through that its connector refuses")
    }
    let route = Resident(on: lane) { lane in
      Route(config, connector: connector, on: lane, others: others, status: status)
    }
    running[name] = Running(config: config, route: route)
  }

  private func stop(_ name: String, _ word: Ending.Word) {
    guard let old = running.removeValue(forKey: name) else { return }
    leaving.insert(name)
    let back = Resident(CallBack { [weak self] in self?.hasStopped(name, old.route) }, on: home)
    let limit = Self.drainLimit
    old.route.post { _, route in
      route.stop(Ending(word), within: limit) { back.post { _, back in back.call() } }
    }
  }

  private func hasStopped(_ name: String, _ route: Resident<Route>) {
    leaving.remove(name)
    route.evict()
    status.tell(.routeStopped(name))
    startIfWanted(name)
    if leaving.isEmpty { whenStopped?() }
  }

  func stop(then done: @escaping @Sendable () -> Void) {
    guard !isStopping else { return }
    isStopping = true
    status.tell(.stopping)
    control?.stop()
    control = nil
    poller.timers.cancel(controlRetry)
    wanted = [:]
    for name in Array(running.keys) { stop(name, .shutdown) }
    whenStopped = { [status] in
      status.tell(.stopped)
      done()
    }
    if leaving.isEmpty { whenStopped?() }
  }
}

/// A closure that lives on a lane, for those elsewhere to call back.
final class CallBack {
  let call: () -> Void
  init(_ call: @escaping () -> Void) { self.call = call }
}
