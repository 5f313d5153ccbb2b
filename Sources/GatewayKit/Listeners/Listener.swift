// A listener of a route: binds its address, now or as soon as possible, and turns accepted descriptors into accepted
// connections. A kind of listener is a folder beside this file and one line in ListenerSchemes.swift.

import ByteStreams
import Glibc
import StreamBroker
import StreamBrokerBluetooth
import StreamTLS

protocol Listener: AnyObject {
  /// Binds and accepts, and keeps trying while the address can't be bound.
  func start()
  /// Hands over clients that have already connected, and accepts no more. Calls `done` once the address is free: at
  /// once, or after files were removed.
  func stop(then done: @escaping () -> Void)
  /// The context's values have changed, the address has not. Update options of the socket; other values are read when
  /// they are used.
  func contextChanged()
  /// `context.lineSettings` may have changed. Do not change the route in this call.
  func lineChanged()
  /// Checks whether its file was removed or replaced, and creates it again then. Calls `done` afterwards, also after a
  /// failure.
  func checkSocketFile(then done: @escaping () -> Void)
}

extension Listener {
  func contextChanged() {}
  func lineChanged() {}
  func checkSocketFile(then done: @escaping () -> Void) { done() }
}

/// What a listener needs of its route. A reload changes it while the listener stays bound.
final class ListenerContext {
  let route: String
  let lane: Lane
  let poller: Poller
  let status: StatusSink
  /// Whether clients share a link, and so can delay each other.
  let isShared: Bool
  /// The listener's number within its route; never used twice.
  let listenerNumber: Int
  /// The route's configuration for clients.
  var terms: Terms
  var sendsNotices: Bool { terms.clients.notices }
  /// Whether the kernel probes idle clients (SO_KEEPALIVE).
  var keepsAlive: Bool { terms.clients.keepalive }
  var role: Config.Listen.Role
  /// Sockets that the starter of the process has bound.
  let inherited: InheritedSockets
  let ownConnections: OwnConnections
  /// Carries out clients' handshakes.
  let handshakeServer: LaneRef<HandshakeServer>?
  /// Manages adapters, channels and the list of services.
  let bluetooth: LaneRef<BluetoothHost>?
  /// Limit of connections per second and address.
  let rates: ConnectRates
  private let admit: (consuming AcceptedConnection) -> Void
  private let report: (AcceptedConnection.Label, Ending, UInt64) -> Void

  /// The values that never change.
  struct Owner {
    let route: String
    let isShared: Bool
    let listenerNumber: Int
    let lane: Lane
    let poller: Poller
    let status: StatusSink
  }

  init(
    of owner: Owner, terms: Terms, role: Config.Listen.Role, environment: RouteEnvironment,
    report: @escaping (AcceptedConnection.Label, Ending, UInt64) -> Void,
    admit: @escaping (consuming AcceptedConnection) -> Void
  ) {
    route = owner.route
    isShared = owner.isShared
    listenerNumber = owner.listenerNumber
    lane = owner.lane
    poller = owner.poller
    status = owner.status
    self.terms = terms
    self.role = role
    inherited = environment.inherited
    ownConnections = environment.ownConnections
    handshakeServer = environment.handshakeServer
    bluetooth = environment.bluetooth
    rates = environment.rates
    self.report = report
    self.admit = admit
  }

  struct Terms: Hashable {
    let clients: Config.Clients
    let access: Access
    /// For terminals of the admin listener's page.
    let terminals: Access
    let tls: Config.TLS?
    let websocket: Config.WebSocket?

    init(_ config: Config.Route) {
      clients = config.clients
      access = config.access
      terminals = config.terminals
      tls = config.tls
      websocket = config.websocket
    }
  }

  /// The ending word for pending connections when the listener closes.
  var closing = Ending.Word.routeRemoved

  /// The settings of the endpoint's line, or those that it will have when it is open. A client that ends takes its
  /// changes with it.
  var lineSettings: () -> LineSettings = { LineSettings() }

  /// Called when clients' certificates are to be verified by new authorities or revocation lists.
  var trusts: (TLSServerContext) -> Void = { _ in }

  /// A reference for other lanes. Call it on the route's lane.
  var laneRef: LaneRef<ListenerContext> { LaneRef(self, on: lane) }

  /// Returns a closure that calls `done` on the route's lane, from any thread. Call it on the route's lane.
  func callBack(_ done: @escaping () -> Void) -> @Sendable () -> Void {
    let back = LaneRef(CallBack(done), on: lane)
    return { back.post { _, back in back.call() } }
  }

  /// Passes a client to the route, which admits or refuses it.
  func arrived(_ accepted: consuming AcceptedConnection) {
    accepted.label.role = min(role, accepted.label.role)
    accepted.label.listenerNumber = listenerNumber
    admit(accepted)
  }

  /// A client of this listener ended before it reached the route, `nanoseconds` after it was accepted.
  func ended(_ label: AcceptedConnection.Label, _ ending: Ending, nanoseconds: UInt64) {
    var label = label
    label.role = min(role, label.role)
    label.listenerNumber = listenerNumber
    report(label, ending, nanoseconds)
  }
}

/// What all routes share.
struct RouteEnvironment: Sendable {
  var inherited = InheritedSockets()
  /// Nil for a gateway without listeners that need a handshake.
  var handshakeServer: LaneRef<HandshakeServer>?
  /// Nil for a gateway that does not listen over Bluetooth. On the handshake server's lane.
  var bluetooth: LaneRef<BluetoothHost>?
  var rates = ConnectRates()
  /// Proxies: one such address stands for many clients.
  var proxies = ProxyNetworks()
  /// Reserves the last descriptors.
  var descriptors = DescriptorBudget()
  /// Finds endpoints that lead back to their route.
  var ownConnections = OwnConnections()
  /// Keeps bonds of Bluetooth devices; nil for a gateway that keeps none.
  var bonds: BondKeeper?
  /// Where and how recordings are written.
  var captures = CaptureEnvironment()
  /// Seconds since 1970, for certificates that expire.
  var wallTime: @Sendable () -> Int = { time(nil) }

  /// Calls `done`, on any lane, when the handshake server has carried out all earlier requests: addresses that it was
  /// asked to release are free then.
  func whenHandshakesAreOver(_ done: @escaping @Sendable () -> Void) {
    guard let handshakeServer else { return done() }
    handshakeServer.post { _, _ in done() }
  }
}
