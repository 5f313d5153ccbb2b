// The addresses of Bluetooth devices: six bytes, and which world they belong to.

public struct BluetoothAddress: Hashable, Sendable, CustomStringConvertible {
  /// Six, in the order they are written.
  let bytes: [UInt8]

  init(_ bytes: [UInt8]) {
    precondition(bytes.count == 6)
    self.bytes = bytes
  }

  /// "00:0A:3A:22:68:73", also with hyphens. Nil when it is none.
  init?(_ text: String) {
    let groups = text.split(omittingEmptySubsequences: false) { $0 == ":" || $0 == "-" }
    let bytes = groups.compactMap { group in
      group.utf8.count == 2 && group.allSatisfy(\.isHexDigit) ? UInt8(group, radix: 16) : nil
    }
    guard groups.count == 6, bytes.count == 6 else { return nil }
    self.bytes = bytes
  }

  /// All zeros or all ones: no device has it, though one may say so.
  var isNobodys: Bool { bytes.allSatisfy { $0 == 0 } || bytes.allSatisfy { $0 == 0xFF } }

  public var description: String {
    bytes.map { ($0 < 16 ? "0" : "") + String($0, radix: 16, uppercase: true) }.joined(separator: ":")
  }
}

/// Which of Bluetooth's worlds an address belongs to, as the kernel numbers them.
public enum AddressKind: UInt8, CaseIterable, Sendable {
  case classic = 0
  case lePublic = 1
  case leRandom = 2

  /// As the file of bonds says it.
  var word: String {
    switch self {
    case .classic: "classic"
    case .lePublic: "public"
    case .leRandom: "random"
    }
  }
}

/// Where an LE device is: public and random addresses are two worlds.
struct LEAddress: Hashable, Sendable, CustomStringConvertible {
  let address: BluetoothAddress
  let isRandom: Bool

  var description: String { "\(address)" }
}

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
