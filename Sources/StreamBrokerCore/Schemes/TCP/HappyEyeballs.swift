// Decides in which order and when the addresses of a host are tried (RFC 8305). A value: events in, steps out; no
// socket, no clock. TCPConnector carries out the steps.

import ByteStreams

/// Alternates between both address families. The next attempt starts 250 ms after the last one began, or at once when
/// one fails. The first to connect wins, and the others are closed.
struct HappyEyeballs {
  /// RFC 8305 section 5: the recommended Connection Attempt Delay.
  static let attemptDelay = Duration.milliseconds(250)
  /// A name with more addresses than this is no server of ours, and each address may cost a descriptor. At most the
  /// number of bits in `underWay`.
  static let mostAddresses = 16

  enum Event: Equatable {
    case started
    /// The attempt on the address with this index failed.
    case failed(Int)
    case connected(Int)
    /// `attemptDelay` has passed since `waitDelay`.
    case delayPassed
  }

  enum Step: Equatable {
    case attempt(Int)
    /// Send `delayPassed` after `attemptDelay`; an earlier delay no longer counts.
    case waitDelay
    /// Close all other attempts and use this one.
    case win(Int)
    /// No address is left.
    case giveUp
  }

  let addresses: [SocketAddress]
  private var next = 0
  private var underWay: UInt16 = 0  // a bit for each address
  private var isOver = false

  /// `found` is in the resolver's order of preference (RFC 6724).
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
    // The attempt comes last: it may finish at once, and then no older step may be left to do.
    return next + 1 < addresses.count ? [.waitDelay, .attempt(next)] : [.attempt(next)]
  }

  /// The family of the first address first, then by turns; within a family the order stays. Duplicates are dropped, and
  /// all addresses beyond `mostAddresses`.
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
