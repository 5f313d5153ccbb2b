// What TLS asked of a client in its handshake, and whether that is still enough. A reload checks this for present
// clients, and a route for clients whose handshake began before the reload.

import StreamTLS

/// A class, because thousands of sessions keep one each, and those without TLS keep only nil.
final class TLSAdmission: Sendable {
  private let asked: TLSServerSettings
  private let hasCertificate: Bool
  /// The client's certificate chain and the authorities that verified it; nil without a certificate.
  let shown: (chain: TLSClientChain, trust: TLSTrust)?

  init(
    _ asked: TLSServerSettings, hasCertificate: Bool, shown: (chain: TLSClientChain, trust: TLSTrust)? = nil
  ) {
    self.asked = asked
    self.hasCertificate = hasCertificate
    self.shown = shown
  }

  /// Names of the files that it was verified with.
  var anchors: TrustAnchors { TrustAnchors(asked) }

  /// Whether the handshake asked for at least what `wanted` requires. A certificate counts only for the authorities and
  /// revocation lists that verified it; for others the client must connect again.
  func isEnough(for wanted: TLSServerSettings) -> Bool {
    switch wanted.clientAuth {
    case .none: return true
    case .optional where !hasCertificate: return true
    case .optional, .required:
      return hasCertificate && asked.clientCA == wanted.clientCA && asked.crl == wanted.crl
    }
  }
}

extension ListenerContext.Terms {
  /// Whether the present rules admit a client that has completed its handshake or has a session.
  func admits(_ client: AcceptedConnection.Label) -> Bool {
    guard clients.admits(client.address) else { return false }
    if client.isTerminal { return terminals.admits(client) }
    guard let shown = client.shown, let tls else { return access.admits(client) }
    let wanted = TLSServerSettings(tls, speaksHTTP: false)
    guard shown.isEnough(for: wanted) else { return false }
    return access.admits(client, couldBeAsked: wanted.clientAuth != .none)
  }
}

/// The files that verify clients' certificates. Their content can change.
struct TrustAnchors: Hashable, Sendable {
  private let authorities: String?
  private let lists: String?

  init(_ settings: TLSServerSettings) {
    authorities = settings.clientCA
    lists = settings.crl
  }
}
