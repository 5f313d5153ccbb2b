// The admin listener: health checks, metrics and the API, by HTTP. The handshake server binds its addresses, reads the
// heads of requests and logs clients in; this answers them, on the control lane, which carries no bytes.

import ByteStreams
import StreamBroker
import StreamTLS
import StreamWebSocket

final class AdminServer {
  /// Where events name a route. No route has this name.
  static let owner = ""

  unowned let backend: any AdminBackend  // owns this object
  private let home: Lane
  private let poller: Poller
  private let environment: RouteEnvironment
  private let board: StatusBoard
  private var users: [Config.User] = []
  private var access = Access.open
  private var bindings: [(listen: Config.Listen, number: UInt64)] = []
  private var connections: [ObjectIdentifier: AdminConnection] = [:]
  private let closing: ClosingStreams
  private let status: StatusSink
  /// Kept while there is a listener.
  private var events: EventLog?
  private var isStopped = false

  /// Connections at a time, of all clients.
  private static let most = 1000
  private static let lastLinger = Duration.seconds(1)

  /// Lives on `home`, whose poller is `poller`.
  init(
    on home: Lane, _ poller: Poller, environment: RouteEnvironment, board: StatusBoard, status: StatusSink,
    backend: any AdminBackend
  ) {
    self.home = home
    self.poller = poller
    self.environment = environment
    self.board = board
    self.backend = backend
    closing = ClosingStreams(on: poller)
    self.status = status
  }

  // MARK: - Its addresses

  /// Opens, changes and closes listeners so that they are those of `config`.
  func follow(_ config: Config) {
    if users != config.users { accessChanged() }
    users = config.users
    access = Access(admin: config.users)
    board.expect(config.admin.listen.map(\.target), of: Self.owner)
    let old = bindings
    bindings = config.admin.listen.map { listen in
      old.first { $0.listen == listen } ?? (listen, RouteBinding.nextNumber())
    }
    if bindings.isEmpty {
      events = nil
      accessChanged()
    } else if events == nil {
      events = EventLog(on: home, poller, status)
    }
    let (before, now) = (Set(old.map(\.number)), Set(bindings.map(\.number)))
    close(before.subtracting(now), .routeRemoved)
    let wanted = bindings.map { listen, number in
      RouteBinding(
        number, listen, config.admin, access, of: LaneRef(self, on: home), inherited: environment.inherited)
    }
    environment.handshakeServer?.post { _, handshakeServer in
      for binding in wanted {
        if before.contains(binding.number) { handshakeServer.change(binding) } else { handshakeServer.open(binding) }
      }
    }
  }

  private func close(_ numbers: Set<UInt64>, _ word: Ending.Word) {
    guard !numbers.isEmpty else { return }
    environment.handshakeServer?.post { _, handshakeServer in
      for number in numbers { handshakeServer.close(number, word) }
    }
  }

  /// Closes everything, and calls `done` when responses on their way have been sent, or after a moment.
  func stop(_ word: Ending.Word, then done: @escaping () -> Void) {
    isStopped = true
    board.expect([], of: Self.owner)
    close(Set(bindings.map(\.number)), word)
    bindings = []
    for connection in Array(connections.values) { connection.close() }
    closing.empty(within: Self.lastLinger, then: done)
  }

  // MARK: - Its clients

  var connectionCount: Int { connections.count }

  /// A client whose log-in succeeded, or that needs none.
  func take(
    _ accepted: consuming AcceptedConnection, _ request: AdminRequest, asTerminal acceptance: WebSocketAcceptance?
  ) {
    guard !isStopped else { return }  // releasing `accepted` closes it
    var refusal: AdminRefusal?
    // A reload may have changed the rules since the log-in.
    if request.resource.needsLogIn, access.role(of: accepted.label.identity, listener: .writer) == nil {
      refusal = AdminRefusal(.unauthorized, AdminResponse.logIn)
    }
    if connections.count >= Self.most || !environment.descriptors.admits(accepted.descriptor.raw) {
      refusal = AdminRefusal(.unavailable, "The gateway has too many connections. Try again later.")
    }
    let caller = AdminCaller(accepted.label, users)
    if refusal == nil, let acceptance {
      refusal = objection(to: caller, at: acceptance.route) ?? request.objection(to: caller)
      if refusal == nil { return backend.admit(accepted, asTerminal: acceptance) }
    }
    let connection = AdminConnection(accepted.stream(on: poller), request, caller, on: poller, of: self)
    connections[ObjectIdentifier(connection)] = connection
    connection.begin(refusal)
  }

  private func objection(to caller: AdminCaller, at route: String) -> AdminRefusal? {
    caller.role(on: route) != nil && backend.hasRoute(route) ? nil : .noSuchRoute(route)
  }

  /// Answers with a ticket for a WebSocket to the route. Scripts of browsers can't send credentials with a WebSocket.
  func giveTicket(for route: String, to caller: AdminCaller, then done: @escaping (AdminAnswer) -> Void) {
    if let refusal = objection(to: caller, at: route) { return done(.whole(refusal.response)) }
    guard let handshakeServer = environment.handshakeServer else { return }  // it has accepted this client
    let (name, identity) = (Tickets.newName(), caller.identity)
    let answer = AdminResponse.json(
      .object(["ticket": .text(name), "seconds": .integer(Int(Tickets.lifetime.components.seconds))]))
    let back = LaneRef(CallBack { done(.whole(answer)) }, on: home)
    handshakeServer.post { _, handshakeServer in
      handshakeServer.tickets.add(name, for: route, identity, at: handshakeServer.poller.timers.now)
      back.post { _, back in back.call() }
    }
  }

  /// Certificates' authorities or revocation lists have changed.
  func trusts(_ context: TLSServerContext) {
    accessChanged()
    backend.trusts(context)
  }

  /// Users or certificates' authorities have changed: clients with an event stream log in again.
  func accessChanged() {
    for connection in Array(connections.values) where connection.isEventStream { connection.close() }
  }

  /// The events from now on, or from the one after the last that the client got.
  func eventStream(for request: AdminRequest, _ caller: AdminCaller) -> AdminAnswer {
    guard let events, !isStopped else { return .whole(.problem(.unavailable, "The gateway is stopping.")) }
    return .pieces(
      contentType: "text/event-stream", EventStream(events, after: request.lastEvent, for: caller, on: poller))
  }

  /// Events of an answer that lists the latest.
  private static let mostEvents = 200

  /// The latest events of a route, or of all, that the client may see: JSON objects with the number of each, oldest
  /// first.
  func latestEvents(of route: String?, seenBy caller: AdminCaller) -> [String] {
    guard let events else { return [] }
    let latest = events.latest(Self.mostEvents) { caller.sees($0) && (route == nil || $0.route == route) }
    return latest.map { "{\"id\":\"\(events.id(of: $0))\",\($0.line.dropFirst())" }
  }

  func ended(_ connection: AdminConnection) { connections[ObjectIdentifier(connection)] = nil }

  /// The response is written; the connection closes in order, so that it arrives.
  func part(from connection: AdminConnection, _ stream: any ByteStream) {
    closing.close(stream, otherSideFinished: false, readingAtMost: ClosingStreams.mostBeforeSession)
    ended(connection)
  }
}
