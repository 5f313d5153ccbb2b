// The common part of request and response heads in HTTP/1.1: a first line and fields, parsed strictly and bounded (RFC
// 9112). Does not handle bodies: an upgrade has none.

/// The fields of a head, in order, names in lower case.
package struct HTTPFields: Equatable, Sendable {
  package private(set) var all: [(name: String, value: String)] = []

  package init() {}

  /// The value of a field that may occur only once; nil if it is absent.
  package subscript(name: String) -> String? { all.first { $0.name == name }?.value }

  package func count(of name: String) -> Int { all.reduce(0) { $0 + ($1.name == name ? 1 : 0) } }

  /// The elements of a comma-separated field (RFC 9110 section 5.6.1), from all its lines; empty ones are skipped.
  /// Commas in quoted strings do not separate.
  package func list(_ name: String) -> [String] {
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

  /// Whether one of the field's elements is `token`, ignoring case. `token` is in lower case.
  package func lists(_ token: String, in name: String) -> Bool {
    list(name).contains { lowercased($0) == token }
  }

  mutating func add(_ name: String, _ value: String) { all.append((name, value)) }

  package static func == (one: HTTPFields, other: HTTPFields) -> Bool {
    one.all.elementsEqual(other.all) { $0 == $1 }
  }
}

/// Why bytes are not a head.
package enum HTTPFault: Error, Equatable, Sendable {
  /// The bytes are not HTTP/1.1; the text names the fault.
  case malformed(String)
  /// The head is too long, or has too many fields.
  case tooLarge
  /// HTTP, but of an unsupported version.
  case version
}

/// Collects a head from bytes in any pieces, until the empty line. Holds at most `limit` bytes, and looks at each byte
/// once. Bytes that can't become a head are refused at the first wrong one, where that can be detected.
struct HTTPHeadBytes: Sendable {
  private(set) var lines: [[UInt8]] = []
  private var line: [UInt8] = []
  private var left: Int
  private var sawCarriageReturn = false
  // The required beginning.
  private let beginning: [UInt8]
  /// Without the first line. A browser sends about fifteen.
  static let mostFields = 100

  init(limit: Int, beginningWith beginning: String = "") {
    left = limit
    self.beginning = Array(beginning.utf8)
  }

  /// Returns how many bytes of `run` belong to the head. `isComplete`: the empty line was among them.
  mutating func take(_ run: UnsafeRawBufferPointer) throws(HTTPFault) -> (taken: Int, isComplete: Bool) {
    for (index, byte) in run.enumerated() {
      guard left > 0 else { throw .tooLarge }
      left -= 1
      if sawCarriageReturn {
        guard byte == UInt8(ascii: "\n") else { throw .malformed("a carriage return without a line feed") }
        sawCarriageReturn = false
        if line.isEmpty && !lines.isEmpty { return (index + 1, true) }
        // RFC 9112 section 2.2: ignore empty lines before the first line.
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
      throw .malformed("it does not begin like an HTTP request")
    }
    if lines.isEmpty && line.count < beginning.count && byte != beginning[line.count] {
      throw .malformed("it does not begin like an HTTP response")
    }
    guard byte >= 0x20 && byte != 0x7F || byte == UInt8(ascii: "\t") && !lines.isEmpty else {
      throw .malformed("it contains a control character")
    }
  }

  /// The fields, from the lines after the first.
  func fields() throws(HTTPFault) -> HTTPFields {
    var fields = HTTPFields()
    for line in lines.dropFirst() {
      // A line that begins with a space would continue the previous one; RFC 9112 section 5.2 lets a server refuse
      // that.
      guard let colon = line.firstIndex(of: UInt8(ascii: ":")), colon > 0, line[..<colon].allSatisfy(isToken) else {
        throw .malformed("a line is not a field")
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

/// ASCII letters only: other characters that Unicode treats as the same letter are different here.
func lowercased(_ text: String) -> String { String(decoding: text.utf8.map(lowercased), as: UTF8.self) }

/// Characters allowed in uri-host and port (RFC 3986 section 3.2.2).
func isHost(_ byte: UInt8) -> Bool { isToken(byte) ? !"#^`|".utf8.contains(byte) : ":[](),;=".utf8.contains(byte) }

/// Without the spaces and tabs at both ends.
func trimmed(_ bytes: ArraySlice<UInt8>) -> ArraySlice<UInt8> {
  let isBlank = { (byte: UInt8) in byte == UInt8(ascii: " ") || byte == UInt8(ascii: "\t") }
  var rest = bytes.drop(while: isBlank)
  while let last = rest.last, isBlank(last) { rest.removeLast() }
  return rest
}
