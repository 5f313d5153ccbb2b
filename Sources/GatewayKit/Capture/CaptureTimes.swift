// Times of a recording as text, in UTC: in lines with the offset, in names of files without colons.

import Glibc

struct CaptureTimes {
  /// The second of the last text, and its text up to there.
  private var second: UInt64?
  private var text: [UInt8] = []

  /// "2026-11-27T21:10:03.123456+00:00"; nanoseconds since 1970.
  mutating func add(_ time: UInt64, to output: inout [UInt8]) {
    let second = time / 1_000_000_000
    if self.second != second {
      let parts = Self.parts(second)
      text = Array("\(Self.date(parts, "-"))T\(Self.clock(parts, ":")).".utf8)
      self.second = second
    }
    output.append(contentsOf: text)
    output.append(contentsOf: Self.digits(Int(time / 1000 % 1_000_000), 6).utf8)
    output.append(contentsOf: "+00:00".utf8)
  }

  /// "20261127T211003Z"
  static func compact(_ time: UInt64) -> String {
    let parts = parts(time / 1_000_000_000)
    return "\(date(parts, ""))T\(clock(parts, ""))Z"
  }

  /// Whether the text has the form of `compact`.
  static func isCompact(_ text: Substring) -> Bool {
    let shape = "00000000T000000Z"
    return text.utf8.count == shape.utf8.count
      && zip(text.utf8, shape.utf8).allSatisfy { byte, model in
        model == UInt8(ascii: "0") ? (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(byte) : byte == model
      }
  }

  private static func parts(_ second: UInt64) -> tm {
    var seconds = time_t(second)
    var parts = tm()
    gmtime_r(&seconds, &parts)
    return parts
  }

  private static func date(_ parts: tm, _ mark: String) -> String {
    "\(digits(Int(parts.tm_year) + 1900, 4))\(mark)\(digits(Int(parts.tm_mon) + 1, 2))\(mark)\(digits(Int(parts.tm_mday), 2))"
  }

  private static func clock(_ parts: tm, _ mark: String) -> String {
    "\(digits(Int(parts.tm_hour), 2))\(mark)\(digits(Int(parts.tm_min), 2))\(mark)\(digits(Int(parts.tm_sec), 2))"
  }

  private static func digits(_ number: Int, _ width: Int) -> String {
    let text = String(number)
    return String(repeating: "0", count: max(0, width - text.count)) + text
  }
}
