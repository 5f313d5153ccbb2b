// What a `HandshakeListener` gives the handshake server: one route's listener at an address that several routes can
// share.

import ByteStreams
import StreamTLS

struct RouteBinding: Sendable {
  /// The same across reloads.
  let number: UInt64
  let route: String
  let listen: Config.Listen
  let inherited: InheritedSockets
  let isShared: Bool
  let context: LaneRef<ListenerContext>
  // A reload changes the following.
  let role: Config.Listen.Role
  let clients: Config.Clients
  let access: Access
  let websocket: Config.WebSocket?
  /// Nil for a listener without TLS.
  let tls: TLSServerSettings?

  init(_ number: UInt64, _ listen: Config.Listen, of context: ListenerContext) {
    self.number = number
    route = context.route
    self.listen = listen
    inherited = context.inherited
    isShared = context.isShared
    self.context = context.laneRef
    role = context.role
    clients = context.terms.clients
    access = context.terms.access
    websocket = context.terms.websocket
    tls = listen.usesTLS ? context.terms.tls.map { Self.settings($0, listen, context.terms.access) } : nil
  }

  /// Without WebSocket and telnet a certificate is the only credential. If the route requires one, TLS must require it too: then
  /// the client gets the alert for a missing certificate.
  private static func settings(_ config: Config.TLS, _ listen: Config.Listen, _ access: Access) -> TLSServerSettings {
    var settings = TLSServerSettings(config, speaksHTTP: listen.usesWebSocket)
    let isOnlyWay = !listen.usesWebSocket && !listen.usesTelnet
    if isOnlyWay, settings.clientAuth == .optional, access.asks { settings.clientAuth = .required }
    return settings
  }

  var keepsAlive: Bool { clients.keepalive }
  /// The server name (SNI) of this binding, in lower case; nil for all names that no other binding has.
  var serverName: String? { listen.serverName }

  /// Hands a client over to its route. If the route has gone, the parcel closes the connection.
  func arrived(_ accepted: consuming AcceptedConnection) {
    let parcel = AcceptedConnectionParcel(accepted)
    context.post { _, context in
      if let accepted = parcel.take() { context.arrived(accepted) }
    }
  }

  /// The context that verifies clients' certificates from now on, also those of present clients.
  func trusts(_ context: TLSServerContext) {
    self.context.post { _, listener in listener.trusts(context) }
  }

  /// A client of this binding ended before it was handed over.
  func ended(_ label: AcceptedConnection.Label, _ ending: Ending, nanoseconds: UInt64) {
    context.post { _, context in context.ended(label, ending, nanoseconds: nanoseconds) }
  }
}
