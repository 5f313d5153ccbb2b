// What a `HandshakeListener` gives the handshake server: one route's listener at an address that several routes can
// share. The admin listener's addresses are bindings too.

import ByteStreams
import StreamTLS
import Synchronization

struct RouteBinding: Sendable {
  /// The same across reloads.
  let number: UInt64
  let route: String
  let listen: Config.Listen
  let inherited: InheritedSockets
  let isShared: Bool
  private let owner: Owner
  // A reload changes the following.
  let role: Config.Listen.Role
  let clients: Config.Clients
  let access: Access
  let websocket: Config.WebSocket?
  /// Names of the gateway that requests may use, besides those that it finds itself.
  let hosts: [String]
  /// Nil for a listener without TLS.
  let tls: TLSServerSettings?

  /// Where its clients go.
  private enum Owner {
    case route(LaneRef<ListenerContext>)
    case admin(LaneRef<AdminServer>)
  }

  private static let last = Atomic<UInt64>(0)
  static func nextNumber() -> UInt64 { last.add(1, ordering: .relaxed).newValue }

  init(_ number: UInt64, _ listen: Config.Listen, of context: ListenerContext) {
    self.number = number
    route = context.route
    self.listen = listen
    inherited = context.inherited
    isShared = context.isShared
    owner = .route(context.laneRef)
    role = context.role
    clients = context.terms.clients
    access = context.terms.access
    websocket = context.terms.websocket
    hosts = context.terms.websocket?.hosts ?? []
    tls = listen.usesTLS ? context.terms.tls.map { Self.settings($0, listen, context.terms.access) } : nil
  }

  init(
    _ number: UInt64, _ listen: Config.Listen, _ admin: Config.Admin, _ access: Access,
    of server: LaneRef<AdminServer>, inherited: InheritedSockets
  ) {
    self.number = number
    route = AdminServer.owner
    self.listen = listen
    self.inherited = inherited
    isShared = true
    owner = .admin(server)
    role = .writer
    clients = Config.Clients()
    self.access = access
    websocket = nil
    hosts = admin.hosts
    tls = listen.usesTLS ? admin.tls.map { Self.settings($0, listen, access) } : nil
  }

  /// Without WebSocket and telnet a certificate is the only credential. If the route requires one, TLS must require it
  /// too: then the client gets the alert for a missing certificate.
  private static func settings(_ config: Config.TLS, _ listen: Config.Listen, _ access: Access) -> TLSServerSettings {
    var settings = TLSServerSettings(config, speaksHTTP: listen.usesHTTP)
    let isOnlyWay = !listen.usesHTTP && !listen.usesTelnet
    if isOnlyWay, settings.clientAuth == .optional, access.asks { settings.clientAuth = .required }
    return settings
  }

  var keepsAlive: Bool { clients.keepalive }
  /// The server name (SNI) of this binding, in lower case; nil for all names that no other binding has.
  var serverName: String? { listen.serverName }

  /// Hands a client over to its route. If the route has gone, the parcel closes the connection.
  func arrived(_ accepted: consuming AcceptedConnection) {
    guard case .route(let context) = owner else { return }
    let parcel = AcceptedConnectionParcel(accepted)
    context.post { _, context in
      if let accepted = parcel.take() { context.arrived(accepted) }
    }
  }

  /// Hands a client over to the admin server, with the head of its request.
  func arrived(
    _ accepted: consuming AcceptedConnection, _ request: AdminRequest, asTerminal acceptance: WebSocketAcceptance?
  ) {
    guard case .admin(let server) = owner else { return }
    let parcel = AcceptedConnectionParcel(accepted)
    server.post { _, server in
      if let accepted = parcel.take() { server.take(accepted, request, asTerminal: acceptance) }
    }
  }

  /// The context that verifies clients' certificates from now on, also those of present clients.
  func trusts(_ context: TLSServerContext) {
    switch owner {
    case .route(let listener): listener.post { _, listener in listener.trusts(context) }
    case .admin(let server): server.post { _, server in server.trusts(context) }
    }
  }

  /// Whether a route reports how its clients end; the admin listener has no sessions.
  var hasSessions: Bool { if case .route = owner { true } else { false } }

  /// A client of this binding ended before it was handed over.
  func ended(_ label: AcceptedConnection.Label, _ ending: Ending, nanoseconds: UInt64) {
    guard case .route(let context) = owner else { return }
    context.post { _, context in context.ended(label, ending, nanoseconds: nanoseconds) }
  }
}
