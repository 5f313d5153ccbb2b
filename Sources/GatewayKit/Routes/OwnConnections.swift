// Finds loops: connections of a route's link that arrive at a listener of this gateway and are on their way back to that
// route. `check` sees those that the configuration shows; a name may lead anywhere later. The links of a route connect
// from addresses of this machine, and a client with such an address is that link: so its route leads to the listener's.
// A client whose route already leads to that link's closes a circle. Any thread may use it; a gateway has one.

import ByteStreams
import StreamBroker
import StreamBrokerCore
import Synchronization

final class OwnConnections: Sendable {
  /// One connection, or the attempts at it, of a link.
  fileprivate struct Attempt {
    let route: String
    let endpoint: EndpointURL
    var ends: [ConnectionEnds] = []
    var ways: [Way] = []
    var loop: Loop?
  }

  fileprivate struct Way: Hashable {
    let endpoint: EndpointURL
    let route: String
  }

  fileprivate struct State {
    var lastNumber: UInt64 = 0
    var attempts: [UInt64: Attempt] = [:]
    var numbers: [ConnectionEnds: UInt64] = [:]
    /// The addresses that the TCP connections in `numbers` come from, and of how many each is. Nearly every client comes
    /// from none of them, and then the kernel need not be asked for the other end.
    var sources: [SocketAddress: Int] = [:]
    /// The routes to which each route leads, and by how many connections.
    var ways: [String: [Way: Int]] = [:]
    /// The present endpoint of each route: clients stay where an earlier endpoint led, and no client follows them.
    var endpoints: [String: EndpointURL] = [:]
    /// Calls of connect(2) that are being made: at most one for each lane, and each takes some microseconds. Their
    /// connections may be accepted before their addresses are known.
    var connecting: Set<UInt64> = []
  }
  private let state = Mutex(State())

  /// The gateway's route `route` has this endpoint from now on.
  func route(_ route: String, leadsTo endpoint: EndpointURL) { state.withLock { $0.endpoints[route] = endpoint } }

  /// The route is over.
  func routeEnds(_ route: String) { state.withLock { $0.endpoints[route] = nil } }

  /// For one opening, and the stream that it opens.
  func dial(from route: String, to endpoint: EndpointURL) -> Dial {
    let number = state.withLock { state in
      state.lastNumber += 1
      state.attempts[state.lastNumber] = Attempt(route: route, endpoint: endpoint)
      return state.lastNumber
    }
    return Dial(number, of: self)
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
      // A link that connects is there before its connection can be accepted.
      if state.attempts.isEmpty { return .noLoop }
      if peer.map({ state.sources[$0.unmapped] != nil }) ?? true,
        let ends = ConnectionEnds(accepted: socket, from: peer), let number = state.numbers[ends]
      {
        return state.arrives(number, at: route, listener) ? .loop : .noLoop
      }
      let last = last ?? state.lastNumber
      return state.connecting.contains { $0 <= last } ? .notYet(last) : .noLoop
    }
  }

  /// A link's connection. Its end is that of the last reference.
  final class Dial: DialObserver {
    private let number: UInt64
    private let connections: OwnConnections

    fileprivate init(_ number: UInt64, of connections: OwnConnections) {
      self.number = number
      self.connections = connections
    }

    deinit { connections.state.withLock { $0.forget(number) } }

    /// Set if the connection has led back to its route.
    var loop: Loop? { connections.state.withLock { $0.attempts[number]?.loop } }

    func willConnect() { connections.state.withLock { _ = $0.connecting.insert(number) } }
    func connects(_ ends: ConnectionEnds?) { connections.state.withLock { $0.connects(number, ends) } }
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
  fileprivate mutating func connects(_ number: UInt64, _ ends: ConnectionEnds?) {
    connecting.remove(number)
    guard let ends, attempts[number] != nil else { return }
    attempts[number]?.ends.append(ends)
    if numbers.updateValue(number, forKey: ends) == nil, let source = ends.source { sources[source, default: 0] += 1 }
  }

  /// Returns whether that is a loop.
  fileprivate mutating func arrives(_ number: UInt64, at route: String, _ listener: String) -> Bool {
    guard let attempt = attempts[number] else { return false }
    if let others = between(route, and: attempt.route) {
      attempts[number]?.loop = OwnConnections.Loop(listener: listener, others: others)
      return true
    }
    let way = OwnConnections.Way(endpoint: attempt.endpoint, route: route)
    attempts[number]?.ways.append(way)
    ways[attempt.route, default: [:]][way, default: 0] += 1
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

  fileprivate mutating func forget(_ number: UInt64) {
    connecting.remove(number)
    guard let attempt = attempts.removeValue(forKey: number) else { return }
    for ends in attempt.ends where numbers[ends] == number {
      numbers[ends] = nil
      guard let source = ends.source, let count = sources[source] else { continue }
      sources[source] = count > 1 ? count - 1 : nil
    }
    for way in attempt.ways {
      let left = (ways[attempt.route]?[way] ?? 1) - 1
      ways[attempt.route]?[way] = left > 0 ? left : nil
      if ways[attempt.route]?.isEmpty == true { ways[attempt.route] = nil }
    }
  }
}
