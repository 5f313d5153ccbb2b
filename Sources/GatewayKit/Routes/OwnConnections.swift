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
    let route: String
    let endpoint: EndpointURL
    let ends: ConnectionEnds
    let arrivals = Mutex(Arrivals())

    init(from route: String, to endpoint: EndpointURL, _ ends: ConnectionEnds) {
      self.route = route
      self.endpoint = endpoint
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
    var lastDial: UInt64 = 0
    /// By `ConnectionEnds.Source.key`. Nearly every client has none of them, and then the kernel need not be asked for its
    /// other end.
    var connections: [Int: [Connection]] = [:]
    /// The routes to which each route leads, and by how many connections.
    var ways: [String: [Way: Int]] = [:]
    /// The present endpoint of each route: clients stay where an earlier endpoint led, and no client follows them.
    var endpoints: [String: EndpointURL] = [:]
    /// The dials whose call of connect(2) is being made: at most one for each lane, and each takes some microseconds.
    /// Their connections may be accepted before their addresses are known.
    var connecting: [UInt64] = []
  }
  private let state = Mutex(State())

  /// The gateway's route `route` has this endpoint from now on.
  func route(_ route: String, leadsTo endpoint: EndpointURL) { state.withLock { $0.endpoints[route] = endpoint } }

  /// The route is over.
  func routeEnds(_ route: String) { state.withLock { $0.endpoints[route] = nil } }

  /// For one opening, and the stream that it opens.
  func dial(from route: String, to endpoint: EndpointURL) -> Dial {
    let number = state.withLock { state in
      state.lastDial += 1
      return state.lastDial
    }
    return Dial(number, from: route, to: endpoint, of: self)
  }

  enum Answer {
    /// It leads back to the route of the link that it comes from, which knows it now.
    case loop
    case noLoop
    /// Ask again, with this number: links connect at this moment.
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
      let last = last ?? state.lastDial
      return state.connecting.contains { $0 <= last } ? .notYet(last) : .noLoop
    }
  }

  /// A link's connection. Its end is that of the last reference.
  final class Dial: DialObserver {
    private let number: UInt64
    private let route: String
    private let endpoint: EndpointURL
    private let connections: OwnConnections
    private let attempts = Mutex<[Connection]>([])

    fileprivate init(
      _ number: UInt64, from route: String, to endpoint: EndpointURL, of connections: OwnConnections
    ) {
      self.number = number
      self.route = route
      self.endpoint = endpoint
      self.connections = connections
    }

    deinit {
      attempts.withLock { attempts in
        if !attempts.isEmpty { connections.state.withLock { state in for one in attempts { state.remove(one) } } }
      }
    }

    /// Set if the connection has led back to its route.
    var loop: Loop? {
      attempts.withLock { attempts in
        for one in attempts { if let loop = one.arrivals.withLock({ $0.loop }) { return loop } }
        return nil
      }
    }

    func willConnect() { connections.state.withLock { $0.connecting.append(number) } }

    func connects(_ ends: ConnectionEnds?) {
      let attempt = ends.map { Connection(from: route, to: endpoint, $0) }
      if let attempt { attempts.withLock { $0.append(attempt) } }
      connections.state.withLock { state in
        if let index = state.connecting.firstIndex(of: number) { state.connecting.remove(at: index) }
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
  /// Returns whether that is a loop.
  fileprivate mutating func arrives(
    _ connection: OwnConnections.Connection, at route: String, _ listener: String
  ) -> Bool {
    if let others = between(route, and: connection.route) {
      connection.arrivals.withLock { $0.loop = OwnConnections.Loop(listener: listener, others: others) }
      return true
    }
    let way = OwnConnections.Way(endpoint: connection.endpoint, route: route)
    connection.arrivals.withLock { $0.ways.append(way) }
    ways[connection.route, default: [:]][way, default: 0] += 1
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
      let left = (ways[connection.route]?[way] ?? 1) - 1
      ways[connection.route]?[way] = left > 0 ? left : nil
      if ways[connection.route]?.isEmpty == true { ways[connection.route] = nil }
    }
  }
}
