// sim://flood: sends an endless pattern as fast as it is read, and discards all input.

/// Lines of 64 bytes, numbered from the opening of the link, so that every position can be checked:
/// ```
/// 000000000000002a KLMNOPQRSTUVWXYZ[\]^_`abcdefghijklmnopqrstuvw\n
/// └ line number ─┘ └ 46 characters, one further in each line ──┘
/// ```
/// Each line has its number in sixteen hexadecimal digits, a space, printable characters from "!" to "~", and a line
/// feed. The characters begin one further in each line and start over after "~". A window of 127 bytes contains a whole
/// line, which gives the position.
package enum FloodPattern {
  package static let lineLength = 64

  /// The byte at a position of the stream.
  package static func byte(at position: UInt64) -> UInt8 {
    let line = position / 64
    let column = position % 64
    switch column {
    case 0..<16:
      let digit = UInt8(truncatingIfNeeded: (line >> (60 - 4 * column)) & 15)
      return digit < 10 ? 0x30 + digit : 0x57 + digit
    case 16: return 0x20
    case 63: return 0x0A
    default: return 0x21 + UInt8((line % 94 + column - 17) % 94)
    }
  }

  /// Fills `run` with the pattern from `position` on.
  package static func fill(_ run: UnsafeMutableRawBufferPointer, from position: UInt64) {
    for index in 0..<run.count { run[index] = byte(at: position &+ UInt64(index)) }
  }

  /// The position of `window` in the stream. Nil if it is too short, not of the pattern, or damaged anywhere.
  package static func position(of window: [UInt8]) -> UInt64? {
    guard let end = window.firstIndex(of: 0x0A), window.count >= end + 17 else { return nil }
    guard let line = UInt64(String(decoding: window[(end + 1)..<(end + 17)], as: UTF8.self), radix: 16) else {
      return nil
    }
    let (start, overflow) = line.multipliedReportingOverflow(by: 64)
    guard !overflow, start >= UInt64(end + 1) else { return nil }
    let position = start - UInt64(end + 1)
    for (index, found) in window.enumerated() where found != byte(at: position &+ UInt64(index)) { return nil }
    return position
  }
}

struct SimFlood: SimDevice {
  private var said: UInt64 = 0
  // The next line; making it once and copying is ten times as fast as computing each byte.
  private var line = [UInt8](repeating: 0, count: FloodPattern.lineLength)

  init() { makeLine() }

  var hasBytes: Bool { true }
  var hasSpace: Bool { true }

  mutating func give(_ run: UnsafeMutableRawBufferPointer) -> Int {
    var filled = 0
    while filled < run.count {
      let column = Int(said % 64)
      let count = min(FloodPattern.lineLength - column, run.count - filled)
      line.withUnsafeBytes { line in
        UnsafeMutableRawBufferPointer(rebasing: run[filled...])
          .copyMemory(from: UnsafeRawBufferPointer(rebasing: line[column..<(column + count)]))
      }
      filled += count
      said &+= UInt64(count)
      if said % 64 == 0 { makeLine() }
    }
    return filled
  }

  mutating func take(_ run: UnsafeRawBufferPointer) -> Int { run.count }

  private mutating func makeLine() {
    let start = said
    line.withUnsafeMutableBytes { FloodPattern.fill($0, from: start) }
  }
}
