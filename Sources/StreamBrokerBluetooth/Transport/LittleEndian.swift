// Numbers in the byte order of ATT and the management channel: the last byte first.

enum LittleEndian {
  /// From the first two bytes, which must be there.
  static func word(_ bytes: ArraySlice<UInt8>) -> UInt16 {
    UInt16(bytes[bytes.startIndex]) | UInt16(bytes[bytes.startIndex + 1]) << 8
  }

  static func bytes(_ word: UInt16) -> [UInt8] {
    [UInt8(truncatingIfNeeded: word), UInt8(truncatingIfNeeded: word >> 8)]
  }
}
