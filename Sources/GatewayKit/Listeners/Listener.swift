// A listener of a route: its address, bound now or as soon as it can be, and how an accepted descriptor becomes an
// arrival. A kind of listener is a folder beside this file and one line in Listeners.swift.

import ByteStreams
import Glibc
import StreamBroker
import StreamBrokerBluetooth
import StreamTLS

protocol Listener: AnyObject {
  /// Binds and accepts, and keeps trying while the address can't be bound.
  func start()
  /// Hands over whoever has connected already and accepts no more. `done` is called once the address is free again, at once
  /// or when files are removed.
  func stop(then done: @escaping () -> Void)
  /// The context has other values now, and the address stays. For what was set on a socket; the rest is read when it is used.
  func contextChanged()
  /// Looks whether somebody has removed its name from the file system, and takes the place anew then. Calls `done` when that is
  /// over, whatever came of it.
  func lookAfterPlace(then done: @escaping () -> Void)
}

extension Listener {
  func contextChanged() {}
  func lookAfterPlace(then done: @escaping () -> Void) { done() }
}

/// How long a listener whose socket was lost rests before it takes its address anew: one whose socket is shut down again and again must
/// neither spin nor fill the log.
struct RebindPause {
  private var last: (time: UInt64, pause: Duration)?
  private static let shortest = Duration.seconds(1)
  private static let longest = Duration.seconds(30)

  /// `now` is in nanoseconds. Twice the last one, unless the socket worked for a while since.
  mutating func next(at now: UInt64) -> Duration {
    var pause = Self.shortest
    if let last, now &- last.time < (last.pause + Self.longest).nanoseconds {
      pause = min(last.pause * 2, Self.longest)
    }
    last = (now, pause)
    return pause
  }
}

extension OpenFailure {
  /// Of a listener that worked.
  static func lost(_ error: SystemError) -> OpenFailure {
    OpenFailure(
      error.call, error,
      advice: "its socket was shut down, perhaps by another process that has it too; it is bound anew")
  }
}

/// What a listener needs of its route. Reload changes it under a listener that stays bound.
final class ListenerContext {
  let route: String
  let lane: Lane
  let poller: Poller
  let status: StatusSink
  /// Whether clients share a link, and so may hold up each other.
  let isShared: Bool
  /// Of the route's listeners, this one's number; never used twice.
  let door: Int
  /// What the configuration says of the route's clients.
  var terms: Terms
  var sendsNotices: Bool { terms.clients.notices }
  /// Whether the kernel looks after idle clients.
  var keepsAlive: Bool { terms.clients.keepalive }
  var role: Config.Listen.Role
  /// Sockets that are bound already.
  let inherited: InheritedSockets
  /// Where clients of listeners with a greeting are greeted.
  let reception: Resident<Reception>?
  /// Where adapters, channels and the list of services are seen to.
  let bluetooth: Resident<BluetoothHost>?
  /// How fast clients of one address may come.
  let rates: ConnectRates
  private let admit: (consuming Arrival) -> Void
  private let report: (Arrival.Label, Ending, UInt64) -> Void

  init(
    route: String, on lane: Lane, _ poller: Poller, status: StatusSink, isShared: Bool, door: Int,
    terms: Terms, role: Config.Listen.Role, surroundings: RouteSurroundings,
    report: @escaping (Arrival.Label, Ending, UInt64) -> Void, admit: @escaping (consuming Arrival) -> Void
  ) {
    self.route = route
    self.lane = lane
    self.poller = poller
    self.status = status
    self.isShared = isShared
    self.door = door
    self.terms = terms
    self.role = role
    inherited = surroundings.inherited
    reception = surroundings.reception
    bluetooth = surroundings.bluetooth
    rates = surroundings.rates
    self.report = report
    self.admit = admit
  }

  struct Terms: Hashable {
    let clients: Config.Clients
    let access: Access
    let tls: Config.TLS?
    let websocket: Config.WebSocket?

    init(_ config: Config.Route) {
      clients = config.clients
      access = config.access
      tls = config.tls
      websocket = config.websocket
    }
  }

  /// What those who are greeted for it end with when it closes.
  var closing = Ending.Word.routeRemoved

  /// Clients' certificates are held against other authorities or lists from now on.
  var trusts: (TLSServerContext) -> Void = { _ in }

  /// For those on another lane. Only on the route's.
  var resident: Resident<ListenerContext> { Resident(self, on: lane) }

  /// A way to call `done` here, from anywhere. Only on the route's lane.
  func callBack(_ done: @escaping () -> Void) -> @Sendable () -> Void {
    let back = Resident(CallBack(done), on: lane)
    return { back.post { _, back in back.call() } }
  }

  /// A client is here. Whether he gets in is the route's matter.
  func arrived(_ arrival: consuming Arrival) {
    arrival.label.role = min(role, arrival.label.role)
    arrival.label.door = door
    admit(arrival)
  }

  /// One who was accepted for the route did not get as far as that: he ended while he was greeted, `nanoseconds` after he came.
  func ended(_ label: Arrival.Label, _ ending: Ending, nanoseconds: UInt64) {
    var label = label
    label.role = min(role, label.role)
    label.door = door
    report(label, ending, nanoseconds)
  }
}

/// What routes have in common.
struct RouteSurroundings: Sendable {
  var inherited = InheritedSockets()
  /// Nil for a gateway whose listeners greet nobody.
  var reception: Resident<Reception>?
  /// Nil for a gateway that does not listen over Bluetooth. On the reception's lane.
  var bluetooth: Resident<BluetoothHost>?
  var rates = ConnectRates()
  /// Addresses of many clients each.
  var proxies = ProxyNetworks()
  /// Who may still have descriptors.
  var descriptors = DescriptorBudget()
  /// Of Bluetooth devices; nil for a gateway that keeps none.
  var bonds: BondKeeper?
  /// Seconds since 1970, for certificates that expire.
  var wallTime: @Sendable () -> Int = { time(nil) }

  /// Calls `done`, somewhere, when the reception has done what was asked of it so far: addresses that it gave up are free then.
  func whenReceptionIsThrough(_ done: @escaping @Sendable () -> Void) {
    guard let reception else { return done() }
    reception.post { _, _ in done() }
  }
}
