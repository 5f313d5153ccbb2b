// A gateway as its process, or a program that embeds it, holds it. What it does stands in GatewayCore.

import ByteStreams
import CLinux
import Dispatch
import Glibc
import StreamBroker
import StreamBrokerBluetooth

/// Calls return at once; what they bring about is told as events.
public final class Gateway: Sendable {
  /// Opens every endpoint of this build.
  public static let broker = Broker(Schemes.standard + BluetoothSchemes.all)

  /// Where bonds with Bluetooth devices are kept unless it is said.
  public static func bondsPath(_ environment: [String: String]) -> String { BondKeeper.path(environment) }

  /// The same connector, whose bonds, if it has to do with such, are kept at `path`, for programs that open it themselves. `complain` is
  /// called, on another thread, when they can't be.
  public static func keepingBonds(
    of connector: any Connector, at path: String, complain: @escaping @Sendable (String) -> Void
  ) -> any Connector {
    guard var bonding = connector as? any BondingConnector else { return connector }
    bonding.bonds = BondKeeper(path: path) { if case .trouble(let text) = $0 { complain(text) } }
    return bonding
  }

  private static var byteLaneCount: Int { max(1, min(4, Int(sysconf(Int32(_SC_NPROCESSORS_ONLN))))) }
  /// Those that carry bytes, the gateway's own and the one for handshakes.
  static var laneCount: Int { byteLaneCount + 2 }

  let core: Resident<GatewayCore>
  private let reception: Resident<Reception>
  private let bluetooth: Resident<BluetoothHost>
  let lanes: [Lane]

  /// `board` must be among those that `status` tells. `bonds` is the file in which those with Bluetooth devices are kept, nil for none.
  /// `inherited` are for the listeners that have their addresses. Throws when
  /// the process is out of descriptors before it began.
  public init(
    status: StatusSink, board: StatusBoard, inherited: InheritedSockets = InheritedSockets(), bonds: String? = nil
  ) throws(SystemError) {
    var lanes: [Lane] = []
    for number in 0..<Self.byteLaneCount { lanes.append(try Lane("baudway.lane-\(number)")) }
    // A lane that carries no bytes: who asks for a status of thousands disturbs none, and a lane that hangs is told of.
    let home = try Lane("baudway.control")
    let all = lanes
    // Clients are greeted on a lane of its own, too: five hundred slow handshakes are nobody's delay.
    let greetings = try Lane("baudway.reception")
    self.lanes = all + [home, greetings]
    let rates = ConnectRates()
    let limits = ProcessLimits.current()
    let descriptors = DescriptorBudget(limit: limits.descriptors, standing: DescriptorBudget.standing)
    let handshakes = HandshakeCounts()
    let departures = Departures()
    let status = status.adding(departures.observe)
    let reception = Resident(on: greetings) {
      Reception(on: $0.poller, status: status, rates: rates, descriptors: descriptors, counts: handshakes)
    }
    self.reception = reception
    let keeper = bonds.map { path in
      BondKeeper(path: path) { news in
        switch news {
        case .kept(let device, let path): status.tell(.bondKept(device: device, path: path))
        case .trouble(let trouble): status.tell(.bondTrouble(trouble))
        case .refused(let device, let reason): status.tell(.pairingRefused(device: device, reason: reason))
        }
      }
    }
    let bluetooth = Resident(on: greetings) { BluetoothHost(on: $0.poller, bonds: keeper) }
    self.bluetooth = bluetooth
    let surroundings = RouteSurroundings(
      inherited: inherited, reception: reception, bluetooth: bluetooth, rates: rates, descriptors: descriptors,
      bonds: keeper)
    let core = Resident(on: home) { home in
      GatewayCore(
        all, home: home, status: status, board: board, surroundings: surroundings, limits: limits,
        handshakes: handshakes)
    }
    self.core = core
    departures.whenMany { count in core.post { _, core in core.haveLeft(count) } }
  }

  /// `source` is where `config` came from, for those who ask to read it again; `control` takes the place of what it says.
  public func start(_ config: Config, from source: ConfigSource? = nil, control: ControlAddress? = nil) {
    core.post { _, core in core.start(config, from: source, control: control) }
  }

  /// Brings the routes in line with `config`: starts those that are new, ends those that are gone, changes those that have
  /// changed while their clients stay, and touches no other. `done` is called on a lane when it is carried out.
  public func reload(_ config: Config, then done: @escaping @Sendable (ReloadOutcome) -> Void = { _ in }) {
    core.post { _, core in core.reload(config, then: done) }
  }

  /// The same with what the source says now. A file with mistakes changes nothing.
  public func reload(then done: @escaping @Sendable (ReloadOutcome) -> Void = { _ in }) {
    core.post { _, core in core.reloadFromSource(then: done) }
  }

  /// Reloads by itself whenever the source's file changes.
  public func watchSource() { core.post { _, core in core.watchSource() } }

  /// Calls `answered` once every lane has come round to its inbox, one after the other. A lane that hangs never does.
  public func ping(then answered: @escaping @Sendable () -> Void) { Self.ping(lanes[...], answered) }

  static func ping(_ lanes: ArraySlice<Lane>, _ answered: @escaping @Sendable () -> Void) {
    guard let lane = lanes.first else { return answered() }
    lane.post { _ in ping(lanes.dropFirst(), answered) }
  }

  /// Accepts no more, lets sessions drain for at most five seconds, then calls `done` on a lane. That was the gateway's life:
  /// its lanes go with it, and later calls do nothing.
  public func stop(then done: @escaping @Sendable () -> Void) {
    let (core, reception, bluetooth, lanes) = (core, reception, bluetooth, lanes)
    core.post { _, gateway in
      gateway.stop {
        done()
        core.evict()
        reception.evict()
        bluetooth.evict()
        for lane in lanes { lane.stop() }
      }
    }
  }
}

extension Gateway {
  /// Kills the programs of `exec:` and what they have started, for who ends the process before `stop` has ended them in order; from
  /// then on none is started. Waits for no lane, and for one that is just being started a second at most, for each.
  public func killPrograms() { for lane in lanes { lane.programs.giveUp() } }
}

/// What came of a wish to reload.
public enum ReloadOutcome: Sendable {
  case carriedOut(ReloadReport)
  /// The file has mistakes: everything stays as it was.
  case refused(ConfigProblems)
  case stopping
  /// The gateway was not started from a file.
  case noSource
}

/// A closure that lives on a lane, for those elsewhere to call back.
final class CallBack {
  let call: () -> Void
  init(_ call: @escaping () -> Void) { self.call = call }
}
