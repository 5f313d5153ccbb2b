// A key of a bond, as the management channel tells and takes it, and the file of bonds keeps it. A value.

/// A key that a pairing made. A secret: it has no text.
struct BondKey: Hashable, Sendable, CustomStringConvertible {
  /// The word of each is the file's.
  enum Kind: String, Sendable {
    /// LE's: kind, role, length, EDIV, Rand, value.
    case longTerm = "ltk"
    /// By which a device is known that changes its address.
    case identity = "irk"
    /// Classic's: kind, value, length of the PIN.
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
  /// As the management channel has them, behind the address.
  let bytes: [UInt8]

  /// Nil for what the kernel would not take back: one such key, and it takes none of the list.
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

  /// The same for what comes with its device: classic ones have link keys, LE ones the others, and a random address that stays is
  /// marked as such.
  func fits(_ device: PairedAddress) -> Bool {
    switch device.kind {
    case .classic: kind == .link
    case .lePublic: kind != .link
    case .leRandom: kind != .link && device.address.bytes[0] & 0xC0 == 0xC0
    }
  }

  /// Whether a newer key takes this one's place. LE Secure Connections has one key for both roles, older pairings one for each.
  func yields(to newer: BondKey) -> Bool {
    guard kind == newer.kind else { return false }
    guard kind == .longTerm else { return true }
    return bytes[0] >= 2 || newer.bytes[0] >= 2 || bytes[1] == newer.bytes[1]
  }

  var description: String { kind.rawValue }
}
