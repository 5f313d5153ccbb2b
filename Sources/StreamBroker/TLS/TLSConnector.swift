// tls://host:port?ca=ca.pem: a TCP connection with a TLS handshake over it. The server must prove that it is the host
// (or `server-name`), unless `verify` requires less.

import ByteStreams
import Glibc
import StreamBrokerCore
import StreamTLS

/// Connects to TCP servers over TLS 1.2 or 1.3: `tls://host:4001?ca=ca.pem`. Verifies the server, unless the URL has
/// `verify=none`.
public struct TLSConnector: Connector {
  public static let grammar = EndpointSchemes.tls
  public static let isLine = false
  private let dialer: TLSDialer

  public init(_ url: EndpointURL) throws(URLProblem) { dialer = TLSDialer(url) }

  public func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) -> any Opening {
    dialer.open(request, on: poller) { result in done(result.map { $0 as any ByteStream }) }
  }
}

extension TLSClientSettings {
  /// The TLS settings of a URL; nil if its scheme has none.
  package init?(_ url: EndpointURL) {
    guard let word = url.string("verify") else { return nil }
    self.init()
    verification = .init(rawValue: word) ?? .full
    ca = url.string("ca")
    if let certificate = url.string("cert"), let key = url.string("key") {
      identity = TLSIdentity(certificate: certificate, key: key)
    }
    minVersion = url.string("min-version").flatMap { TLSVersion(rawValue: $0) } ?? .tls12
    ciphers = (url.string("ciphers") ?? "").split { ": ,".contains($0) }.map(String.init)
  }
}

/// Opens TLS connections to the host of a URL: for `tls`, and for schemes on top of TLS.
struct TLSDialer: Sendable {
  private let tcp: TCPConnector
  private let authority: String
  private let serverName: String
  private let contexts: TLSContexts

  /// `alpn` are the application protocols to offer.
  init(_ url: EndpointURL, alpn: [String] = []) {
    let port = UInt16(clamping: url.port ?? 0)
    tcp = TCPConnector(host: url.host, port: port)
    authority = url.host.contains(":") ? "[\(url.host)]:\(port)" : "\(url.host):\(port)"
    serverName = url.string("server-name") ?? url.host
    var settings = TLSClientSettings(url) ?? TLSClientSettings()
    settings.alpn = alpn
    contexts = TLSContexts(settings)
  }

  func open(
    _ request: OpenRequest, on poller: Poller, _ done: @escaping (Result<TLSStream, OpenFailure>) -> Void
  ) -> any Opening {
    let opening = TLSOpening(authority, serverName, request, on: poller, done)
    contexts.get(on: poller) { [tcp] result in
      switch result {
      case .success(let context): opening.connect(by: tcp, context)
      case .failure(let fault): opening.fail(OpenFailure("TLS to \(authority)", nil, advice: "\(fault)"))
      }
    }
    return opening
  }
}

/// One opening: files, connection, handshake. Kept by the poller and the caller, which may cancel it.
private final class TLSOpening: Opening, PollHandler {
  private let authority: String
  private let serverName: String
  private let request: OpenRequest
  private let poller: Poller
  private var done: ((Result<TLSStream, OpenFailure>) -> Void)?
  private var connecting: (any Opening)?
  private var descriptor: Descriptor?
  private var handshake: TLSHandshake?
  /// For messages.
  private var offer: String?
  private var isInPoller = false

  init(
    _ authority: String, _ serverName: String, _ request: OpenRequest, on poller: Poller,
    _ done: @escaping (Result<TLSStream, OpenFailure>) -> Void
  ) {
    self.authority = authority
    self.serverName = serverName
    self.request = request
    self.poller = poller
    self.done = done
  }

  func connect(by tcp: TCPConnector, _ context: TLSClientContext) {
    guard done != nil else { return }  // cancelled while the files were read
    let attempt = tcp.open(request, on: poller) { [self] result in
      connecting = nil
      switch result {
      case .success(let stream): begin(stream, context)
      case .failure(let failure): fail(failure)
      }
    }
    // The attempt may already be finished.
    if done != nil && handshake == nil { connecting = attempt }
  }

  private func begin(_ stream: any ByteStream, _ context: TLSClientContext) {
    guard let descriptor = (stream as? DescriptorStream)?.release() else {
      return fail(OpenFailure("TLS to \(authority)", SystemError("connect", EBADF)))
    }
    request.report?(.secure(authority))
    offer = context.settings.offer
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
      fail(OpenFailure("TLS to \(authority)", error))
    }
  }

  private func finish(_ handshake: TLSHandshake) {
    guard let done, let descriptor = take() else { return }
    self.done = nil
    self.handshake = nil
    let stream = TLSStream(handshake.takeSession(), over: descriptor, kind: .tcp(wasDialled: true), on: poller)
    // In TLS 1.3 a server checks our certificate after the handshake is over for us (RFC 8446 section 4.4.2.4).
    stream.explain = { [serverName] in TLSRefusal(failure: $0, serverName: serverName, offer: nil) }
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

  // MARK: - Failures

  private func failure(_ error: TLSFailure) -> OpenFailure {
    let attempt = "TLS to \(authority)"
    let refusal = TLSRefusal(failure: error, serverName: serverName, offer: offer)
    if case .system(let cause) = error { return OpenFailure(attempt, cause, advice: refusal.advice) }
    return OpenFailure(attempt, nil, advice: "\(refusal)")
  }
}

/// A failure, with advice on the endpoint's URL.
struct TLSRefusal: Error, CustomStringConvertible {
  let failure: TLSFailure
  /// The name that we asked for.
  let serverName: String
  /// Versions and ciphers that we offered; nil after the handshake, when they are agreed on.
  let offer: String?

  var description: String { "\(failure)" + (advice.map { "; \($0)" } ?? "") }

  var advice: String? {
    switch failure {
    case .certificate(let fault) where fault.isUntrusted:
      "if the certificate is right, set ca=… to its authority; verify=none accepts any certificate"
    case .certificate(let fault) where fault.isForAnotherName:
      "expected '\(serverName)': set server-name=… to the certificate's name, or verify=ca to accept any name"
    // handshake_failure, insufficient_security
    case .alert(_, let number) where offer != nil && (number == 40 || number == 71):
      "the server may have none of the ciphers that were offered (\(offer ?? "")): an older one needs ciphers=…, "
        + "such as ciphers=AES128-SHA; or it may require a client certificate: add cert=… and key=…"
    case .alert(_, let number) where TLSFailure.asksForCertificate(number):
      "the server may require a client certificate: add cert=… and key=…"
    case .alert(_, 112): "asked for '\(serverName)': set server-name=… to the server's name"
    case .closedInHandshake, .system:
      "does the server use TLS on this port? It may also have no version or cipher in common with us"
        + (offer.map { " (offered: \($0))" } ?? "")
    case .notTLS, .plainHTTP: "does the server use TLS on this port?"
    case .noCommonVersion where offer?.hasPrefix("TLS 1.3") == true,
      .alert(_, 70) where offer?.hasPrefix("TLS 1.3") == true:
      "min-version=1.3 excludes TLS 1.2, which the server may need; offered: \(offer ?? "")"
    case .noCommonVersion, .alert(_, 70):
      "the server may support only versions before TLS 1.2"
        + (offer.map { "; offered: \($0)" } ?? "")
    default: nil
    }
  }
}
