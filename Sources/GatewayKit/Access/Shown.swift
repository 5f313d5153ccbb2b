// What a client of TLS was asked for when he came, and whether that would let him in today: a reload asks about everybody who
// is here, and a route about those who were greeted before it.

import StreamTLS

/// A reference: sessions by the thousand keep one each, and those without TLS keep none.
final class ShownToTLS: Sendable {
  private let asked: TLSServerSettings
  private let hasCertificate: Bool
  /// The client's certificate, and what it was held against; nil for one that showed none.
  let shown: (chain: TLSClientChain, trust: TLSTrust)?

  init(
    _ asked: TLSServerSettings, hasCertificate: Bool, shown: (chain: TLSClientChain, trust: TLSTrust)? = nil
  ) {
    self.asked = asked
    self.hasCertificate = hasCertificate
    self.shown = shown
  }

  /// The files that it was held against, by name.
  var anchors: TrustAnchors { TrustAnchors(asked) }

  /// Whether `wanted` would have asked for no more. A certificate counts for the authorities and lists it was held against: by
  /// others it has to be shown again.
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
  /// Whether one who is here, or is through his greeting, may come in by what holds now.
  func admits(_ client: Arrival.Label) -> Bool {
    guard clients.admits(client.address) else { return false }
    guard let shown = client.shown, let tls else { return access.admits(client) }
    let wanted = TLSServerSettings(tls, speaksHTTP: false)
    guard shown.isEnough(for: wanted) else { return false }
    return access.admits(client, couldBeAsked: wanted.clientAuth != .none)
  }
}

/// The files that clients' certificates are held against. What is in them may change.
struct TrustAnchors: Hashable, Sendable {
  private let authorities: String?
  private let lists: String?

  init(_ settings: TLSServerSettings) {
    authorities = settings.clientCA
    lists = settings.crl
  }
}
