// Tickets: a client that has logged in gets one by an ordinary request, and a script of its browser shows it when it
// opens a WebSocket, because it can't send an Authorization header there. So neither a password nor a lasting token is
// in a place where proxies may log it. Bounded: a ticket is for one connection to one route, and soon expires.

import ByteStreams

struct Tickets {
  /// How long a ticket can be used.
  static let lifetime = Duration.seconds(10)
  /// Beyond that, the oldest is dropped.
  static let most = 1000
  private static let prefix = "ticket."

  private struct Ticket {
    let name: String
    let route: String
    let identity: Identity
    let end: UInt64
  }
  /// In the order in which they expire.
  private var tickets: [Ticket] = []

  var count: Int { tickets.count }

  /// A name that can't be guessed.
  static func newName() -> String {
    var random = SystemRandomNumberGenerator()
    return (0..<4).map { _ in
      let digits = String(random.next() as UInt64, radix: 16)
      return String(repeating: "0", count: 16 - digits.count) + digits
    }.joined()
  }

  /// The ticket's name in the sub-protocol `ticket.NAME`; nil for any other sub-protocol.
  static func name(in subprotocol: String) -> String? {
    subprotocol.hasPrefix(prefix) ? String(subprotocol.dropFirst(prefix.count)) : nil
  }

  mutating func add(_ name: String, for route: String, _ identity: Identity, at now: UInt64) {
    removeExpired(at: now)
    if tickets.count == Self.most { tickets.removeFirst() }
    tickets.append(Ticket(name: name, route: route, identity: identity, end: now + Self.lifetime.nanoseconds))
  }

  /// The client that has got the ticket; nil if it is unknown, expired, used, for another route, or for another
  /// certificate than the connection's. It is used up now.
  mutating func redeem(
    _ name: String, for route: String, showing certificate: ClientCertificate? = nil, at now: UInt64
  ) -> Identity? {
    removeExpired(at: now)
    guard let index = tickets.firstIndex(where: { SteadyTime.isSame(name, $0.name) }) else { return nil }
    let ticket = tickets.remove(at: index)
    // A terminal ends when the certificate of its own connection expires or is revoked.
    if case .certificate(let proof) = ticket.identity.proof, proof != certificate { return nil }
    return ticket.route == route ? ticket.identity : nil
  }

  private mutating func removeExpired(at now: UInt64) { tickets.removeAll { $0.end <= now } }
}
