// Limits log lines about connections that are not served: for each address, and for all together.

import ByteStreams
import Logging

/// An address that exceeds its limit in one second gets no lines in the next, only its part of the summary. That lasts
/// until a second in which it stays within the limit. The same holds for all addresses together.
struct RefusalLimiter {
  /// Where a client connects from: an IPv4 address, an IPv6 network of 64 bits, a Bluetooth device, or a local user.
  enum Origin: Hashable {
    case address(SocketAddress), device(String), user(UInt32), unknown

    init(_ label: AcceptedConnection.Label) {
      self =
        label.address.map { .address($0.rateLimitKey) } ?? label.device.map { .device($0) }
        ?? label.process.map { .user($0.user) } ?? .unknown
    }

    var text: String? {
      switch self {
      case .address(let address): address.family == .ipv6 ? "\(address.host)/64" : address.host
      case .device(let device): device
      case .user(let user): "uid \(user)"
      case .unknown: nil
      }
    }
  }

  private struct Crowd {
    var lines = 0
    var isLimited = false
  }

  private var crowds: [Origin: Crowd] = [:]
  private var all = Crowd()
  private(set) var suppressed = SuppressedLines()
  /// The most addresses with a limit of their own. Further ones have only the limit of all together.
  private static let mostRemembered = 256

  mutating func admits(_ origin: Origin, _ word: String, _ level: Logger.Level, of route: String) -> Bool {
    // Lines beyond an address's limit do not use up the lines of others.
    let isOver = isOverItsOwn(origin) || isOverAll()
    if isOver { suppressed.note(word, level, of: route, origin) }
    return !isOver
  }

  private mutating func isOverItsOwn(_ origin: Origin) -> Bool {
    guard var crowd = crowds[origin] ?? (crowds.count < Self.mostRemembered ? Crowd() : nil) else { return false }
    crowd.lines += 1
    crowds[origin] = crowd
    return crowd.isLimited || crowd.lines > LogLimiter.mostOfOneAddress
  }

  private mutating func isOverAll() -> Bool {
    all.lines += 1
    return all.isLimited || all.lines > LogLimiter.mostRefusals
  }

  /// Whether the next second begins with a limit in force.
  var isLimiting: Bool { all.isLimited || !crowds.isEmpty }

  mutating func close() -> LogLine? {
    let line = suppressed.line("connections not served")
    suppressed = SuppressedLines()
    all = Crowd(isLimited: all.lines > LogLimiter.mostRefusals)
    crowds = crowds.compactMapValues { $0.lines > LogLimiter.mostOfOneAddress ? Crowd(isLimited: true) : nil }
    return line
  }

  /// For tests: how many addresses are remembered.
  var remembered: Int { crowds.count }
}
