// TLS of a pending connection: the handshake, and the identity in the client's certificate. HandshakeDeadlines limits
// its time.

import ByteStreams
import Glibc
import StreamTLS

extension PendingConnection {
  /// A client that every route's `allow` and `deny` refuse gets no handshake: an alert in clear text costs nothing.
  func beginTLS() {
    if let client, !isCheck, !listenSocket.bindings.contains(where: { $0.clients.admits(client) }) {
      return end(Ending(.denied), saying: Self.accessDenied)
    }
    // The socket accepts only while there is a context.
    guard let first = listenSocket.firstContext else { return end(Ending(.internal)) }
    let listenSocket = listenSocket
    do throws(TLSFailure) {
      handshake = try TLSHandshake(first, choosing: { listenSocket.context(for: $0) }, over: raw)
      stage = .handshake
      shakeHands()
    } catch {
      end(Ending(error.word, error))
    }
  }

  /// A fatal alert of TLS 1.2, access_denied (RFC 8446 section 6.2).
  private static let accessDenied: [UInt8] = [0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x31]

  func shakeHands() {
    guard let handshake else { return }
    do throws(TLSFailure) {
      switch try handshake.advance() {
      case .blocked(let wish): wait(for: wish)
      case .finished: isSecure(handshake.takeSession())
      }
    } catch {
      // The server name the client asked for, if it got that far, decides which route reports the failure.
      if binding == nil { binding = listenSocket.onlyBinding ?? listenSocket.bindings.only(for: handshake.serverName) }
      end(Ending(error.word, error), saying: [])
    }
  }

  private func isSecure(_ session: consuming TLSSession) {
    handshake = nil
    let facts = session.facts
    self.session = consume session
    self.facts = facts
    // The binding was removed during the handshake.
    guard let first = listenSocket.bindings.first(for: facts.serverName) else {
      return end(Ending(.routeRemoved), saying: [])
    }
    certificate = facts.peer.map(ClientCertificate.init)
    if first.listen.usesHTTP {
      beginRequest()
    } else {
      binding = first
      if first.listen.usesTelnet { beginTelnet(first) } else { identifyByCertificate(first) }
    }
  }

  /// On raw TLS the certificate is the only credential. A missing one is refused with an alert in the handshake, but a
  /// reload during the handshake may have made it required.
  private func identifyByCertificate(_ binding: RouteBinding) {
    guard wasAskedEnough(for: binding) else { return refuseWithoutCertificate(binding) }
    guard binding.tls?.clientAuth != TLSServerSettings.ClientAuth.none else { return handOver() }
    switch binding.access.decide(.none, certificate: certificate, role: binding.role) {
    case .admitted(let identity, let role):
      self.identity = identity
      self.role = role
      handOver()
    case .denied(let identity):
      self.identity = identity
      refuse(.denied, .notLetIn(isUser: identity.isUser), binding, "is not open to this user")
    case .asks, .failed, .check: refuseWithoutCertificate(binding)
    }
  }

  func refuseWithoutCertificate(_ binding: RouteBinding) {
    refuse(.loginFailed, .noCertificate, binding, "requires a client certificate")
  }

  /// TLS has no alert for refusals after its handshake: a line of text gives the reason, as on other raw listeners.
  func refuse(_ word: Ending.Word, _ fault: HandshakeFault, _ binding: RouteBinding, _ reason: String) {
    end(
      Ending(word, fault), saying: binding.clients.notices ? Array("baudway: \(binding.route) \(reason)\r\n".utf8) : [])
  }
}

extension PendingConnection {
  /// Whether the handshake asked for everything that the binding requires now. A reload since then can require more, or
  /// name files that can't be read; the old settings admit no client.
  func wasAskedEnough(for binding: RouteBinding) -> Bool {
    guard let wanted = binding.tls, wanted.clientAuth != .none else { return true }
    guard let asked = facts?.asked, asked.clientCA == wanted.clientCA, asked.crl == wanted.crl else { return false }
    return wanted.clientAuth == .optional || certificate != nil
  }
}

extension TLSFailure {
  /// The ending word of a handshake that fails like this.
  var word: Ending.Word {
    switch self {
    case .closedInHandshake: .clientLeft
    case .system: .clientLost
    case .noCertificate, .certificate: .loginFailed
    case .noMemory: .internal
    default: .protocolError
    }
  }
}

extension ClientCertificate {
  init(_ peer: TLSPeer) {
    let names = [peer.commonName].compactMap(\.self) + peer.dnsNames + peer.emails + peer.uris
    self.init(subject: peer.subject, names: names)
  }
}
