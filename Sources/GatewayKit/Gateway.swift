// The gateway, as the process or an embedding program uses it: makes the lanes, starts, reloads and stops. GatewayCore
// does the work.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import StreamBroker
import StreamBrokerBluetooth

/// Every call returns at once. Events report the results.
package final class Gateway: Sendable {
  /// Opens the endpoints of every scheme in this build.
  package static let broker = Broker(Schemes.standard + BluetoothSchemes.all)

  /// The default path of the file with the bonds of Bluetooth devices.
  package static func bondsPath(_ environment: [String: String]) -> String { BondKeeper.path(environment) }

  /// For programs that open `connector` themselves: returns it with its Bluetooth bonds kept in the file at `path`, if
  /// it uses bonds. `reportOnce` is called on another thread when bonds cannot be kept.
  package static func keepingBonds(
    of connector: any Connector, at path: String, reportOnce: @escaping @Sendable (String) -> Void
  ) -> any Connector {
    guard var bonding = connector as? any BondingConnector else { return connector }
    bonding.bonds = BondKeeper(path: path) { if case .trouble(let text) = $0 { reportOnce(text) } }
    return bonding
  }

  private static var byteLaneCount: Int { max(1, min(4, Int(sysconf(Int32(_SC_NPROCESSORS_ONLN))))) }
  /// The lanes that carry bytes, the gateway's own and the one for handshakes.
  static var laneCount: Int { byteLaneCount + 2 }

  let core: LaneRef<GatewayCore>
  private let handshakeServer: LaneRef<HandshakeServer>
  private let bluetooth: LaneRef<BluetoothHost>
  let lanes: [Lane]

  /// The folder where recordings with relative names are written.
  package static func stateFolder(_ environment: [String: String]) -> String {
    CaptureEnvironment.stateFolder(environment)
  }

  /// `board` must be an observer of `status`. `bonds` is the path of the file with the bonds of Bluetooth devices; nil
  /// = no bonds are kept. Relative names of recordings begin in `stateFolder`. `inherited` are sockets for the listeners
  /// with the same addresses. Throws when there are no descriptors left for the lanes.
  package init(
    status: StatusSink, board: StatusBoard, inherited: InheritedSockets = InheritedSockets(), bonds: String? = nil,
    stateFolder: String? = nil, clock: LaneClock = .monotonic
  ) throws(SystemError) {
    var lanes: [Lane] = []
    for number in 0..<Self.byteLaneCount { lanes.append(try Lane("baudway.lane-\(number)", clock: clock)) }
    // A lane that carries no bytes: a `status` of thousands of clients delays no client, and a lane that hangs is
    // reported.
    let home = try Lane("baudway.control", clock: clock)
    let all = lanes
    // Handshakes have a separate lane, too: five hundred slow ones delay no session.
    let handshakeLane = try Lane("baudway.handshakes", clock: clock)
    self.lanes = all + [home, handshakeLane]
    let rates = ConnectRates()
    let limits = ProcessLimits.current()
    let descriptors = DescriptorBudget(limit: limits.descriptors, standing: DescriptorBudget.standing)
    let handshakes = HandshakeCounts()
    let departures = Departures()
    let status = status.adding(departures.observe)
    let ownConnections = OwnConnections(inherited)
    let handshakeServer = LaneRef(on: handshakeLane) {
      HandshakeServer(
        on: $0.poller, status: status, rates: rates, descriptors: descriptors, counts: handshakes,
        ownConnections: ownConnections)
    }
    self.handshakeServer = handshakeServer
    let refusals = WatchRefusals(status)
    for lane in self.lanes { lane.post { refusals.observe($0.poller.inotify) } }
    let keeper = bonds.map { Self.bondKeeper(path: $0, status) }
    let bluetooth = LaneRef(on: handshakeLane) { BluetoothHost(on: $0.poller, bonds: keeper) }
    self.bluetooth = bluetooth
    let environment = RouteEnvironment(
      inherited: inherited, handshakeServer: handshakeServer, bluetooth: bluetooth, rates: rates,
      descriptors: descriptors, ownConnections: ownConnections, bonds: keeper,
      captures: CaptureEnvironment(stateFolder: stateFolder ?? Self.stateFolder([:]), descriptors: descriptors))
    let core = LaneRef(on: home) { home in
      GatewayCore(
        all, home: home, status: status, board: board, environment: environment, limits: limits,
        handshakes: handshakes)
    }
    self.core = core
    departures.whenMany { count in core.post { _, core in core.haveLeft(count) } }
  }

  private static func bondKeeper(path: String, _ status: StatusSink) -> BondKeeper {
    BondKeeper(path: path) { news in
      switch news {
      case .kept(let device, let path): status.publish(.bondKept(device: device, path: path))
      case .trouble(let trouble): status.publish(.bondTrouble(trouble))
      case .refused(let device, let reason): status.publish(.pairingRefused(device: device, reason: reason))
      }
    }
  }

  /// `source` is where `config` came from; later reloads read it again. `control` replaces the source's control socket.
  package func start(_ config: Config, from source: ConfigSource? = nil, control: ControlAddress? = nil) {
    core.post { _, core in core.start(config, from: source, control: control) }
  }

  /// Applies `config`: starts new routes, stops removed ones, changes others while their clients stay, and does not
  /// touch equal ones. `done` is called on a lane when this is done.
  package func reload(_ config: Config, then done: @escaping @Sendable (ReloadOutcome) -> Void = { _ in }) {
    core.post { _, core in core.reload(config, then: done) }
  }

  /// Reads the source again and applies it. A file with mistakes changes nothing.
  package func reload(then done: @escaping @Sendable (ReloadOutcome) -> Void = { _ in }) {
    core.post { _, core in core.reloadFromSource(then: done) }
  }

  /// Reloads whenever the source's file changes.
  package func watchSource() { core.post { _, core in core.watchSource() } }

  /// Calls `answered` after all lanes, one after the other, have processed their inboxes; never if a lane hangs.
  package func ping(then answered: @escaping @Sendable () -> Void) { Self.ping(lanes[...], answered) }

  static func ping(_ lanes: ArraySlice<Lane>, _ answered: @escaping @Sendable () -> Void) {
    guard let lane = lanes.first else { return answered() }
    lane.post { _ in ping(lanes.dropFirst(), answered) }
  }

  /// Accepts no more clients, lets sessions drain for at most five seconds, then calls `done` on a lane. After that the
  /// lanes end, and later calls do nothing.
  package func stop(then done: @escaping @Sendable () -> Void) {
    let (core, handshakeServer, bluetooth, lanes) = (core, handshakeServer, bluetooth, lanes)
    core.post { _, gateway in
      gateway.stop {
        done()
        core.evict()
        handshakeServer.evict()
        bluetooth.evict()
        for lane in lanes { lane.stop() }
      }
    }
  }
}

extension Gateway {
  /// Kills the programs of `exec:` and everything they have started, for a process that exits before `stop` is done. No
  /// program starts after that. Waits for no lane, but up to a second for each program that is just being started.
  package func killPrograms() { for lane in lanes { lane.programs.giveUp() } }
}

/// The result of a reload.
package enum ReloadOutcome: Sendable {
  case carriedOut(ReloadReport)
  /// The file has mistakes; nothing changed.
  case refused(ConfigProblems)
  case stopping
  /// The gateway was not started from a file.
  case noSource
}

/// A closure that lives on a lane; other lanes call it through a LaneRef.
final class CallBack {
  let call: () -> Void
  init(_ call: @escaping () -> Void) { self.call = call }
}
