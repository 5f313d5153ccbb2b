// Whether bytes on a port that is no web server are a request of HTTP/1: decided by their first line (RFC 9112 section 3), as it comes in.
// Web pages can send such requests to any address; what stands behind the line, a page chooses freely.

public struct HTTPRequestLine {
  public enum Verdict: Equatable, Sendable {
    /// The line is not over yet.
    case undecided
    case isRequest
    case isNone
  }

  /// A line that is longer counts as a request.
  public static let longest = 16 * 1024

  private static let methods: [[UInt8]] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
  ].map { Array(($0 + " ").utf8) }
  private static let targets: [[UInt8]] = ["/", "*", "http"].map { Array($0.utf8) }

  // How far the line has been searched for its end.
  private var searched = 0

  public init() {}

  /// Whether a client whose first bytes these are may be about to send a request: they begin with a method, a space and a target.
  public static func mayBegin(with first: UnsafeRawBufferPointer) -> Bool {
    guard let method = methods.first(where: { first.starts(with: $0) }) else { return false }
    let target = first[method.count...]
    return targets.contains { target.starts(with: $0) }
  }

  /// About all bytes that have come so far. Each call looks at the new ones only.
  public mutating func judge(_ bytes: UnsafeRawBufferPointer) -> Verdict {
    let limit = min(bytes.count, Self.longest)
    // A carriage return alone ends the line as well: a console would act on it.
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
