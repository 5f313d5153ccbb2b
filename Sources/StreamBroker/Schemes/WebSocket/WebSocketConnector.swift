// ws://host:port/path and wss://…: a connection as tcp's or tls's, and the upgrade of RFC 6455 over it. The bytes of binary
// messages are the endpoint's bytes. What is between the connection and the stream is bounded by the broker's time-out.

import ByteStreams
import StreamWebSocket

public struct WebSocketConnector: Connector {
  public static let scheme = "ws"
  public static let isLine = false
  private let tcp: TCPConnector
  private let place: WebSocketPlace

  public init(_ url: EndpointURL) throws(URLProblem) {
    tcp = TCPConnector(host: url.host, port: UInt16(clamping: url.port ?? 0))
    place = WebSocketPlace(url, usualPort: 80)
  }

  public func open(
    on poller: Poller, discardingInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = UpgradeOpening(place, on: poller, done)
    opening.wait(for: tcp.open(on: poller, discardingInput: false) { opening.isConnected($0) })
    return opening
  }
}

public struct SecureWebSocketConnector: Connector {
  public static let scheme = "wss"
  public static let isLine = false
  private let dialer: TLSDialer
  private let place: WebSocketPlace

  public init(_ url: EndpointURL) throws(URLProblem) {
    dialer = TLSDialer(url, alpn: ["http/1.1"])
    place = WebSocketPlace(url, usualPort: 443)
  }

  public func open(
    on poller: Poller, discardingInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = UpgradeOpening(place, on: poller, done)
    opening.wait(for: dialer.open(on: poller) { result in opening.isConnected(result.map { $0 as any ByteStream }) })
    return opening
  }
}

/// What a request asks for.
struct WebSocketPlace: Sendable {
  let host: String
  let target: String
  let subprotocol: String?
  let deflate: DeflateSettings?
  /// The value of the field Authorization.
  let authorization: Secret?

  init(_ url: EndpointURL, usualPort: Int) {
    let name = url.host.contains(":") ? "[\(url.host)]" : url.host
    host = url.port == usualPort || url.port == nil ? name : "\(name):\(url.port ?? 0)"
    target = Self.escaped(url.path)
    subprotocol = url.string("subprotocol")
    deflate = url.flag("deflate") == true ? DeflateSettings() : nil
    authorization =
      if let token = url.secret("token") {
        Secret("Bearer \(token.reveal())")
      } else if let user = url.string("user"), let password = url.secret("password") {
        Secret(WebSocketRequest.basic(user: user, password: password.reveal()))
      } else {
        nil
      }
  }

  /// The path as RFC 3986 section 3.3 writes it.
  private static func escaped(_ path: String) -> String {
    var bytes: [UInt8] = path.hasPrefix("/") ? [] : [UInt8(ascii: "/")]
    let digits = Array("0123456789ABCDEF".utf8)
    for byte in path.utf8 {
      switch byte {
      case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
        UInt8(ascii: "0")...UInt8(ascii: "9"):
        bytes.append(byte)
      case _ where "/-._~!$&'()*+,;=:@".utf8.contains(byte): bytes.append(byte)
      default: bytes += [UInt8(ascii: "%"), digits[Int(byte >> 4)], digits[Int(byte & 15)]]
      }
    }
    return String(decoding: bytes, as: UTF8.self)
  }
}

/// One opening: connection, request, answer. Kept by the connection and whoever may cancel it.
private final class UpgradeOpening: Opening, ByteStreamDelegate {
  private let place: WebSocketPlace
  private let request: WebSocketRequest
  private let poller: Poller
  private var done: ((Result<any ByteStream, OpenFailure>) -> Void)?
  private var connecting: (any Opening)?
  private var stream: (any ByteStream)?
  private var unsent: ArraySlice<UInt8>
  private var parser = HTTPResponseParser()
  // For telling what it is, when it is no HTTP.
  private var first: [UInt8] = []

  init(_ place: WebSocketPlace, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void) {
    self.place = place
    self.poller = poller
    self.done = done
    request = WebSocketRequest(
      host: place.host, target: place.target, subprotocol: place.subprotocol, deflate: place.deflate,
      fields: place.authorization.map { [("Authorization", $0.reveal())] } ?? [])
    unsent = request.bytes[...]
  }

  /// It may have been done at once.
  func wait(for opening: any Opening) { if done != nil && stream == nil { connecting = opening } }

  func isConnected(_ result: Result<any ByteStream, OpenFailure>) {
    connecting = nil
    switch result {
    case .success(let stream):
      guard done != nil else { return stream.close() }
      self.stream = stream
      stream.delegate = self
      goOn(stream)
    case .failure(let failure): finish(.failure(failure))
    }
  }

  func cancel() {
    done = nil
    connecting?.cancel()
    connecting = nil
    stream.take()?.close()
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasBytesAvailable, .hasSpaceAvailable: goOn(stream)
    case .errorOccurred(let error): fail(error)
    case .endEncountered: fail("it hung up before it answered")
    case .openCompleted, .lastByteIsIn: break
    }
  }

  private func goOn(_ stream: any ByteStream) {
    do {
      while let run = unsent.isEmpty ? nil : unsent {
        let transfer = try run.withUnsafeBytes { try stream.write($0) }
        switch try transfer.checked(of: run.count, at: "request.write") {
        case .moved(let count): unsent = unsent.dropFirst(count)
        case .blocked(let wish):
          stream.writerWaits = wish
          return
        case .ended: return fail("it hung up before it answered")
        }
      }
      stream.writerWaits = []
      try read(from: stream)
    } catch let error as SystemError {
      fail(error)
    } catch let fault as HTTPFault {
      fail(.notHTTP(fault))
    } catch let fault as WebSocketRequest.Fault {
      fail(fault)
    } catch {
      fail("\(error)")
    }
  }

  private func read(from stream: any ByteStream) throws {
    try withUnsafeTemporaryAllocation(byteCount: 16 << 10, alignment: 1) { run in
      while done != nil {
        switch try stream.read(into: run).checked(of: run.count, at: "request.read") {
        case .moved(let count):
          let came = UnsafeRawBufferPointer(rebasing: run[..<count])
          if first.count < WhatCame.enough { first += came.prefix(WhatCame.enough - first.count) }
          guard case .complete(let head, let taken) = try parser.take(came) else { continue }
          begin(stream, try request.terms(of: head), early: Array(came[taken...]))
        case .blocked(let wish):
          stream.readerWaits = wish
          return
        case .ended: return fail("it hung up before it answered")
        }
      }
    }
  }

  private func begin(_ stream: any ByteStream, _ terms: WebSocketTerms, early: [UInt8]) {
    guard let done else { return }
    self.done = nil
    self.stream = nil
    stream.readerWaits = []
    var settings = WebSocketStream.Settings(terms: terms, longestMessage: .max)  // messages are no units to us
    settings.dropsControlTexts = true  // such as another gateway's events
    done(.success(WebSocketStream(over: stream, as: .client, settings, early: early, on: poller)))
  }

  // MARK: - What went wrong

  private var attempt: String { "WebSocket to \(place.host)\(place.target)" }

  private func fail(_ error: SystemError) { finish(.failure(OpenFailure(attempt, error))) }

  private func fail(_ words: String) { finish(.failure(OpenFailure(attempt, nil, advice: words))) }

  private func fail(_ fault: WebSocketRequest.Fault) {
    switch fault {
    case .refused(let status, let phrase):
      let advice: String? =
        switch status {
        case 401 where place.authorization == nil: "it wants to know who we are: user=… and password=…, or token=…"
        case 401: "it does not know us by what we say: is the password or the token right?"
        case 403: place.authorization == nil ? "it may want to know who we are: user=…, password=… or token=…" : nil
        case 404: "does the path name a route there?"
        case 200...299, 426: "is it a WebSocket that listens there?"
        default: nil
        }
      fail("it answered \(status) \(phrase)" + (advice.map { "; \($0)" } ?? ""))
    case .notHTTP(.malformed(let words)):
      let advice = "is it a WebSocket that listens there?"
      fail(
        WhatCame(first).map { "\($0.words) came where an answer of HTTP was expected; \($0.advice ?? advice)" }
          ?? "what it answered is not HTTP (\(words)); \(advice)")
    case .notHTTP(.tooLarge): fail("its answer is too long")
    case .notHTTP(.version): fail("it answered in another version of HTTP")
    case .wrong(let words): fail("its answer is no upgrade: \(words)")
    }
  }

  private func finish(_ result: Result<any ByteStream, OpenFailure>) {
    guard let done else { return }
    cancel()
    done(result)
  }
}
