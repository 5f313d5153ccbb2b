// A key of a bond: the management channel reports and loads it, the bond file stores it. A value.

/// A key from a pairing. A secret: its description does not show it.
struct BondKey: Hashable, Sendable, CustomStringConvertible {
  /// The raw values are the words in the bond file.
  enum Kind: String, Sendable {
    /// Long-term key of LE: kind, role, length, EDIV, Rand, value.
    case longTerm = "ltk"
    /// Identity resolving key of LE: it identifies a device that changes its address.
    case identity = "irk"
    /// Link key of Classic: kind, value, length of the PIN.
    case link

    var size: Int {
      switch self {
      case .longTerm: 29
      case .identity: 16
      case .link: 18
      }
    }
  }
  let kind: Kind
  /// As on the management channel, after the address.
  let bytes: [UInt8]

  /// Nil for a key that the kernel would refuse: with one such key it refuses the whole list.
  init?(_ kind: Kind, _ bytes: [UInt8]) {
    guard bytes.count == kind.size else { return nil }
    switch kind {
    case .longTerm: guard bytes[0] <= 4, bytes[1] <= 1, (7...16).contains(bytes[2]) else { return nil }
    case .link: guard bytes[0] <= 8, bytes[17] <= 16 else { return nil }
    case .identity: break
    }
    self.kind = kind
    self.bytes = bytes
  }

  /// Whether the kernel accepts the key for this device. If not, it refuses the whole list. Classic devices have link
  /// keys, LE devices the other two kinds. A random address must be static: its two highest bits are set.
  func fits(_ device: PairedAddress) -> Bool {
    switch device.kind {
    case .classic: kind == .link
    case .lePublic: kind != .link
    case .leRandom: kind != .link && device.address.bytes[0] & 0xC0 == 0xC0
    }
  }

  /// Whether a newer key replaces this one. LE Secure Connections has one key for both roles, older pairings have one
  /// for each.
  func yields(to newer: BondKey) -> Bool {
    guard kind == newer.kind else { return false }
    guard kind == .longTerm else { return true }
    return bytes[0] >= 2 || newer.bytes[0] >= 2 || bytes[1] == newer.bytes[1]
  }

  var description: String { kind.rawValue }
}
