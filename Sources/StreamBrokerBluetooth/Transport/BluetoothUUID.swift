// The UUID of a Bluetooth service. One of 16 or 32 bits is short for one of 128 (Bluetooth Core, SDP, section 2.5.1).

/// The UUID of a Bluetooth service or characteristic. One of 16 or 32 bits is short for one of 128.
public struct BluetoothUUID: Hashable, Sendable, CustomStringConvertible {
  /// Sixteen, in the order they are written.
  let bytes: [UInt8]

  private static let base: [UInt8] = [0, 0, 0x10, 0, 0x80, 0, 0, 0x80, 0x5F, 0x9B, 0x34, 0xFB]

  init(_ number: UInt32) {
    bytes = (0..<4).map { UInt8(truncatingIfNeeded: number >> UInt32(24 - 8 * $0)) } + Self.base
  }

  private init(whole bytes: [UInt8]) { self.bytes = bytes }

  /// From 2, 4 or 16 bytes; nil from any other count.
  init?(_ bytes: some Collection<UInt8>) {
    switch bytes.count {
    case 2, 4: self.init(bytes.reduce(0) { $0 << 8 | UInt32($1) } as UInt32)
    case 16: self = BluetoothUUID(whole: Array(bytes))
    default: return nil
    }
  }

  /// "1101", "00001101" or the long form, as in URLs. Nil if it is not a UUID.
  public init?(_ text: String) {
    let digits = text.filter { $0 != "-" }
    guard digits.utf8.count.isMultiple(of: 2), digits.allSatisfy(\.isHexDigit) else { return nil }
    var bytes: [UInt8] = []
    var rest = digits[...]
    while let byte = UInt8(rest.prefix(2), radix: 16) {
      bytes.append(byte)
      rest = rest.dropFirst(2)
    }
    self.init(bytes)
  }

  /// The shortest form: not every device knows that a long form may mean the same.
  var shortest: ArraySlice<UInt8> {
    guard bytes[4...].elementsEqual(Self.base) else { return bytes[...] }
    return bytes[0] == 0 && bytes[1] == 0 ? bytes[2..<4] : bytes[..<4]
  }

  public var description: String {
    let digits = shortest.map { ($0 < 16 ? "0" : "") + String($0, radix: 16, uppercase: true) }
    guard digits.count == 16 else { return digits.joined() }
    return [0..<4, 4..<6, 6..<8, 8..<10, 10..<16].map { digits[$0].joined() }.joined(separator: "-")
  }
}
