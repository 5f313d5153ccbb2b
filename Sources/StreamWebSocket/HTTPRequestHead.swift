// Parses the head of a request from bytes as they arrive. Hostile input is expected: everything is bounded, and nothing
// is guessed.

import ByteStreams

package struct HTTPRequestHead: Equatable, Sendable {
  package let method: String
  /// As it was sent.
  package let target: String
  /// The target's path, with its escapes decoded; begins with a slash.
  package let path: String
  /// The part after the question mark, as it was sent; nil without one.
  package let query: String?
  /// 0 or 1: the digit after "HTTP/1.".
  package let minorVersion: Int
  package let fields: HTTPFields

  package subscript(name: String) -> String? { fields[name] }
}

/// Parses one head. A value: give it all bytes in order until the head is complete.
package struct HTTPRequestParser: Sendable {
  package enum Progress: Equatable, Sendable {
    /// More bytes are needed.
    case incomplete
    /// The head, and how many of the bytes just given belong to it; the rest came after it.
    case complete(HTTPRequestHead, taken: Int)
  }

  /// Enough for browsers with their cookies. A head costs this much memory while it arrives.
  package static let usualLimit = 16 * 1024

  private var bytes: HTTPHeadBytes

  /// `limit`: the longest head, in bytes.
  package init(limit: Int = usualLimit) { bytes = HTTPHeadBytes(limit: limit) }

  /// Throws at the first byte that makes a head impossible. Do not call it again after that.
  package mutating func take(_ run: UnsafeRawBufferPointer) throws(HTTPFault) -> Progress {
    let (taken, isComplete) = try bytes.take(run)
    return isComplete ? .complete(try head(), taken: taken) : .incomplete
  }

  package mutating func take(_ run: [UInt8]) throws(HTTPFault) -> Progress {
    var answer: Result<Progress, HTTPFault> = .success(.incomplete)
    run.withUnsafeBytes { run in
      do throws(HTTPFault) { answer = .success(try take(run)) } catch { answer = .failure(error) }
    }
    return try answer.get()
  }

  private func head() throws(HTTPFault) -> HTTPRequestHead {
    let words = bytes.lines[0].split(separator: UInt8(ascii: " "), omittingEmptySubsequences: false)
    guard words.count == 3, !words[0].isEmpty, words[0].allSatisfy(isToken) else {
      throw .malformed("its first line is not a request")
    }
    let version = String(decoding: words[2], as: UTF8.self)
    guard version.hasPrefix("HTTP/") else { throw .malformed("its first line is not a request") }
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

  /// Path and query. A server must also accept the absolute form (RFC 9112 section 3.2.2).
  private func localPart(of target: [UInt8]) throws(HTTPFault) -> ArraySlice<UInt8> {
    if target.first == UInt8(ascii: "/") { return target[...] }
    let text = lowercased(String(decoding: target, as: UTF8.self))
    guard let scheme = ["http://", "https://", "ws://", "wss://"].first(where: text.hasPrefix) else {
      throw .malformed("its target is not a path")
    }
    let behind = target[scheme.utf8.count...]
    guard let end = behind.firstIndex(where: { $0 == UInt8(ascii: "/") || $0 == UInt8(ascii: "?") }) else {
      return [0x2F]
    }
    return behind[end] == UInt8(ascii: "/") ? behind[end...] : [0x2F] + behind[end...]
  }

  private func unescaped(_ path: ArraySlice<UInt8>) throws(HTTPFault) -> String {
    let bytes = try PercentEncoding.decode(path) { (_) throws(HTTPFault) in
      throw .malformed("its target has a broken escape")
    }
    // No route's name has these, and in a log they could mislead.
    guard !bytes.contains(where: { $0 < 0x20 || $0 == 0x7F }), let text = String(validating: bytes, as: UTF8.self)
    else {
      throw .malformed("its path is not text")
    }
    return text
  }
}
