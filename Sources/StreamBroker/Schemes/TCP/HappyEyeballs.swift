// In which order and when the addresses of a host are tried (RFC 8305). A value: events in, steps out; no socket, no
// clock. TCPConnector acts on it.

import ByteStreams

/// Addresses of both families by turns, the next attempt 250 ms after the last one began, or at once when one failed; the
/// first to connect wins and the others are closed.
struct HappyEyeballs {
  /// RFC 8305 section 5: the recommended Connection Attempt Delay.
  static let attemptDelay = Duration.milliseconds(250)
  /// A name with more addresses than this is no server of ours; each may cost a descriptor. At most as many as `underWay` has bits.
  static let mostAddresses = 16

  enum Event: Equatable {
    case started
    /// The attempt on the address with this index came to nothing.
    case failed(Int)
    case connected(Int)
    /// `attemptDelay` has passed since it was asked for.
    case delayPassed
  }

  enum Step: Equatable {
    case attempt(Int)
    /// Say `delayPassed` after `attemptDelay`; an earlier one no longer counts.
    case waitDelay
    /// Close all attempts but this one and hand it over.
    case win(Int)
    /// None is left.
    case giveUp
  }

  let addresses: [SocketAddress]
  private var next = 0
  private var underWay: UInt16 = 0  // a bit for each address
  private var isOver = false

  /// `found` in the resolver's order of preference (RFC 6724).
  init(_ found: [SocketAddress]) { addresses = Self.interleaved(found) }

  mutating func handle(_ event: Event) -> [Step] {
    guard !isOver else { return [] }
    switch event {
    case .started: return attemptNext()
    case .delayPassed: return next < addresses.count ? attemptNext() : []
    case .failed(let index):
      underWay &= ~(1 << index)
      if next < addresses.count { return attemptNext() }
      guard underWay == 0 else { return [] }
      isOver = true
      return [.giveUp]
    case .connected(let index):
      isOver = true
      return [.win(index)]
    }
  }

  private mutating func attemptNext() -> [Step] {
    guard next < addresses.count else {
      isOver = true
      return [.giveUp]
    }
    underWay |= 1 << next
    defer { next += 1 }
    // The attempt last: it may be over at once, and what follows from that must find nothing still to be done.
    return next + 1 < addresses.count ? [.waitDelay, .attempt(next)] : [.attempt(next)]
  }

  /// The first address's family first, then the other, by turns; within a family the order stays. Doubles go, and those beyond
  /// `mostAddresses`.
  private static func interleaved(_ found: [SocketAddress]) -> [SocketAddress] {
    guard found.count > 1 else { return found }
    var seen: Set<SocketAddress> = []
    let unique = found.filter { seen.insert($0).inserted }
    let one = unique.filter { $0.family == unique[0].family }
    let other = unique.filter { $0.family != unique[0].family }
    var mixed: [SocketAddress] = []
    for index in 0..<max(one.count, other.count) {
      if index < one.count { mixed.append(one[index]) }
      if index < other.count { mixed.append(other[index]) }
    }
    return Array(mixed.prefix(mostAddresses))
  }
}
