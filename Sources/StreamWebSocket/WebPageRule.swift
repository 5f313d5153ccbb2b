// Which web pages may use a server. A browser says in Origin which page sends a request, and in Host by which name it
// reached the server; other programs send no origin, and are treated as any client.

package struct WebPageRule: Equatable, Sendable {
  /// Other origins whose pages may connect, such as "https://example.org"; "*" allows all.
  package var origins: [String]
  /// The names by which pages of the same origin may reach us; nil allows any name. See `HostNames`.
  package var hosts: HostNames?
  /// Whether the connection uses TLS: then a page of the same origin uses https.
  package var isSecure: Bool

  package init(origins: [String] = [], hosts: HostNames? = nil, isSecure: Bool = false) {
    self.origins = origins
    self.hosts = hosts
    self.isSecure = isSecure
  }

  /// Nil for a request of no page, or of a page that may connect.
  package func objection(to head: HTTPRequestHead) -> HTTPRefusal.Cause? {
    guard head.fields.count(of: "origin") > 0 else { return nil }
    guard head.fields.count(of: "origin") == 1, let origin = head["origin"].map(lowercased) else {
      return .foreignOrigin
    }
    let normal = OriginNames.normal(origin)
    if origins.contains(where: { $0 == "*" || OriginNames.normal($0) == normal }) { return nil }
    let scheme = origin.hasPrefix("https://") ? "https://" : "http://"
    // On a port without TLS, a page by https may have the same origin: a proxy in front of us may do TLS.
    guard origin.hasPrefix(scheme), scheme == "https://" || !isSecure, let host = head["host"].map(lowercased) else {
      return .foreignOrigin
    }
    guard OriginNames.normal(scheme + host) == normal else { return .foreignOrigin }
    // The same origin proves nothing if the page's owner controls what its name resolves to.
    return hosts?.contains(host) ?? true ? nil : .foreignHost
  }
}
