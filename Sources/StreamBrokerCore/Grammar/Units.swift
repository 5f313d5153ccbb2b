// Parses and prints durations (250ms, 30s, 5m, 1h) and sizes (64KiB, 10MB). No text makes them
// overflow. Used by ValueKind and by code that prints a setting.

package enum Units {
  private static let durations: [(unit: String, milliseconds: Int)] = [
    ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1),
  ]
  private static let sizes: [(unit: String, bytes: Int)] = [
    ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1000),
    ("KB", 1000), ("B", 1),
  ]

  package static var durationNames: [String] { durations.map(\.unit) }
  package static var sizeNames: [String] { sizes.map(\.unit) }

  /// "250ms" → 250 milliseconds, "1.75ms" → 1750 microseconds; "0" needs no unit. Nil if it is not a duration, has more
  /// than six decimal places, or is longer than 2^53 milliseconds.
  package static func duration(_ text: String) -> Duration? {
    guard let (number, rest) = split(text) else { return nil }
    if number == 0, rest.isEmpty { return .zero }
    let places = rest.hasPrefix(".") ? rest.dropFirst().prefix { $0.isASCII && $0.isNumber } : ""
    guard places.count <= mostPlaces, rest.hasPrefix(".") == !places.isEmpty else { return nil }
    let unit = rest.dropFirst(places.isEmpty ? 0 : 1 + places.count)
    guard let factor = durations.first(where: { $0.unit == unit })?.milliseconds else { return nil }
    let (product, overflow) = number.multipliedReportingOverflow(by: factor)
    if overflow || product > 1 << 53 { return nil }
    // In millionths of the unit, which are whole nanoseconds for each unit.
    let millionths = Int(places + String(repeating: "0", count: mostPlaces - places.count)) ?? 0
    return .milliseconds(product) + .nanoseconds(Int64(millionths * factor))
  }

  /// Decimal places of a duration.
  package static let mostPlaces = 6

  /// In the largest unit without a remainder: "90s", "5m", "0s"; with a fraction of a millisecond as "1.75ms".
  package static func text(_ duration: Duration) -> String {
    let (seconds, attoseconds) = duration.components
    let milliseconds = Int(seconds) * 1000 + Int(attoseconds / 1_000_000_000_000_000)
    let nanoseconds = Int(attoseconds / 1_000_000_000 % 1_000_000)
    if nanoseconds != 0 {
      let digits = String(nanoseconds)
      var places = String(repeating: "0", count: mostPlaces - digits.count) + digits
      while places.hasSuffix("0") { places.removeLast() }
      return "\(milliseconds).\(places)ms"
    }
    if milliseconds == 0 { return "0s" }
    let fit = durations.first { milliseconds % $0.milliseconds == 0 }
    return fit.map { "\(milliseconds / $0.milliseconds)\($0.unit)" } ?? "\(milliseconds)ms"
  }

  /// "64KiB" → 65536; a bare number is bytes. Nil if it is not a size or overflows.
  package static func size(_ text: String) -> Int? {
    guard let (number, unit) = split(text) else { return nil }
    guard let factor = unit.isEmpty ? 1 : sizes.first(where: { $0.unit == unit })?.bytes else { return nil }
    let (product, overflow) = number.multipliedReportingOverflow(by: factor)
    return overflow ? nil : product
  }

  /// In the largest unit without a remainder: "64KiB", "10MB", "0", "1500".
  package static func text(bytes: Int) -> String {
    let fit = sizes.first { bytes >= $0.bytes && bytes % $0.bytes == 0 && $0.bytes > 1 }
    return fit.map { "\(bytes / $0.bytes)\($0.unit)" } ?? "\(bytes)"
  }

  /// The same text with a valid unit, if a similar one was written: "64K" → "64KiB", "30sec" → "30s".
  static func repair(_ text: String, isDuration: Bool) -> String? {
    guard let (number, unit) = split(text.filter { $0 != " " }) else { return nil }
    let known =
      isDuration
      ? [
        "sec": "s", "secs": "s", "seconds": "s", "S": "s", "min": "m", "mins": "m", "minutes": "m", "hr": "h", "": "s",
      ]
      : [
        "k": "KiB", "K": "KiB", "kb": "kB", "Ki": "KiB", "kib": "KiB", "M": "MiB", "Mi": "MiB", "mb": "MB",
        "mib": "MiB", "G": "GiB", "Gi": "GiB", "gb": "GB", "gib": "GiB", "b": "B",
      ]
    return known[unit].map { "\(number)\($0)" }
  }

  private static func split(_ text: String) -> (Int, String)? {
    let digits = text.prefix { $0.isASCII && $0.isNumber }
    guard let number = Int(digits) else { return nil }
    return (number, String(text[digits.endIndex...]))
  }
}
