// Parses Bluetooth addresses and UUIDs. Text only: no adapter, no socket.

package enum BluetoothNames {
  /// Reads six groups of two hexadecimal digits, separated by colons or hyphens. Returns capitals with colons:
  /// "00:0A:3A:22:68:73". Nil if it is not an address, or one that no device has.
  static func address(_ text: String) -> String? {
    let groups = text.split(omittingEmptySubsequences: false) { $0 == ":" || $0 == "-" }
    guard groups.count == 6, groups.allSatisfy({ isHex($0, count: 2) }) else { return nil }
    let address = groups.joined(separator: ":").uppercased()
    return ["00:00:00:00:00:00", "FF:FF:FF:FF:FF:FF"].contains(address) ? nil : address
  }

  package static let adapterExpected = "expected hci0, hci1, … or an adapter's address"

  /// Whether `text` is the kernel's name for an adapter, or an adapter's own address.
  package static func isAdapter(_ text: String) -> Bool {
    let number = text.dropFirst(3)
    let isName = text.hasPrefix("hci") && UInt16(number) != nil && number.allSatisfy(\.isWholeNumber)
    return isName || address(text) != nil
  }

  /// An assigned number of 16 or 32 bits, or a UUID of 128, in capitals: "FFF0". Nil if it is neither.
  static func uuid(_ text: String) -> String? {
    isHex(text[...], count: 4) || isHex(text[...], count: 8) || isDeviceUUID(text) ? text.uppercased() : nil
  }

  /// The 128-bit form, which Apple systems also invent for devices.
  static func isDeviceUUID(_ text: String) -> Bool {
    let groups = text.split(separator: "-", omittingEmptySubsequences: false)
    return groups.count == 5 && zip(groups, [8, 4, 4, 4, 12]).allSatisfy { isHex($0, count: $1) }
  }

  static func isHex(_ text: Substring, count: Int) -> Bool {
    text.utf8.count == count && text.allSatisfy { $0.isASCII && $0.isHexDigit }
  }
}
