// A block of IPv4 or IPv6 addresses, as allow and deny lists name them: 10.0.0.0/8, fe80::/10, ::1.

public struct Network: Hashable, Sendable {
  /// The first address, with the bits below the prefix as they were written.
  public let address: SocketAddress
  /// Leading bits that count: 0 to 32, or 0 to 128.
  public let prefix: Int

  /// Reads "10.0.0.0/8", or a lone address as a block of one. Nil when it is neither.
  public init?(_ text: String) {
    let parts = text.split(separator: "/", maxSplits: 1, omittingEmptySubsequences: false)
    guard !text.contains("%"), let address = SocketAddress(numeric: String(parts[0]), port: 0) else { return nil }
    let most = address.family == .ipv4 ? 32 : 128
    var prefix = most
    if parts.count == 2 {
      let digits = parts[1]
      guard !digits.isEmpty, digits.utf8.allSatisfy({ (0x30...0x39).contains($0) }),
        digits == "0" || digits.first != "0",
        let number = Int(digits), number <= most
      else { return nil }
      prefix = number
    }
    // ::ffff:10.0.0.0/104 are IPv4 addresses, and clients from there are told as such.
    let isMapped = address.family == .ipv6 && address.unmapped.family == .ipv4 && prefix >= 96
    self.address = isMapped ? address.unmapped : address
    self.prefix = isMapped ? prefix - 96 : prefix
  }

  /// Whether the address has bits behind the prefix, which count for nothing: 10.0.0.1/8 is 10.0.0.0/8.
  public var hasHostBits: Bool { address.first(of: prefix) != address }

  /// The same block by its first address: 10.0.0.0/8.
  public var canonical: String { "\(address.first(of: prefix).host)/\(prefix)" }

  /// Whether `other` lies in it. An IPv4 address in an IPv6 socket's form counts as IPv4.
  public func contains(_ other: SocketAddress) -> Bool { address.shares(prefix, with: other.unmapped) }
}

extension Network: CustomStringConvertible {
  public var description: String {
    let most = address.family == .ipv4 ? 32 : 128
    return prefix == most ? address.host : "\(address.host)/\(prefix)"
  }
}
