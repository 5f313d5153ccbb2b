// TLS with a client who is being greeted: the handshake, and what it says of him.

import ByteStreams
import Glibc
import StreamTLS

extension Guest {
  /// Those whom no route lets in need not be spoken to: an alert in clear costs nothing.
  func beginTLS() {
    if let client, !isCheck, !entrance.ways.contains(where: { $0.clients.admits(client) }) {
      return end(Ending(.denied), saying: Self.accessDenied)
    }
    guard let first = entrance.firstContext else { return end(Ending(.internal)) }  // it accepts only when there is one
    let entrance = entrance
    do throws(TLSFailure) {
      handshake = try TLSHandshake(first, choosing: { entrance.context(for: $0) }, over: raw)
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
      // What it asked for decides whose failure it was, as far as it came to that.
      if way == nil { way = entrance.onlyWay ?? entrance.ways.only(for: handshake.serverName) }
      end(Ending(error.word, error), saying: [])
    }
  }

  private func isSecure(_ session: consuming TLSSession) {
    handshake = nil
    let facts = session.facts
    self.session = consume session
    self.facts = facts
    // It went during the handshake.
    guard let first = entrance.ways.first(for: facts.serverName) else { return end(Ending(.routeRemoved), saying: []) }
    certificate = facts.peer.map(ClientCertificate.init)
    if first.listen.scheme == "tls" {
      way = first
      identifyByCertificate(first)
    } else {
      beginRequest()
    }
  }

  /// Where nobody can be asked for more than he has shown. Who needed a certificate and has none got an alert for it in the
  /// handshake; but a reload may have come between.
  private func identifyByCertificate(_ way: Way) {
    guard wasAskedEnough(for: way) else { return refuse(.loginFailed, .noCertificate, way, "asks for a certificate") }
    guard way.tls?.clientAuth != TLSServerSettings.ClientAuth.none else { return handOver() }
    switch way.access.decide(.none, certificate: certificate, role: way.role) {
    case .admitted(let identity, let role):
      self.identity = identity
      self.role = role
      handOver()
    case .denied(let identity):
      self.identity = identity
      refuse(.denied, .notLetIn(isUser: identity.isUser), way, "is not open to this user")
    case .asks, .failed, .check: refuse(.loginFailed, .noCertificate, way, "asks for a certificate")
    }
  }

  /// TLS has no alert for what is found out behind its handshake: a line says it, as on other raw listeners.
  private func refuse(_ word: Ending.Word, _ fault: GreetingFault, _ way: Way, _ reason: String) {
    end(Ending(word, fault), saying: way.clients.notices ? Array("baudway: \(way.route) \(reason)\r\n".utf8) : [])
  }
}

extension Guest {
  /// A reload may have asked for more since his handshake began, or for files that can't be read: nobody comes in by what held before.
  func wasAskedEnough(for way: Way) -> Bool {
    guard let wanted = way.tls, wanted.clientAuth != .none else { return true }
    guard let asked = facts?.asked, asked.clientCA == wanted.clientCA, asked.crl == wanted.crl else { return false }
    return wanted.clientAuth == .optional || certificate != nil
  }
}

extension TLSFailure {
  /// What a greeting ends with that fails so.
  var word: Ending.Word {
    switch self {
    case .leftInHandshake: .clientLeft
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
