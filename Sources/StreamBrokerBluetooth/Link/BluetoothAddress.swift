// The address of a Bluetooth device.

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

  public var description: String {
    bytes.map { ($0 < 16 ? "0" : "") + String($0, radix: 16, uppercase: true) }.joined(separator: ":")
  }
}
