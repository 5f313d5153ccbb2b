// Checks whether bytes that arrive in pieces are UTF-8, up to the first wrong one (RFC 3629 section 4).

struct UTF8Check: Equatable, Sendable {
  // Continuation bytes that are still to come, and the bounds of the next one.
  private var missing: UInt8 = 0
  private var least: UInt8 = 0x80
  private var most: UInt8 = 0xBF

  /// Whether no character is cut off.
  var isComplete: Bool { missing == 0 }

  /// Whether the bytes up to the end of `run` can be UTF-8.
  mutating func accepts(_ run: UnsafeRawBufferPointer) -> Bool {
    var position = 0
    while position < run.count {
      if missing == 0 {
        // ASCII, eight bytes at a time.
        while position &+ 8 <= run.count,
          run.loadUnaligned(fromByteOffset: position, as: UInt64.self) & 0x8080_8080_8080_8080 == 0
        {
          position &+= 8
        }
        guard position < run.count else { break }
      }
      guard accepts(run[position]) else { return false }
      position &+= 1
    }
    return true
  }

  private mutating func accepts(_ byte: UInt8) -> Bool {
    if missing > 0 {
      guard byte >= least, byte <= most else { return false }
      (least, most) = (0x80, 0xBF)
      missing -= 1
      return true
    }
    switch byte {
    case ..<0x80: return true
    case 0xC2...0xDF: missing = 1
    case 0xE0: (missing, least) = (2, 0xA0)  // less would be an overlong form
    case 0xED: (missing, most) = (2, 0x9F)  // surrogates
    case 0xE1...0xEF: missing = 2
    case 0xF0: (missing, least) = (3, 0x90)
    case 0xF1...0xF3: missing = 3
    case 0xF4: (missing, most) = (3, 0x8F)  // beyond U+10FFFF
    default: return false
    }
    return true
  }
}
