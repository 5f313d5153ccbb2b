// The head of a request, from bytes as they come. Hostile input is the rule here: everything is bounded and nothing is guessed.

public struct HTTPRequestHead: Equatable, Sendable {
  public let method: String
  /// As it was sent.
  public let target: String
  /// The target's path, its escapes resolved: begins with a slash.
  public let path: String
  /// What stands behind the question mark, as it was sent; nil without one.
  public let query: String?
  /// 0 or 1: the digit behind "HTTP/1.".
  public let minorVersion: Int
  public let fields: HTTPFields

  public subscript(name: String) -> String? { fields[name] }
}

/// Reads one head. A value: give it all bytes in order until it has made a head of them.
public struct HTTPRequestParser: Sendable {
  public enum Progress: Equatable, Sendable {
    /// More is needed.
    case incomplete
    /// The head, and how many of the bytes just given belong to it; the others came after it.
    case complete(HTTPRequestHead, taken: Int)
  }

  /// Enough for browsers with their cookies; what it costs while it comes in.
  public static let usualLimit = 16 * 1024

  private var bytes: HTTPHeadBytes

  /// `limit`: the longest head, in bytes.
  public init(limit: Int = usualLimit) { bytes = HTTPHeadBytes(limit: limit) }

  /// Throws at the first byte that makes a head impossible. Not to be called again afterwards.
  public mutating func take(_ run: UnsafeRawBufferPointer) throws(HTTPFault) -> Progress {
    let (taken, isComplete) = try bytes.take(run)
    return isComplete ? .complete(try head(), taken: taken) : .incomplete
  }

  public mutating func take(_ run: [UInt8]) throws(HTTPFault) -> Progress {
    var answer: Result<Progress, HTTPFault> = .success(.incomplete)
    run.withUnsafeBytes { run in
      do throws(HTTPFault) { answer = .success(try take(run)) } catch { answer = .failure(error) }
    }
    return try answer.get()
  }

  private func head() throws(HTTPFault) -> HTTPRequestHead {
    let words = bytes.lines[0].split(separator: UInt8(ascii: " "), omittingEmptySubsequences: false)
    guard words.count == 3, !words[0].isEmpty, words[0].allSatisfy(isToken) else {
      throw .malformed("its first line is no request")
    }
    let version = String(decoding: words[2], as: UTF8.self)
    guard version.hasPrefix("HTTP/") else { throw .malformed("its first line is no request") }
    guard version == "HTTP/1.1" || version == "HTTP/1.0" else { throw .version }
    let target = Array(words[1])
    guard target.allSatisfy({ $0 > 0x20 && $0 < 0x7F && $0 != UInt8(ascii: "#") }) else {
      throw .malformed("its target has characters that must be escaped")
    }
    let fields = try bytes.fields()
    guard fields.count(of: "host") <= 1 else { throw .malformed("it names two hosts") }
    let local = try localPart(of: target)
    let mark = local.firstIndex(of: UInt8(ascii: "?")) ?? local.endIndex
    return HTTPRequestHead(
      method: String(decoding: words[0], as: UTF8.self), target: String(decoding: target, as: UTF8.self),
      path: try unescaped(local[..<mark]),
      query: mark == local.endIndex ? nil : String(decoding: local[(mark + 1)...], as: UTF8.self),
      minorVersion: version.utf8.last == UInt8(ascii: "1") ? 1 : 0, fields: fields)
  }

  /// Path and query. A server must take the absolute form as well (RFC 9112 section 3.2.2).
  private func localPart(of target: [UInt8]) throws(HTTPFault) -> ArraySlice<UInt8> {
    if target.first == UInt8(ascii: "/") { return target[...] }
    let text = lowercased(String(decoding: target, as: UTF8.self))
    guard let scheme = ["http://", "https://", "ws://", "wss://"].first(where: text.hasPrefix) else {
      throw .malformed("its target is no path")
    }
    let behind = target[scheme.utf8.count...]
    guard let end = behind.firstIndex(where: { $0 == UInt8(ascii: "/") || $0 == UInt8(ascii: "?") }) else {
      return [0x2F]
    }
    return behind[end] == UInt8(ascii: "/") ? behind[end...] : [0x2F] + behind[end...]
  }

  private func unescaped(_ path: ArraySlice<UInt8>) throws(HTTPFault) -> String {
    var bytes: [UInt8] = []
    var rest = path
    while let byte = rest.popFirst() {
      guard byte == UInt8(ascii: "%") else {
        bytes.append(byte)
        continue
      }
      guard let high = rest.popFirst().flatMap(hexValue), let low = rest.popFirst().flatMap(hexValue) else {
        throw .malformed("an escape of its target is broken")
      }
      bytes.append(high << 4 | low)
    }
    // No name of a route has them, and in a log they would be a trick.
    guard !bytes.contains(where: { $0 < 0x20 || $0 == 0x7F }), let text = String(validating: bytes, as: UTF8.self)
    else {
      throw .malformed("its path is no text")
    }
    return text
  }
}

func hexValue(_ digit: UInt8) -> UInt8? {
  switch digit {
  case UInt8(ascii: "0")...UInt8(ascii: "9"): digit - UInt8(ascii: "0")
  case UInt8(ascii: "a")...UInt8(ascii: "f"): digit - UInt8(ascii: "a") + 10
  case UInt8(ascii: "A")...UInt8(ascii: "F"): digit - UInt8(ascii: "A") + 10
  default: nil
  }
}
