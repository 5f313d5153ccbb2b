// What a listener with a greeting tells the reception of itself, and the listener: on its route's lane it asks the reception
// for its address, and passes on who was greeted there.

import ByteStreams
import StreamTLS
import Synchronization

private let lastWay = Atomic<UInt64>(0)

/// One route's way in at an address that several may share.
struct Way: Sendable {
  /// The same across reloads.
  let number: UInt64
  let route: String
  let listen: Config.Listen
  let inherited: InheritedSockets
  let isShared: Bool
  let context: Resident<ListenerContext>
  // What a reload changes.
  let role: Config.Listen.Role
  let clients: Config.Clients
  let access: Access
  let websocket: Config.WebSocket?
  /// Nil where it is spoken without.
  let tls: TLSServerSettings?

  var keepsAlive: Bool { clients.keepalive }
  /// The name (SNI) that leads here, in lower case; nil for any that leads nowhere else.
  var serverName: String? { listen.serverName }

  /// Hands a client over to his route. The parcel's content closes with it where the route has gone.
  func arrived(_ arrival: consuming Arrival) {
    let parcel = ArrivalParcel(arrival)
    context.post { _, context in
      if let arrival = parcel.take() { context.arrived(arrival) }
    }
  }

  /// What clients' certificates are held against from now on; those of clients that are here as well.
  func trusts(_ context: TLSServerContext) {
    self.context.post { _, listener in listener.trusts(context) }
  }

  /// A client that was this way's did not get as far as his route.
  func ended(_ label: Arrival.Label, _ ending: Ending, nanoseconds: UInt64) {
    context.post { _, context in context.ended(label, ending, nanoseconds: nanoseconds) }
  }
}

final class GreetingListener: Listener {
  private let listen: Config.Listen
  private let context: ListenerContext
  private let reception: Resident<Reception>
  private let number = lastWay.add(1, ordering: .relaxed).newValue

  init(_ listen: Config.Listen, _ context: ListenerContext) {
    guard let reception = context.reception else { preconditionFailure("a gateway that greets has a reception") }
    self.listen = listen
    self.context = context
    self.reception = reception
  }

  private var way: Way {
    let terms = context.terms
    return Way(
      number: number, route: context.route, listen: listen, inherited: context.inherited, isShared: context.isShared,
      context: context.resident, role: context.role, clients: terms.clients, access: terms.access,
      websocket: terms.websocket,
      tls: listen.usesTLS ? terms.tls.map { settings($0, terms.access) } : nil)
  }

  /// Where a certificate is all that a client can say of himself, and he has to: TLS tells him, by an alert that there is for it.
  private func settings(_ config: Config.TLS, _ access: Access) -> TLSServerSettings {
    var settings = TLSServerSettings(config, speaksHTTP: listen.usesWebSocket)
    if !listen.usesWebSocket, settings.clientAuth == .optional, access.asks { settings.clientAuth = .required }
    return settings
  }

  func start() {
    let way = way
    reception.post { _, reception in reception.open(way) }
  }

  func contextChanged() {
    let way = way
    reception.post { _, reception in reception.change(way) }
  }

  func stop(then done: @escaping () -> Void) {
    let (number, word) = (number, context.closing)
    let back = context.callBack(done)
    reception.post { _, reception in
      reception.close(number, word)
      back()
    }
  }
}
