// What both heads of HTTP/1.1 have in common: a first line and fields, read strictly and bounded (RFC 9112). Bodies are none of
// its business: an upgrade has none.

/// The fields of a head, in order, names in lower case.
public struct HTTPFields: Equatable, Sendable {
  public private(set) var all: [(name: String, value: String)] = []

  public init() {}

  /// The values of a field that may stand there once only; nil when it is not there.
  public subscript(name: String) -> String? { all.first { $0.name == name }?.value }

  public func count(of name: String) -> Int { all.reduce(0) { $0 + ($1.name == name ? 1 : 0) } }

  /// The elements of a comma-separated field (RFC 9110 section 5.6.1), of all its lines together; empty ones do not count.
  /// Commas in quoted strings separate nothing.
  public func list(_ name: String) -> [String] {
    var elements: [String] = []
    for field in all where field.name == name {
      var isQuoted = false
      var isEscaped = false
      var element: [UInt8] = []
      func finish() {
        let trimmed = trimmed(element[...])
        if !trimmed.isEmpty { elements.append(String(decoding: trimmed, as: UTF8.self)) }
        element = []
      }
      for byte in field.value.utf8 {
        if byte == UInt8(ascii: ",") && !isQuoted {
          finish()
          continue
        }
        element.append(byte)
        if isEscaped {
          isEscaped = false
        } else if isQuoted && byte == UInt8(ascii: "\\") {
          isEscaped = true
        } else if byte == UInt8(ascii: "\"") {
          isQuoted.toggle()
        }
      }
      finish()
    }
    return elements
  }

  /// Whether one of the field's elements is `token`, whatever its case.
  public func lists(_ token: String, in name: String) -> Bool {
    list(name).contains { lowercased($0) == token }
  }

  mutating func add(_ name: String, _ value: String) { all.append((name, value)) }

  public static func == (one: HTTPFields, other: HTTPFields) -> Bool {
    one.all.elementsEqual(other.all) { $0 == $1 }
  }
}

/// Why bytes are no head.
public enum HTTPFault: Error, Equatable, Sendable {
  /// The bytes are not HTTP/1.1; a few words say what is wrong.
  case malformed(String)
  /// It is longer than it may be, or has more fields.
  case tooLarge
  /// HTTP, but of a version that this is not.
  case version
}

/// Gathers a head from bytes as they come, in whatever pieces, until the empty line. Holds `limit` bytes at most, and looks at
/// each byte once: what can't become a head any more is refused with its first wrong byte where that can be told.
struct HTTPHeadBytes: Sendable {
  private(set) var lines: [[UInt8]] = []
  private var line: [UInt8] = []
  private var left: Int
  private var sawCarriageReturn = false
  // What it must begin with.
  private let beginning: [UInt8]
  /// Besides the first line. A browser sends some fifteen.
  static let mostFields = 100

  init(limit: Int, beginningWith beginning: String = "") {
    left = limit
    self.beginning = Array(beginning.utf8)
  }

  /// Bytes of `run` that belong to the head; `isComplete` when the empty line was among them.
  mutating func take(_ run: UnsafeRawBufferPointer) throws(HTTPFault) -> (taken: Int, isComplete: Bool) {
    for (place, byte) in run.enumerated() {
      guard left > 0 else { throw .tooLarge }
      left -= 1
      if sawCarriageReturn {
        guard byte == UInt8(ascii: "\n") else { throw .malformed("a carriage return stands alone") }
        sawCarriageReturn = false
        if line.isEmpty && !lines.isEmpty { return (place + 1, true) }
        // RFC 9112 section 2.2: empty lines before the first one are to be passed over.
        if line.isEmpty { continue }
        guard lines.count <= Self.mostFields else { throw .tooLarge }
        lines.append(line)
        line = []
      } else if byte == UInt8(ascii: "\r") {
        sawCarriageReturn = true
      } else {
        try check(byte)
        line.append(byte)
      }
    }
    return (run.count, false)
  }

  private func check(_ byte: UInt8) throws(HTTPFault) {
    if lines.isEmpty && line.isEmpty && !isToken(byte) {
      throw .malformed("it does not begin as a request of HTTP does")
    }
    if lines.isEmpty && line.count < beginning.count && byte != beginning[line.count] {
      throw .malformed("it does not begin as an answer of HTTP does")
    }
    guard byte >= 0x20 && byte != 0x7F || byte == UInt8(ascii: "\t") && !lines.isEmpty else {
      throw .malformed("a control character stands in it")
    }
  }

  /// The fields, from the lines after the first.
  func fields() throws(HTTPFault) -> HTTPFields {
    var fields = HTTPFields()
    for line in lines.dropFirst() {
      // A line that begins with a blank would continue the one before; RFC 9112 section 5.2 lets a server refuse that.
      guard let colon = line.firstIndex(of: UInt8(ascii: ":")), colon > 0, line[..<colon].allSatisfy(isToken) else {
        throw .malformed("a line is no field")
      }
      let name = String(decoding: line[..<colon].map(lowercased), as: UTF8.self)
      fields.add(name, String(decoding: trimmed(line[(colon + 1)...]), as: UTF8.self))
    }
    return fields
  }
}

/// tchar of RFC 9110 section 5.6.2.
func isToken(_ byte: UInt8) -> Bool {
  switch byte {
  case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
    UInt8(ascii: "0")...UInt8(ascii: "9"):
    true
  default: "!#$%&'*+-.^_`|~".utf8.contains(byte)
  }
}

func lowercased(_ byte: UInt8) -> UInt8 {
  byte >= UInt8(ascii: "A") && byte <= UInt8(ascii: "Z") ? byte | 0x20 : byte
}

/// ASCII letters only: others that Unicode takes for the same are not the same here.
func lowercased(_ text: String) -> String { String(decoding: text.utf8.map(lowercased), as: UTF8.self) }

/// What may stand in uri-host and port (RFC 3986 section 3.2.2).
func isHost(_ byte: UInt8) -> Bool { isToken(byte) ? !"#^`|".utf8.contains(byte) : ":[](),;=".utf8.contains(byte) }

/// Without the blanks at both ends.
func trimmed(_ bytes: ArraySlice<UInt8>) -> ArraySlice<UInt8> {
  let isBlank = { (byte: UInt8) in byte == UInt8(ascii: " ") || byte == UInt8(ascii: "\t") }
  var rest = bytes.drop(while: isBlank)
  while let last = rest.last, isBlank(last) { rest.removeLast() }
  return rest
}
