// What the management channel tells of links and of pairing (BlueZ's doc/mgmt-api). Values only.

/// A device as pairing knows it: one address may be three devices.
struct PairedAddress: Hashable, Sendable, CustomStringConvertible {
  let address: BluetoothAddress
  let kind: AddressKind

  init(_ address: BluetoothAddress, _ kind: AddressKind) {
    self.address = address
    self.kind = kind
  }

  init(_ device: LEAddress) { self.init(device.address, device.isRandom ? .leRandom : .lePublic) }

  /// From the seven bytes of an event: the address, its kind. Nil when it is cut off, or of no kind.
  init?(_ bytes: ArraySlice<UInt8>) {
    guard bytes.count >= 7, let kind = AddressKind(rawValue: bytes[bytes.startIndex + 6]) else { return nil }
    self.init(BluetoothAddress(bytes.prefix(6).reversed()), kind)
  }

  /// Public addresses are the same device over Classic and Low Energy, and a pairing over one may make keys for the other.
  var withoutTransport: PairedAddress { kind == .classic ? PairedAddress(address, .lePublic) : self }

  var encoded: [UInt8] { address.bytes.reversed() + [kind.rawValue] }
  var description: String { "\(address)" }
}

extension AddressKind {
  static let all = [AddressKind.classic, .lePublic, .leRandom]

  /// As the file of bonds says it.
  var word: String {
    switch self {
    case .classic: "classic"
    case .lePublic: "public"
    case .leRandom: "random"
    }
  }
}

/// A key that a pairing made. A secret: it has no text.
struct BondKey: Hashable, Sendable, CustomStringConvertible {
  /// The word of each is the file's.
  enum Kind: String, CaseIterable, Sendable {
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

/// What an event tells.
enum PairingNews: Hashable, Sendable {
  /// `isToKeep`: both sides want it again next time. `lately`: the passing address of a device that has told its lasting one.
  case key(PairedAddress, BondKey, isToKeep: Bool, lately: PairedAddress? = nil)
  /// With the name, where the kernel has asked for it, as it does on a new link of Classic.
  case linked(PairedAddress, name: String? = nil)
  case unlinked(PairedAddress, byAuthentication: Bool)
  case linkFailed(PairedAddress, status: UInt8)
  /// A number would have to be shown or typed in.
  case asksForNumber(PairedAddress)
  case asksForPIN(PairedAddress)
  case failed(PairedAddress, status: UInt8)

  /// Nil when it is cut off, or of no use.
  init?(_ code: UInt16, _ bytes: ArraySlice<UInt8>) {
    // Keys stand behind a byte that says whether they are to be kept, and identities behind the address of the moment, too.
    let skipped = code == 0x0018 ? 7 : code <= 0x000A ? 1 : 0
    guard bytes.count >= skipped + 7, let device = PairedAddress(bytes.dropFirst(skipped)) else { return nil }
    let rest = Array(bytes.dropFirst(skipped + 7))
    switch code {
    case 0x0009, 0x000A, 0x0018:
      let kind: BondKey.Kind = code == 0x0009 ? .link : code == 0x000A ? .longTerm : .identity
      guard let key = BondKey(kind, rest), key.fits(device), let first = bytes.first else { return nil }
      let passing = PairedAddress(BluetoothAddress(bytes.dropFirst().prefix(6).reversed()), .leRandom)
      self = .key(device, key, isToKeep: first != 0, lately: kind == .identity ? passing : nil)
    case 0x000B:
      // Behind flags and a length: what an inquiry would have told.
      let told = rest.count >= 6 && Int(ATTMessage.word(rest[4...])) == rest.count - 6 ? rest[6...] : []
      self = .linked(device, name: Advertisement(told).name)
    // 4: the authentication failed.
    case 0x000C: self = .unlinked(device, byAuthentication: rest.first == 4)
    case 0x000D: self = .linkFailed(device, status: rest.first ?? 0)
    case 0x000E: self = .asksForPIN(device)
    case 0x0010: self = .asksForNumber(device)
    case 0x0011: self = .failed(device, status: rest.first ?? 0)
    default: return nil
    }
  }

  var device: PairedAddress {
    switch self {
    case .key(let device, _, _, _), .linked(let device, _), .unlinked(let device, _), .linkFailed(let device, _),
      .asksForNumber(let device), .asksForPIN(let device), .failed(let device, _):
      device
    }
  }
}
