// The client's half of the upgrade (RFC 6455 section 4.1): the request, and the check of the response.

package struct WebSocketRequest: Sendable {
  /// Why the other side is not a WebSocket.
  package enum Fault: Error, Equatable, Sendable {
    /// It responded with another status; the phrase is its own.
    case refused(status: Int, phrase: String)
    /// Its response is not HTTP.
    case notHTTP(HTTPFault)
    /// It responded with 101, but the response is wrong.
    case wrong(String)
  }

  package let bytes: [UInt8]
  private let key: String
  private let subprotocol: String?
  private let deflate: DeflateSettings?

  /// `host`: as in a URL, with the port unless it is the scheme's default. `target`: path and query, escaped, beginning
  /// with a slash. `fields` are sent in addition; they must not contain line ends.
  package init(
    host: String, target: String, subprotocol: String? = nil, deflate: DeflateSettings? = nil,
    fields: [(name: String, value: String)] = []
  ) {
    var random = SystemRandomNumberGenerator()
    self.init(
      host: host, target: target, subprotocol: subprotocol, deflate: deflate, fields: fields,
      key: base64((0..<16).map { _ in UInt8.random(in: .min ... .max, using: &random) }))
  }

  init(
    host: String, target: String, subprotocol: String?, deflate: DeflateSettings?,
    fields: [(name: String, value: String)], key: String
  ) {
    self.key = key
    self.subprotocol = subprotocol
    self.deflate = deflate
    var head = "GET \(target) HTTP/1.1\r\nHost: \(host)\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    head += "Sec-WebSocket-Key: \(key)\r\nSec-WebSocket-Version: 13\r\n"
    if let subprotocol { head += "Sec-WebSocket-Protocol: \(subprotocol)\r\n" }
    if let deflate { head += "Sec-WebSocket-Extensions: \(deflate.offer)\r\n" }
    for field in fields { head += "\(field.name): \(field.value)\r\n" }
    bytes = Array((head + "\r\n").utf8)
  }

  /// The value of the Authorization field for a user with a password (RFC 7617). Do not log it.
  package static func basic(user: String, password: String) -> String {
    "Basic " + base64(Array("\(user):\(password)".utf8))
  }

  /// The terms that were agreed, from the head of the response.
  package func terms(of head: HTTPResponseHead) throws(Fault) -> WebSocketTerms {
    guard head.status == 101 else { throw .refused(status: head.status, phrase: printable(head.phrase)) }
    guard head.fields.lists("websocket", in: "upgrade"), head.fields.lists("upgrade", in: "connection") else {
      throw .wrong("it does not switch to WebSocket")
    }
    guard head.fields.count(of: "sec-websocket-accept") == 1,
      head["sec-websocket-accept"] == WebSocketUpgrade.accept(key)
    else { throw .wrong("its Sec-WebSocket-Accept belongs to another request") }
    var terms = WebSocketTerms(subprotocol: subprotocol.flatMap { WebSocketSubprotocol(rawValue: $0) })
    // The server must choose the requested sub-protocol or none. Without one it sends plain binary, which is all that
    // `binary` means.
    if let chosen = head["sec-websocket-protocol"] {
      guard chosen == subprotocol else { throw .wrong("it chose a sub-protocol that was not asked for") }
    } else if terms.subprotocol == .baudwayV1 {
      throw .wrong("it does not speak the sub-protocol baudway.v1")
    }
    let extensions = head.fields.list("sec-websocket-extensions")
    guard let answer = extensions.first else { return terms }
    guard extensions.count == 1, let agreed = deflate?.terms(of: answer) else {
      throw .wrong("it chose extensions that were not asked for")
    }
    terms.deflate = agreed
    return terms
  }
}

package struct HTTPResponseHead: Equatable, Sendable {
  package let status: Int
  package let phrase: String
  package let fields: HTTPFields

  package subscript(name: String) -> String? { fields[name] }
}

/// Parses the head of a response, as `HTTPRequestParser` does for a request.
package struct HTTPResponseParser: Sendable {
  package enum Progress: Equatable, Sendable {
    case incomplete
    /// The head, and how many of the bytes just given belong to it.
    case complete(HTTPResponseHead, taken: Int)
  }

  private var bytes: HTTPHeadBytes

  package init(limit: Int = HTTPRequestParser.usualLimit) {
    bytes = HTTPHeadBytes(limit: limit, beginningWith: "HTTP/")
  }

  package mutating func take(_ run: UnsafeRawBufferPointer) throws(HTTPFault) -> Progress {
    let (taken, isComplete) = try bytes.take(run)
    guard isComplete else { return .incomplete }
    let words = bytes.lines[0].split(separator: UInt8(ascii: " "), maxSplits: 2, omittingEmptySubsequences: false)
    let version = String(decoding: words[0], as: UTF8.self)
    guard version.hasPrefix("HTTP/"), words.count >= 2, words[1].count == 3,
      let status = Int(String(decoding: words[1], as: UTF8.self)), status >= 100
    else { throw .malformed("its first line is not a status line") }
    guard version == "HTTP/1.1" || version == "HTTP/1.0" else { throw .version }
    let phrase = words.count == 3 ? String(decoding: words[2], as: UTF8.self) : ""
    return .complete(HTTPResponseHead(status: status, phrase: phrase, fields: try bytes.fields()), taken: taken)
  }
}
