// A client's first bytes on a route that refuses HTTP: they are held until it is clear whether they are a request, for
// up to a second. Judges all bytes read so far again each time, in the simplest way.

/// The first bytes of a client that speaks HTTP, or nearly: with its connection, and in the steps that follow. Each
/// slot has its own.
struct HTTPOpening {
  let atOnce: [UInt8]
  let later: [UInt8]

  private init(_ atOnce: String, _ later: String) {
    (self.atOnce, self.later) = (Array(atOnce.utf8), Array(later.utf8))
  }

  static func of(slot: Int) -> HTTPOpening { all[slot % all.count] }

  private static let all = [
    HTTPOpening("GET /", " HTTP/1.1\r\n"),
    HTTPOpening("GET / HTTP/1.1\r\n", "x: y\r\n\r\n"),
    HTTPOpening("HEAD http", "://a/ HTTP/1.0\r"),  // longer than the smallest ring
    HTTPOpening("POST * HTTP/", "2.0\nGET / HTTP/1.1\n"),  // HTTP/2.0, so not a request line
    HTTPOpening("PUT /a HTTP/1.1", "\n"),
    HTTPOpening("GET", " / HTTP/1.1\r\n"),  // too little to be held
    HTTPOpening("TRACE /\r", "\nPUT / HTTP/1.1\r\n"),  // not a request line, and later bytes are not judged
    // A line that becomes too long to be held.
    HTTPOpening("DELETE /" + String(repeating: "x", count: 16_360), "yyyyyyyyyyyyyyyyyyyy HTTP/1.1\r\n"),
  ]
}

struct ScreenModel {
  enum State: Equatable {
    /// Nothing was read.
    case fresh
    /// It may become a request.
    case holds
    /// The bytes are forwarded as soon as there is space.
    case isThrough
    case isRefused
  }
  private(set) var state: State
  private(set) var since: UInt64 = 0

  init(isOn: Bool) { state = isOn ? .fresh : .isThrough }

  /// The route no longer screens, or the client has ended.
  mutating func opens() { if state != .isRefused { state = .isThrough } }

  /// `bytes` is all that was read, `first` the part that the first read returned.
  mutating func reads(_ bytes: ArraySlice<UInt8>, at now: UInt64) {
    switch state {
    case .fresh:
      since = now
      state = Self.beginnings.contains(where: bytes.starts(with:)) ? .holds : .isThrough
      if state == .holds { judge(bytes) }
    case .holds: judge(bytes)
    case .isThrough, .isRefused: break
    }
  }

  private mutating func judge(_ bytes: ArraySlice<UInt8>) {
    let line = bytes.prefix(16_384).prefix { $0 != 10 && $0 != 13 }
    if line.count == 16_384 {
      if bytes.count > 16_384 { state = .isRefused }
    } else if line.count < bytes.count {
      let isRequest = (0...9).contains { line.suffix(8).elementsEqual("HTTP/1.\($0)".utf8) }
      state = isRequest ? .isRefused : .isThrough
    }
  }

  private static let beginnings: [[UInt8]] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
  ].flatMap { method in ["/", "*", "http"].map { Array("\(method) \($0)".utf8) } }

  static let longest = Duration.seconds(1)

  /// Whether `bytes` is the complete answer to such a request.
  static func isAnswer(_ bytes: UnsafeRawBufferPointer, toHead isHead: Bool) -> Bool {
    let text = String(decoding: bytes, as: UTF8.self)
    guard text.hasPrefix("HTTP/1.1 400 Bad Request\r\n"), let end = text.utf8.firstRange(of: "\r\n\r\n".utf8) else {
      return false
    }
    return isHead == (end.upperBound == text.utf8.endIndex)
  }
}
