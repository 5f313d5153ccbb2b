// The management channel's events about links and pairing (BlueZ's doc/mgmt-api). Values only.

enum PairingEvent: Hashable, Sendable {
  /// `isToKeep`: both sides want to keep the bond. `temporaryAddress`: the temporary address of a device that has revealed its
  /// lasting one.
  case key(PairedAddress, BondKey, isToKeep: Bool, temporaryAddress: PairedAddress? = nil)
  /// With the name, if the kernel has asked the device for it. The kernel does so on a new Classic link.
  case linked(PairedAddress, name: String? = nil)
  case unlinked(PairedAddress, byAuthentication: Bool)
  /// A number has to be shown or typed in.
  case asksForNumber(PairedAddress)
  case asksForPIN(PairedAddress)
  case failed(PairedAddress)

  /// Nil if it is cut off, or of no use.
  init?(_ code: UInt16, _ bytes: ArraySlice<UInt8>) {
    // Before a key there is a byte: whether to keep it. Before an identity there is also the current address.
    let skipped = code == 0x0018 ? 7 : code <= 0x000A ? 1 : 0
    guard bytes.count >= skipped + 7, let device = PairedAddress(bytes.dropFirst(skipped)) else { return nil }
    let rest = Array(bytes.dropFirst(skipped + 7))
    switch code {
    case 0x0009, 0x000A, 0x0018:
      let kind: BondKey.Kind = code == 0x0009 ? .link : code == 0x000A ? .longTerm : .identity
      guard let key = BondKey(kind, rest), key.fits(device), let first = bytes.first else { return nil }
      let passing = PairedAddress(BluetoothAddress(bytes.dropFirst().prefix(6).reversed()), .leRandom)
      self = .key(device, key, isToKeep: first != 0, temporaryAddress: kind == .identity ? passing : nil)
    case 0x000B:
      // After flags and a length: the data of an inquiry response.
      let reported = rest.count >= 6 && Int(LittleEndian.word(rest[4...])) == rest.count - 6 ? rest[6...] : []
      self = .linked(device, name: Advertisement(reported).name)
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
