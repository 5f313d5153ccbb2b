// What a device broadcasts about itself: an LE advertisement or an extended inquiry response, which have one format
// (Bluetooth Core, Supplement, Part A). Any device in range can send anything here, so it is read with bounds.

struct Advertisement: Hashable, Sendable {
  /// The complete name, or its beginning. May contain anything.
  private(set) var name: String?
  private(set) var isNameComplete = false
  private(set) var services: Set<BluetoothUUID> = []
  /// Class of device, for BR/EDR, where the kernel adds it (Assigned Numbers, section 2.8).
  private(set) var deviceClass: UInt32?

  /// Reads entries of a length and a kind each. Stops at one that is cut off or has length 0 (section 1).
  init(_ bytes: ArraySlice<UInt8>) {
    var rest = bytes
    while let length = rest.popFirst(), length > 0, rest.count >= Int(length), let kind = rest.first {
      take(kind, rest.dropFirst().prefix(Int(length) - 1))
      rest = rest.dropFirst(Int(length))
    }
  }

  // Assigned numbers: lists of UUIDs of 2, 4 and 16 bytes, names, and the class of device.
  private mutating func take(_ kind: UInt8, _ content: ArraySlice<UInt8>) {
    switch kind {
    case 0x02, 0x03: services.formUnion(Self.uuids(content, of: 2))
    case 0x04, 0x05: services.formUnion(Self.uuids(content, of: 4))
    case 0x06, 0x07: services.formUnion(Self.uuids(content, of: 16))
    case 0x08 where !isNameComplete: name = Self.text(content) ?? name
    case 0x09:
      guard let text = Self.text(content) else { return }
      (name, isNameComplete) = (text, true)
    case 0x0D where content.count == 3:
      deviceClass = content.reversed().reduce(0) { $0 << 8 | UInt32($1) }
    default: break
    }
  }

  /// Many devices fill their name up with zeros. Nil for an empty one.
  private static func text(_ content: ArraySlice<UInt8>) -> String? {
    let content = content.prefix { $0 != 0 }
    return content.isEmpty ? nil : String(decoding: content, as: UTF8.self)
  }

  private static func uuids(_ content: ArraySlice<UInt8>, of size: Int) -> [BluetoothUUID] {
    stride(from: content.startIndex, through: content.endIndex - size, by: size).compactMap {
      BluetoothUUID(reversed: content[$0..<$0 + size])
    }
  }
}

/// A device that a scan found.
struct FoundDevice: Hashable, Sendable {
  let address: BluetoothAddress
  let kind: AddressKind
  /// dBm; 127 if unknown.
  let strength: Int8
  /// The kernel waits for a reply whether the device's name is known; if not, it asks the device.
  let wantsNameConfirmed: Bool
  let advertisement: Advertisement

  var name: String? { advertisement.name }
  var services: Set<BluetoothUUID> { advertisement.services }
  /// For a device of Low Energy.
  var device: LEAddress { LEAddress(address: address, isRandom: kind == .leRandom) }

  /// From the event: address, its kind, RSSI, flags, then the advertisement. Nil if it is malformed, or for an address
  /// that no device can have.
  init?(_ bytes: ArraySlice<UInt8>) {
    let bytes = Array(bytes)
    guard bytes.count >= 14, Int(LittleEndian.word(bytes[12...])) == bytes.count - 14,
      let kind = AddressKind(rawValue: bytes[6])
    else { return nil }
    address = BluetoothAddress(bytes[..<6].reversed())
    guard !address.isReserved else { return nil }
    self.kind = kind
    strength = Int8(bitPattern: bytes[7])
    wantsNameConfirmed = bytes[8] & 1 != 0
    advertisement = Advertisement(bytes[14...])
  }
}

/// What to scan for: one bit for each kind of address (mgmt's address types).
struct DiscoveryKinds: OptionSet, Hashable, Sendable {
  let rawValue: UInt8

  static let classic = DiscoveryKinds(rawValue: 1)
  static let lowEnergy = DiscoveryKinds(rawValue: 6)
}
