// JSON text → JSONValue, strictly by RFC 8259. The input may be hostile: depth is bounded, and no input can trap. The
// caller bounds the size.

struct JSONFault: Error, Hashable, Sendable {
  let message: String
  /// Bytes before the fault.
  let offset: Int
}

struct JSONReader {
  private let bytes: ArraySlice<UInt8>
  private var position: Int
  private var depth = 0
  /// Our own messages need 5.
  private static let deepest = 16

  /// The one value that `bytes` hold.
  static func read(_ bytes: some Sequence<UInt8>) throws(JSONFault) -> JSONValue {
    var reader = JSONReader(ArraySlice(bytes))
    let value = try reader.value()
    reader.skipBlanks()
    guard reader.next == nil else { throw reader.fault("unexpected text after the value") }
    return value
  }

  private init(_ bytes: ArraySlice<UInt8>) {
    self.bytes = bytes
    position = bytes.startIndex
  }

  private var next: UInt8? { position < bytes.endIndex ? bytes[position] : nil }

  private func fault(_ message: String) -> JSONFault {
    JSONFault(message: message, offset: position - bytes.startIndex)
  }

  private mutating func skipBlanks() {
    while let byte = next, byte == 0x20 || byte == 0x09 || byte == 0x0A || byte == 0x0D { position += 1 }
  }

  /// Passes `byte` if it comes next, after spaces. Returns whether it did.
  private mutating func pass(_ byte: Unicode.Scalar) -> Bool {
    skipBlanks()
    guard next == UInt8(ascii: byte) else { return false }
    position += 1
    return true
  }

  private mutating func value() throws(JSONFault) -> JSONValue {
    skipBlanks()
    guard let first = next else { throw fault("a value is missing") }
    switch first {
    case UInt8(ascii: "{"): return try nested { reader throws(JSONFault) in try reader.object() }
    case UInt8(ascii: "["): return try nested { reader throws(JSONFault) in try reader.array() }
    case UInt8(ascii: "\""): return .text(try string())
    case UInt8(ascii: "-"), UInt8(ascii: "0")...UInt8(ascii: "9"): return try number()
    default: return try word()
    }
  }

  private mutating func nested(
    _ body: (inout JSONReader) throws(JSONFault) -> JSONValue
  ) throws(JSONFault) -> JSONValue {
    guard depth < Self.deepest else { throw fault("nested too deeply") }
    depth += 1
    defer { depth -= 1 }
    return try body(&self)
  }

  private mutating func object() throws(JSONFault) -> JSONValue {
    var members: [JSONValue.Member] = []
    position += 1
    if pass("}") { return .object([]) }
    repeat {
      skipBlanks()
      guard next == UInt8(ascii: "\"") else { throw fault("a key is missing") }
      let key = try string()
      guard pass(":") else { throw fault("a colon is missing") }
      members.append(JSONValue.Member(key: key, value: try value()))
    } while pass(",")
    guard pass("}") else { throw fault("a brace is missing") }
    return .object(members)
  }

  private mutating func array() throws(JSONFault) -> JSONValue {
    var values: [JSONValue] = []
    position += 1
    if pass("]") { return .array([]) }
    repeat { values.append(try value()) } while pass(",")
    guard pass("]") else { throw fault("a bracket is missing") }
    return .array(values)
  }

  private mutating func word() throws(JSONFault) -> JSONValue {
    for (word, value) in [("true", JSONValue.bool(true)), ("false", .bool(false)), ("null", .null)]
    where bytes[position...].starts(with: word.utf8) {
      position += word.utf8.count
      return value
    }
    throw fault("not a value")
  }

  // MARK: - Numbers

  private mutating func number() throws(JSONFault) -> JSONValue {
    let start = position
    if next == UInt8(ascii: "-") { position += 1 }
    let whole = digits()
    guard whole > 0, whole == 1 || bytes[position - whole] != UInt8(ascii: "0") else {
      throw fault("malformed number")
    }
    if next == UInt8(ascii: ".") {
      position += 1
      guard digits() > 0 else { throw fault("malformed number") }
    }
    if next == UInt8(ascii: "e") || next == UInt8(ascii: "E") {
      position += 1
      if next == UInt8(ascii: "+") || next == UInt8(ascii: "-") { position += 1 }
      guard digits() > 0 else { throw fault("malformed number") }
    }
    let text = String(decoding: bytes[start..<position], as: UTF8.self)
    // Not by way of Double, which would round what has more than 53 bits.
    if let number = UInt64(text) { return .integer(number) }
    guard let number = Double(text), number.isFinite else { throw fault("the number is too large") }
    // To JSON Schema 17.0 and 1.7e1 are integers, and some programs write them so.
    return UInt64(exactly: number).map { .integer($0) } ?? .decimal(number)
  }

  private mutating func digits() -> Int {
    let start = position
    while let byte = next, byte >= 0x30 && byte <= 0x39 { position += 1 }
    return position - start
  }

  // MARK: - Strings

  private mutating func string() throws(JSONFault) -> String {
    position += 1
    var text = ""
    var run = position
    while let byte = next {
      switch byte {
      case UInt8(ascii: "\""):
        text += try plain(from: run)
        position += 1
        return text
      case UInt8(ascii: "\\"):
        text += try plain(from: run)
        position += 1
        text.unicodeScalars.append(try escape())
        run = position
      case 0..<0x20: throw fault("a control character in a string")
      default: position += 1
      }
    }
    throw fault("a string does not end")
  }

  private func plain(from start: Int) throws(JSONFault) -> String {
    guard let text = String(validating: bytes[start..<position], as: UTF8.self) else {
      throw fault("this is not UTF-8")
    }
    return text
  }

  private mutating func escape() throws(JSONFault) -> Unicode.Scalar {
    guard let letter = next else { throw fault("a string does not end") }
    position += 1
    switch letter {
    case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"): return Unicode.Scalar(letter)
    case UInt8(ascii: "b"): return "\u{8}"
    case UInt8(ascii: "f"): return "\u{c}"
    case UInt8(ascii: "n"): return "\n"
    case UInt8(ascii: "r"): return "\r"
    case UInt8(ascii: "t"): return "\t"
    case UInt8(ascii: "u"): return try unicode()
    default: throw fault("unknown escape")
    }
  }

  /// After `\u`: one unit, or two that are a pair of surrogates.
  private mutating func unicode() throws(JSONFault) -> Unicode.Scalar {
    let first = try unit()
    guard 0xD800...0xDBFF ~= first else {
      guard let scalar = Unicode.Scalar(first) else { throw fault("half a surrogate pair") }
      return scalar
    }
    guard bytes[position...].starts(with: "\\u".utf8) else { throw fault("half a surrogate pair") }
    position += 2
    let second = try unit()
    guard 0xDC00...0xDFFF ~= second, let scalar = Unicode.Scalar(0x10000 + (first - 0xD800) << 10 + (second - 0xDC00))
    else { throw fault("half a surrogate pair") }
    return scalar
  }

  private mutating func unit() throws(JSONFault) -> UInt32 {
    let digits = bytes[position...].prefix(4)
    guard digits.count == 4, digits.allSatisfy({ Unicode.Scalar($0).properties.isASCIIHexDigit }),
      let number = UInt32(String(decoding: digits, as: UTF8.self), radix: 16)
    else { throw fault("unknown escape") }
    position += 4
    return number
  }
}
