// Finds loops: connections of a route's link that arrive at a listener of this gateway and are on their way back to that
// route. `check` sees those that the configuration shows; a name may lead anywhere later. The links of a route connect
// from addresses of this machine, and a client with such an address is that link: so its route leads to the listener's.
// A client whose route already leads to that link's closes a circle. Any thread may use it; a gateway has one.

import ByteStreams
import StreamBroker
import StreamBrokerCore
import Synchronization

final class OwnConnections: Sendable {
  /// A connection of a link, or an attempt at one.
  fileprivate final class Connection: Sendable {
    let origin: Origin
    let ends: ConnectionEnds
    let arrivals = Mutex(Arrivals())

    init(from origin: Origin, _ ends: ConnectionEnds) {
      self.origin = origin
      self.ends = ends
    }
  }

  /// Where a connection arrived.
  fileprivate struct Arrivals {
    var ways: [Way] = []
    var loop: Loop?
  }

  fileprivate struct Way: Hashable {
    let endpoint: EndpointURL
    let route: String
  }

  fileprivate struct State {
    /// The ports on which this gateway listens, or has listened: links to other ports don't come back, and are not kept.
    var ports: Set<UInt16> = []
    /// Each call of connect(2) has a number.
    var lastCall: UInt64 = 0
    /// By `ConnectionEnds.Source.key`. Nearly every client has none of them, and then the kernel need not be asked for its
    /// other end.
    var connections: [Int: [Connection]] = [:]
    /// The routes to which each route leads, and by how many connections.
    var ways: [String: [Way: Int]] = [:]
    /// The present endpoint of each route: clients stay where an earlier endpoint led, and no client follows them.
    var endpoints: [String: EndpointURL] = [:]
    /// The calls of connect(2) that are being made: at most one for each lane, and each takes some microseconds. Their
    /// connections may be accepted before their addresses are known. Those to other ports are here too, because a
    /// listener may have begun meanwhile.
    var connecting: [(number: UInt64, port: UInt16)] = []
  }
  private let state: Mutex<State>

  /// `inherited` are sockets that listen already.
  init(_ inherited: InheritedSockets = InheritedSockets()) { state = Mutex(State(ports: Set(inherited.ports))) }

  /// The gateway's route `route` has this endpoint from now on.
  func route(_ route: String, leadsTo endpoint: EndpointURL) { state.withLock { $0.endpoints[route] = endpoint } }

  /// The route is over.
  func routeEnds(_ route: String) { state.withLock { $0.endpoints[route] = nil } }

  /// Call it before listen(2), so that no link can connect unseen.
  func willListen(on port: UInt16) { state.withLock { _ = $0.ports.insert(port) } }

  enum Answer {
    /// It leads back to the route of the link that it comes from, which knows it now.
    case loop
    case noLoop
    /// Ask again, with this number: links connect to the listener's port at this moment.
    case notYet(UInt64)
  }

  /// Whether a client of `route` that `listener` accepted is a link that leads back to its own route. `peer` is the
  /// address of the socket's other side, if it has one.
  func isLoop(
    _ socket: Int32, from peer: SocketAddress?, to route: String, _ listener: String, waitingFor last: UInt64?
  ) -> Answer {
    state.withLock { state in
      if let source = ConnectionEnds.Source(accepted: socket, from: peer),
        let candidates = state.connections[source.key], let ends = ConnectionEnds(accepted: socket, from: source),
        let connection = candidates.last(where: { $0.ends == ends })
      {
        return state.arrives(connection, at: route, listener) ? .loop : .noLoop
      }
      let last = last ?? state.lastCall
      return state.connects(to: socket, from: peer, since: last) ? .notYet(last) : .noLoop
    }
  }

  /// The endpoint of a route. All its links have one.
  final class Origin: Sendable {
    fileprivate let route: String
    fileprivate let endpoint: EndpointURL
    fileprivate let connections: OwnConnections

    init(_ route: String, _ endpoint: EndpointURL, in connections: OwnConnections) {
      self.route = route
      self.endpoint = endpoint
      self.connections = connections
    }
  }

  /// A link's connection: of one opening, and of the stream that it opens. Its end is that of the last reference.
  final class Dial: DialObserver {
    private let origin: Origin
    /// Those to a port of this gateway.
    private let attempts = Mutex<[Connection]>([])

    init(from origin: Origin) { self.origin = origin }

    deinit {
      attempts.withLock { attempts in
        guard !attempts.isEmpty else { return }
        origin.connections.state.withLock { state in for one in attempts { state.remove(one) } }
      }
    }

    /// Whether it has connected to a port of this gateway.
    var comesBack: Bool { attempts.withLock { !$0.isEmpty } }

    /// Set if the connection has led back to its route.
    var loop: Loop? {
      attempts.withLock { attempts in
        for one in attempts { if let loop = one.arrivals.withLock({ $0.loop }) { return loop } }
        return nil
      }
    }

    func willConnect(to port: UInt16) -> UInt64 { origin.connections.state.withLock { $0.callBegins(to: port) } }

    func connects(_ number: UInt64, to port: UInt16, _ ends: () -> ConnectionEnds?) {
      let comesBack = origin.connections.state.withLock { state in
        if port == 0 || state.ports.contains(port) { return true }
        state.callEnds(number)
        return false
      }
      guard comesBack else { return }
      let attempt = ends().map { Connection(from: origin, $0) }
      if let attempt { attempts.withLock { $0.append(attempt) } }
      origin.connections.state.withLock { state in
        state.callEnds(number)
        if let attempt { state.connections[attempt.ends.source.key, default: []].append(attempt) }
      }
    }
  }

  /// Where a connection came back.
  struct Loop: Hashable, Sendable, CustomStringConvertible {
    let listener: String
    /// The routes in between.
    let others: [String]

    var description: String {
      let way = others.isEmpty ? "" : ", by way of " + others.map(Suggestion.quote).joined(separator: ", ")
      return "it leads back to this route\(way), at \(listener); name another endpoint"
    }
  }
}

extension OwnConnections.State {
  fileprivate mutating func callBegins(to port: UInt16) -> UInt64 {
    lastCall += 1
    connecting.append((lastCall, port))
    return lastCall
  }

  fileprivate mutating func callEnds(_ number: UInt64) {
    if let index = connecting.firstIndex(where: { $0.number == number }) { connecting.remove(at: index) }
  }

  /// Whether an accepted socket may be that of a call that had begun when `last` was the last one. Nearly always no link
  /// connects to a port of this gateway, and then the kernel need not be asked for the socket's own.
  fileprivate func connects(to socket: Int32, from peer: SocketAddress?, since last: UInt64) -> Bool {
    guard peer != nil else { return connecting.contains { $0.number <= last && $0.port == 0 } }
    let calls = connecting.filter { $0.number <= last && ports.contains($0.port) }
    guard !calls.isEmpty, let port = (try? SocketAddress.local(of: socket))?.port else { return false }
    return calls.contains { $0.port == port }
  }

  /// Returns whether that is a loop.
  fileprivate mutating func arrives(
    _ connection: OwnConnections.Connection, at route: String, _ listener: String
  ) -> Bool {
    if let others = between(route, and: connection.origin.route) {
      connection.arrivals.withLock { $0.loop = OwnConnections.Loop(listener: listener, others: others) }
      return true
    }
    let way = OwnConnections.Way(endpoint: connection.origin.endpoint, route: route)
    connection.arrivals.withLock { $0.ways.append(way) }
    ways[connection.origin.route, default: [:]][way, default: 0] += 1
    return false
  }

  /// The routes on the way from one route to another, the first included; nil if there is none.
  private func between(_ first: String, and last: String) -> [String]? {
    if first == last { return [] }
    var cameFrom: [String: String] = [first: ""]
    var next = [first]
    while let route = next.popLast() {
      for way in (ways[route] ?? [:]).keys where way.endpoint == endpoints[route] && cameFrom[way.route] == nil {
        cameFrom[way.route] = route
        next.append(way.route)
      }
    }
    guard var at = cameFrom[last] else { return nil }
    var others: [String] = []
    while !at.isEmpty {
      others.append(at)
      at = cameFrom[at] ?? ""
    }
    return others.reversed()
  }

  fileprivate mutating func remove(_ connection: OwnConnections.Connection) {
    let key = connection.ends.source.key
    let others = connections.removeValue(forKey: key)?.filter { $0 !== connection } ?? []
    if !others.isEmpty { connections[key] = others }
    for way in connection.arrivals.withLock({ $0.ways }) {
      let left = (ways[connection.origin.route]?[way] ?? 1) - 1
      ways[connection.origin.route]?[way] = left > 0 ? left : nil
      if ways[connection.origin.route]?.isEmpty == true { ways[connection.origin.route] = nil }
    }
  }
}
