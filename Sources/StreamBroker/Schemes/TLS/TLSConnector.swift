// tls://host:port?ca=ca.pem: a TCP connection as tcp's, and a handshake over it. The server has to prove that it is the host
// (or `server-name`), unless `verify` asks for less.

import ByteStreams
import Glibc
import StreamTLS

public struct TLSConnector: Connector {
  public static let scheme = "tls"
  public static let isLine = false
  private let dialer: TLSDialer

  public init(_ url: EndpointURL) throws(URLProblem) { dialer = TLSDialer(url) }

  public func open(
    on poller: Poller, discardingInput: Bool, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    dialer.open(on: poller) { result in done(result.map { $0 as any ByteStream }) }
  }
}

extension TLSClientSettings {
  /// What a URL says of TLS; nil where its scheme has none.
  public init?(_ url: EndpointURL) {
    guard let word = url.string("verify") else { return nil }
    self.init()
    verification = .init(rawValue: word) ?? .full
    ca = url.string("ca")
    if let certificate = url.string("cert"), let key = url.string("key") {
      identity = TLSIdentity(certificate: certificate, key: key)
    }
  }
}

/// Opens TLS connections to where a URL leads: `tls`, and what speaks through it.
struct TLSDialer: Sendable {
  private let tcp: TCPConnector
  private let place: String
  private let serverName: String
  private let contexts: TLSContexts

  /// `alpn` are the application protocols to offer.
  init(_ url: EndpointURL, alpn: [String] = []) {
    let port = UInt16(clamping: url.port ?? 0)
    tcp = TCPConnector(host: url.host, port: port)
    place = url.host.contains(":") ? "[\(url.host)]:\(port)" : "\(url.host):\(port)"
    serverName = url.string("server-name") ?? url.host
    var settings = TLSClientSettings(url) ?? TLSClientSettings()
    settings.alpn = alpn
    contexts = TLSContexts(settings)
  }

  func open(on poller: Poller, _ done: @escaping (Result<TLSStream, OpenFailure>) -> Void) -> any Opening {
    let opening = TLSOpening(place, serverName, on: poller, done)
    contexts.get(on: poller) { [tcp] result in
      switch result {
      case .success(let context): opening.connect(by: tcp, context)
      case .failure(let fault): opening.fail(OpenFailure("TLS to \(place)", nil, advice: "\(fault)"))
      }
    }
    return opening
  }
}

/// One opening: files, connection, handshake. Kept by the poller and whoever may cancel it.
private final class TLSOpening: Opening, PollHandler {
  private let place: String
  private let serverName: String
  private let poller: Poller
  private var done: ((Result<TLSStream, OpenFailure>) -> Void)?
  private var connecting: (any Opening)?
  private var descriptor: Descriptor?
  private var handshake: TLSHandshake?
  private var isInPoller = false

  init(
    _ place: String, _ serverName: String, on poller: Poller,
    _ done: @escaping (Result<TLSStream, OpenFailure>) -> Void
  ) {
    self.place = place
    self.serverName = serverName
    self.poller = poller
    self.done = done
  }

  func connect(by tcp: TCPConnector, _ context: TLSClientContext) {
    guard done != nil else { return }  // cancelled while the files were read
    let attempt = tcp.open(on: poller, discardingInput: false) { [self] result in
      connecting = nil
      switch result {
      case .success(let stream): begin(stream, context)
      case .failure(let failure): fail(failure)
      }
    }
    // It may have been done at once.
    if done != nil && handshake == nil { connecting = attempt }
  }

  private func begin(_ stream: any ByteStream, _ context: TLSClientContext) {
    guard let descriptor = (stream as? DescriptorStream)?.release() else {
      return fail(OpenFailure("TLS to \(place)", SystemError("connect", EBADF)))
    }
    do throws(TLSFailure) {
      handshake = try TLSHandshake(context, to: serverName, over: descriptor.raw)
      self.descriptor = consume descriptor
      advance()
    } catch {
      fail(failure(error))
    }
  }

  func ready(_ events: PollEvents) { advance() }

  private func advance() {
    guard let handshake, let raw = descriptor?.raw else { return }
    do throws(TLSFailure) {
      switch try handshake.advance() {
      case .blocked(let wish): wait(raw, for: wish)
      case .finished: finish(handshake)
      }
    } catch {
      fail(failure(error))
    }
  }

  private func wait(_ raw: Int32, for wish: Readiness) {
    if isInPoller { return poller.change(raw, to: wish) }
    do {
      try poller.add(raw, handler: self, for: wish)
      isInPoller = true
    } catch {
      fail(OpenFailure("TLS to \(place)", error))
    }
  }

  private func finish(_ handshake: TLSHandshake) {
    guard let done, let descriptor = take() else { return }
    self.done = nil
    self.handshake = nil
    let stream = TLSStream(handshake.takeSession(), over: descriptor, kind: .tcp(wasDialled: true), on: poller)
    // With TLS 1.3 a server looks at our certificate when for us the handshake is over (RFC 8446 section 4.4.2.4).
    stream.explain = { [serverName] in TLSRefusal(failure: $0, serverName: serverName) }
    done(.success(stream))
  }

  func cancel() {
    done = nil
    connecting?.cancel()
    connecting = nil
    handshake = nil
    _ = take()
  }

  func fail(_ failure: OpenFailure) {
    guard let done else { return }
    cancel()
    done(.failure(failure))
  }

  private func take() -> Descriptor? {
    if isInPoller, let raw = descriptor?.raw { poller.remove(raw) }
    isInPoller = false
    return descriptor.take()
  }

  // MARK: - What went wrong

  private func failure(_ error: TLSFailure) -> OpenFailure {
    let attempt = "TLS to \(place)"
    let refusal = TLSRefusal(failure: error, serverName: serverName)
    if case .system(let cause) = error { return OpenFailure(attempt, cause, advice: refusal.advice) }
    return OpenFailure(attempt, nil, advice: "\(refusal)")
  }
}

/// A failure with what the endpoint's URL can do about it.
struct TLSRefusal: Error, CustomStringConvertible {
  let failure: TLSFailure
  /// Whom we asked for.
  let serverName: String

  var description: String { "\(failure)" + (advice.map { "; \($0)" } ?? "") }

  var advice: String? {
    switch failure {
    case .certificate(let fault) where fault.isUntrusted:
      "name who signed it with ca=…, if it is right; verify=none believes anybody"
    case .certificate(let fault) where fault.isForAnotherName:
      "asked for '\(serverName)': say server-name=… as the certificate has it, or verify=ca if any of that authority will do"
    case .alert(_, let number) where TLSFailure.asksForCertificate(number):
      "it may want a certificate of ours: cert=… and key=…"
    case .alert(_, 112): "asked for '\(serverName)': say server-name=… as the server calls itself"
    case .notTLS, .plainHTTP, .leftInHandshake, .system: "is it TLS that listens there?"
    case .noCommonVersion, .alert(_, 70): "it may speak older versions than TLS 1.2 only"
    default: nil
    }
  }
}
