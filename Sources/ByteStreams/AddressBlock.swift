// A block of IPv4 or IPv6 addresses, as in allow and deny lists: 10.0.0.0/8, fe80::/10, ::1. ValueKind refuses a text
// of the configuration that is none.

package struct AddressBlock: Hashable, Sendable {
  /// The address as it was written, with any bits after the prefix.
  package let address: SocketAddress
  /// How many leading bits are compared: 0 to 32, or 0 to 128.
  package let prefix: Int

  /// Parses "10.0.0.0/8", or a single address as a block of one. Nil for anything else.
  package init?(_ text: String) {
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
    // ::ffff:10.0.0.0/104 means IPv4 addresses, and clients from there are reported as IPv4.
    let isMapped = address.family == .ipv6 && address.unmapped.family == .ipv4 && prefix >= 96
    self.address = isMapped ? address.unmapped : address
    self.prefix = isMapped ? prefix - 96 : prefix
  }

  /// Whether the address has bits after the prefix, which are ignored: 10.0.0.1/8 is 10.0.0.0/8.
  package var hasHostBits: Bool { address.first(of: prefix) != address }

  /// The same block, written with its first address: 10.0.0.0/8.
  package var canonical: String { "\(address.first(of: prefix).host)/\(prefix)" }

  /// Whether `other` is in the block. An IPv4 address in the form of an IPv6 socket counts as IPv4.
  package func contains(_ other: SocketAddress) -> Bool { address.shares(prefix, with: other.unmapped) }
}

extension AddressBlock: CustomStringConvertible {
  package var description: String {
    let most = address.family == .ipv4 ? 32 : 128
    return prefix == most ? address.host : "\(address.host)/\(prefix)"
  }
}
