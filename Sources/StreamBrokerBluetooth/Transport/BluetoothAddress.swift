// The addresses of Bluetooth devices: six bytes, and the address space they belong to.

/// The address of a Bluetooth device: six bytes.
public struct BluetoothAddress: Hashable, Sendable, CustomStringConvertible {
  /// Six, in the order they are written.
  let bytes: [UInt8]

  init(_ bytes: [UInt8]) {
    precondition(bytes.count == 6)
    self.bytes = bytes
  }

  /// "00:0A:3A:22:68:73", also with hyphens. Nil if it is not an address.
  init?(_ text: String) {
    let groups = text.split(omittingEmptySubsequences: false) { $0 == ":" || $0 == "-" }
    let bytes = groups.compactMap { group in
      group.utf8.count == 2 && group.allSatisfy(\.isHexDigit) ? UInt8(group, radix: 16) : nil
    }
    guard groups.count == 6, bytes.count == 6 else { return nil }
    self.bytes = bytes
  }

  /// All zeros or all ones: no device has it, though one may claim it.
  var isReserved: Bool { bytes.allSatisfy { $0 == 0 } || bytes.allSatisfy { $0 == 0xFF } }

  public var description: String {
    bytes.map { ($0 < 16 ? "0" : "") + String($0, radix: 16, uppercase: true) }.joined(separator: ":")
  }
}

/// The address space, with the kernel's numbers.
public enum AddressKind: UInt8, CaseIterable, Sendable {
  /// A Bluetooth Classic device (BR/EDR).
  case classic = 0
  /// A Low Energy device with a registered address.
  case lePublic = 1
  /// A Low Energy device with a random address.
  case leRandom = 2

  /// The word in the bond file.
  var word: String {
    switch self {
    case .classic: "classic"
    case .lePublic: "public"
    case .leRandom: "random"
    }
  }
}

/// The address of an LE device: public and random addresses are separate spaces.
struct LEAddress: Hashable, Sendable, CustomStringConvertible {
  let address: BluetoothAddress
  let isRandom: Bool

  var description: String { "\(address)" }
}

/// A device as pairing identifies it: one address may be that of three devices.
struct PairedAddress: Hashable, Sendable, CustomStringConvertible {
  let address: BluetoothAddress
  let kind: AddressKind

  init(_ address: BluetoothAddress, _ kind: AddressKind) {
    self.address = address
    self.kind = kind
  }

  init(_ device: LEAddress) { self.init(device.address, device.isRandom ? .leRandom : .lePublic) }

  /// From the seven bytes of an event: the address, its kind. Nil if it is cut off, or of an unknown kind.
  init?(_ bytes: ArraySlice<UInt8>) {
    guard bytes.count >= 7, let kind = AddressKind(rawValue: bytes[bytes.startIndex + 6]) else { return nil }
    self.init(BluetoothAddress(bytes.prefix(6).reversed()), kind)
  }

  /// A public address is the same device over Classic and Low Energy, and pairing over one may make keys for the other.
  var withoutTransport: PairedAddress { kind == .classic ? PairedAddress(address, .lePublic) : self }

  var encoded: [UInt8] { address.bytes.reversed() + [kind.rawValue] }
  var description: String { "\(address)" }
}
