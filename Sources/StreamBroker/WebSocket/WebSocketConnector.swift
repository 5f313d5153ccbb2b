// ws://host:port/path and wss://…: a connection as for tcp or tls, and the upgrade of RFC 6455 over it. The bytes of
// binary messages are the endpoint's bytes. The broker's timeout limits the time between the connection and the stream.

import ByteStreams
import StreamBrokerCore
import StreamWebSocket

/// Connects to WebSocket servers (RFC 6455): `ws://host:8080/gps`. The bytes of binary messages are the stream.
public struct WebSocketConnector: Connector {
  public static let grammar = EndpointSchemes.ws
  public static let isLine = false
  private let tcp: TCPConnector
  private let target: WebSocketTarget

  public init(_ url: EndpointURL) throws(URLProblem) {
    tcp = TCPConnector(host: url.host, port: UInt16(clamping: url.port ?? 0))
    target = WebSocketTarget(url, usualPort: 80)
  }

  public func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = UpgradeOpening(target, reporting: request.report, on: poller, done)
    opening.wait(for: tcp.open(request, on: poller) { opening.isConnected($0) })
    return opening
  }
}

/// Connects to WebSocket servers over TLS: `wss://host/gps`.
public struct SecureWebSocketConnector: Connector {
  public static let grammar = EndpointSchemes.wss
  public static let isLine = false
  private let dialer: TLSDialer
  private let target: WebSocketTarget

  public init(_ url: EndpointURL) throws(URLProblem) {
    dialer = TLSDialer(url, alpn: ["http/1.1"])
    target = WebSocketTarget(url, usualPort: 443)
  }

  public func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = UpgradeOpening(target, reporting: request.report, on: poller, done)
    opening.wait(
      for: dialer.open(request, on: poller) { result in opening.isConnected(result.map { $0 as any ByteStream }) })
    return opening
  }
}

/// What a request asks for.
struct WebSocketTarget: Sendable {
  let host: String
  let target: String
  let subprotocol: String?
  let deflate: DeflateSettings?
  /// The value of the Authorization field.
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

  /// The path, escaped as in RFC 3986 section 3.3.
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

/// One opening: connection, request, response. Kept by the connection and the caller, which may cancel it.
private final class UpgradeOpening: Opening, ByteStreamDelegate {
  private let target: WebSocketTarget
  private let request: WebSocketRequest
  private let report: ((OpeningStep) -> Void)?
  private let poller: Poller
  private var done: ((Result<any ByteStream, OpenFailure>) -> Void)?
  private var connecting: (any Opening)?
  private var stream: (any ByteStream)?
  private var unsent: ArraySlice<UInt8>
  private var parser = HTTPResponseParser()
  // The first bytes, to name the protocol if it is not HTTP.
  private var first: [UInt8] = []

  init(
    _ target: WebSocketTarget, reporting report: ((OpeningStep) -> Void)?, on poller: Poller,
    _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) {
    self.target = target
    self.report = report
    self.poller = poller
    self.done = done
    request = WebSocketRequest(
      host: target.host, target: target.target, subprotocol: target.subprotocol, deflate: target.deflate,
      fields: target.authorization.map { [("Authorization", $0.reveal())] } ?? [])
    unsent = request.bytes[...]
  }

  /// The opening may already be finished.
  func wait(for opening: any Opening) { if done != nil && stream == nil { connecting = opening } }

  func isConnected(_ result: Result<any ByteStream, OpenFailure>) {
    connecting = nil
    switch result {
    case .success(let stream):
      guard done != nil else { return stream.close() }
      self.stream = stream
      stream.delegate = self
      report?(.open("\(target.host)\(target.target)"))
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
    case .endEncountered: fail("the server hung up before it answered")
    case .openCompleted, .inputEnded: break
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
        case .ended: return fail("the server hung up before it answered")
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
          if first.count < ProtocolSniff.enough { first += came.prefix(ProtocolSniff.enough - first.count) }
          guard case .complete(let head, let taken) = try parser.take(came) else { continue }
          begin(stream, try request.terms(of: head), early: Array(came[taken...]))
        case .blocked(let wish):
          stream.readerWaits = wish
          return
        case .ended: return fail("the server hung up before it answered")
        }
      }
    }
  }

  private func begin(_ stream: any ByteStream, _ terms: WebSocketTerms, early: [UInt8]) {
    guard let done else { return }
    self.done = nil
    self.stream = nil
    stream.readerWaits = []
    var settings = WebSocketStream.Settings(terms: terms, longestMessage: .max)  // we need no message boundaries
    settings.dropsControlTexts = true  // such as another gateway's events
    done(.success(WebSocketStream(over: stream, as: .client, settings, early: early, on: poller)))
  }

  // MARK: - Failures

  private var attempt: String { "WebSocket to \(target.host)\(target.target)" }

  private func fail(_ error: SystemError) { finish(.failure(OpenFailure(attempt, error))) }

  private func fail(_ words: String) { finish(.failure(OpenFailure(attempt, nil, advice: words))) }

  private func fail(_ fault: WebSocketRequest.Fault) {
    switch fault {
    case .refused(let status, let phrase):
      let advice: String? =
        switch status {
        case 401 where target.authorization == nil:
          "the server requires a log-in: add user=… and password=…, or token=…"
        case 401: "the server refused the log-in: is the password or the token right?"
        case 403:
          target.authorization == nil ? "the server may require a log-in: add user=… and password=…, or token=…" : nil
        case 404: "is the path that of a route there?"
        case 200...299, 426: "is it a WebSocket server?"
        default: nil
        }
      fail("the server answered \(status) \(phrase)" + (advice.map { "; \($0)" } ?? ""))
    case .notHTTP(.malformed(let words)):
      let advice = "is it a WebSocket server?"
      fail(
        ProtocolSniff(first).map { "expected an HTTP response, received \($0.words); \($0.advice ?? advice)" }
          ?? "the response is not HTTP (\(words)); \(advice)")
    case .notHTTP(.tooLarge): fail("the response is too long")
    case .notHTTP(.version): fail("the response has another version of HTTP")
    case .wrong(let words): fail("the response is not an upgrade: \(words)")
    }
  }

  private func finish(_ result: Result<any ByteStream, OpenFailure>) {
    guard let done else { return }
    cancel()
    done(result)
  }
}
