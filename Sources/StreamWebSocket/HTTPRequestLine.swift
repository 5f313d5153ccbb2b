// Decides whether bytes on a port that is not a web server are an HTTP/1 request. The first line decides, as it arrives
// (RFC 9112 section 3). Web pages can send such requests to any address, and choose freely what follows the line.

package struct HTTPRequestLine {
  package enum Verdict: Equatable, Sendable {
    /// The line is not complete yet.
    case undecided
    case isRequest
    case isNone
  }

  /// A longer line counts as a request.
  package static let longest = 16 * 1024

  private static let methods: [[UInt8]] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
  ].map { Array(($0 + " ").utf8) }
  private static let targets: [[UInt8]] = ["/", "*", "http"].map { Array($0.utf8) }

  // How far the line has been searched for its end.
  private var searched = 0

  package init() {}

  /// Whether a client may be about to send a request: its first bytes are a method, a space and a target.
  package static func mayBegin(with first: UnsafeRawBufferPointer) -> Bool {
    guard let method = methods.first(where: { first.starts(with: $0) }) else { return false }
    let target = first[method.count...]
    return targets.contains { target.starts(with: $0) }
  }

  /// Takes all bytes that have arrived so far. Each call looks only at the new ones.
  package mutating func judge(_ bytes: UnsafeRawBufferPointer) -> Verdict {
    let limit = min(bytes.count, Self.longest)
    // A carriage return alone also ends the line, because a console would act on it.
    while searched < limit {
      if bytes[searched] == UInt8(ascii: "\n") || bytes[searched] == UInt8(ascii: "\r") {
        return Self.endsInVersion(bytes[..<searched]) ? .isRequest : .isNone
      }
      searched += 1
    }
    return bytes.count > Self.longest ? .isRequest : .undecided
  }

  /// "HTTP/1.0", "HTTP/1.1".
  private static func endsInVersion(_ line: Slice<UnsafeRawBufferPointer>) -> Bool {
    guard let digit = line.last, (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(digit) else { return false }
    return line.dropLast().suffix(7).elementsEqual("HTTP/1.".utf8)
  }
}
