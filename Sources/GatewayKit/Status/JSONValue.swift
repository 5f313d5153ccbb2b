// JSON (RFC 8259) as a value, written and read at the control socket. Foundation's would cost all of Foundation. The
// log writes its own lines and uses the quoting from here.

/// Objects keep the order of their keys. Whole numbers from 0 that have 64 bits are read as integers, however they are
/// written, every other number as a decimal.
enum JSONValue: Hashable, Sendable {
  case null
  case bool(Bool)
  case integer(UInt64)
  case decimal(Double)
  case text(String)
  case array([JSONValue])
  case object([Member])

  struct Member: Hashable, Sendable {
    let key: String
    let value: JSONValue
  }

  /// An object of the pairs whose value is not nil.
  static func object(_ pairs: KeyValuePairs<String, JSONValue?>) -> JSONValue {
    .object(pairs.compactMap { key, value in value.map { Member(key: key, value: $0) } })
  }

  static func integer(_ number: Int) -> JSONValue { .integer(UInt64(max(0, number))) }

  /// A whole number that may be negative; written without a fraction.
  static func signed(_ number: Int) -> JSONValue { number < 0 ? .decimal(Double(number)) : .integer(UInt64(number)) }

  /// Nanoseconds as seconds with three decimal places.
  static func seconds(_ nanoseconds: UInt64) -> JSONValue { .decimal(Double(nanoseconds / 1_000_000) / 1000) }

  // MARK: - Writing

  /// On one line.
  var description: String {
    var line = ""
    write(to: &line)
    return line
  }

  private func write(to line: inout String) {
    switch self {
    case .null: line += "null"
    case .bool(let value): line += value ? "true" : "false"
    case .integer(let number): line += String(number)
    case .decimal(let number) where number < 0 && number > -1e15 && number == number.rounded():
      line += String(Int64(number))
    case .decimal(let number): line += number.isFinite ? "\(number)" : "null"
    case .text(let text): line += JSONValue.quote(text)
    case .array(let values):
      line += "["
      for (index, value) in values.enumerated() {
        if index > 0 { line += "," }
        value.write(to: &line)
      }
      line += "]"
    case .object(let members):
      line += "{"
      for (index, member) in members.enumerated() {
        line += (index > 0 ? "," : "") + JSONValue.quote(member.key) + ":"
        member.value.write(to: &line)
      }
      line += "}"
    }
  }

  /// Section 7. Also escapes what ends a line or controls a terminal, since devices, clients and errors supply the
  /// text.
  static func quote(_ text: String) -> String {
    let isHarmless = text.utf8.allSatisfy {
      0x20...0x7E ~= $0 && $0 != UInt8(ascii: "\"") && $0 != UInt8(ascii: "\\")
    }
    if isHarmless { return "\"\(text)\"" }
    var quoted = "\""
    for scalar in text.unicodeScalars {
      switch scalar {
      case "\"": quoted += "\\\""
      case "\\": quoted += "\\\\"
      case "\n": quoted += "\\n"
      case "\r": quoted += "\\r"
      case "\t": quoted += "\\t"
      case _ where misleads(scalar):
        let digits = String(scalar.value, radix: 16)
        quoted += "\\u" + String(repeating: "0", count: 4 - digits.count) + digits
      default: quoted.unicodeScalars.append(scalar)
      }
    }
    return quoted + "\""
  }

  /// C0, DEL and C1; terminals obey C1 as well.
  static func isControl(_ scalar: Unicode.Scalar) -> Bool { scalar.value < 32 || 127...159 ~= scalar.value }

  /// Characters that must not get from a device to a screen: controls, line ends, and Unicode's bidirectional controls,
  /// which turn the direction of what follows.
  static func misleads(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.value {
    case 0x061C, 0x200E...0x200F, 0x2028...0x202E, 0x2066...0x2069: true
    default: isControl(scalar)
    }
  }

  // MARK: - Reading

  subscript(key: String) -> JSONValue? {
    guard case .object(let members) = self else { return nil }
    return members.first { $0.key == key }?.value
  }

  var text: String? { if case .text(let text) = self { text } else { nil } }
  var flag: Bool? { if case .bool(let flag) = self { flag } else { nil } }
  var integer: UInt64? { if case .integer(let number) = self { number } else { nil } }
  /// The inverse of `signed(_:)`.
  var signedInteger: Int? {
    switch self {
    case .integer(let number): Int(clamping: number)
    case .decimal(let number) where number == number.rounded() && abs(number) < 1e15: Int(number)
    default: nil
    }
  }
  var array: [JSONValue]? { if case .array(let values) = self { values } else { nil } }
  var members: [Member]? { if case .object(let members) = self { members } else { nil } }

  /// A number of seconds as nanoseconds.
  var nanoseconds: UInt64? {
    switch self {
    case .integer(let number) where number < 1_000_000_000: number * 1_000_000_000
    case .decimal(let number) where number >= 0 && number < 1e9: UInt64(number * 1e9)
    default: nil
    }
  }
}
