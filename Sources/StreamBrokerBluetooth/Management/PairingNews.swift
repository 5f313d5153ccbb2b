// What the management channel tells of links and of pairing (BlueZ's doc/mgmt-api). Values only.

/// What an event tells.
enum PairingNews: Hashable, Sendable {
  /// `isToKeep`: both sides want it again next time. `lately`: the passing address of a device that has told its lasting one.
  case key(PairedAddress, BondKey, isToKeep: Bool, lately: PairedAddress? = nil)
  /// With the name, where the kernel has asked for it, as it does on a new link of Classic.
  case linked(PairedAddress, name: String? = nil)
  case unlinked(PairedAddress, byAuthentication: Bool)
  /// A number would have to be shown or typed in.
  case asksForNumber(PairedAddress)
  case asksForPIN(PairedAddress)
  case failed(PairedAddress)

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
      let told = rest.count >= 6 && Int(LittleEndian.word(rest[4...])) == rest.count - 6 ? rest[6...] : []
      self = .linked(device, name: Advertisement(told).name)
    // 4: the authentication failed.
    case 0x000C: self = .unlinked(device, byAuthentication: rest.first == 4)
    case 0x000E: self = .asksForPIN(device)
    case 0x0010: self = .asksForNumber(device)
    case 0x0011: self = .failed(device)
    default: return nil
    }
  }

  var device: PairedAddress {
    switch self {
    case .key(let device, _, _, _), .linked(let device, _), .unlinked(let device, _), .asksForNumber(let device),
      .asksForPIN(let device), .failed(let device):
      device
    }
  }
}
