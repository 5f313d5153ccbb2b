// Unusable files of certificates, which only `check` reports, and warnings of listeners that are more open than the
// users' roles suggest.

import Glibc
import StreamBroker
import StreamTLS

extension ConfigBuilder {
  /// Roles apply where a listener asks for a log-in. Unix and pty listeners have a file mode instead.
  mutating func checkOpenListeners(
    _ listeners: [ConfigURL], _ route: String, _ users: [Config.User], knowsCertificates: Bool
  ) {
    guard users.contains(where: { $0.roles != nil && $0.role(on: route) != nil }) else { return }
    for listener in listeners where !listener.traits.isLocal {
      let listen = Config.Listen(url: listener.url)
      let isAsked = listener.traits.canLogIn(knowsCertificates: knowsCertificates) && !listen.asksNobody
      guard !isAsked, listen.role == .writer else { continue }
      guard !listen.asksNobody else {
        reader.warn(
          "users have roles on this route, but 'role=writer' lets every client of this listener write without a log-in; "
            + "remove it to ask for a log-in, or set 'role=monitor' to let no client write",
          at: listener.location, listener.path)
        continue
      }
      let advice =
        listener.traits.usesTLS
        ? "set 'tls.client-ca' to request a certificate"
        : "\(ListenerSchemes.words { $0.canLogIn(knowsCertificates: true) }) can authenticate clients"
      reader.warn(
        "users have roles on this route, but this listener does not authenticate: every client may write; \(advice), or "
          + "set '?role=monitor' to let no client write",
        at: listener.location, listener.path)
    }
  }

  /// The slowest hash sets the delay of every answer to a log-in, so that timing does not reveal users. With hashes of
  /// one kind the delay is no longer than it must be.
  mutating func checkHashes(of config: Config) {
    let kinds = config.hashesByKind.map(\.kind)
    guard kinds.count > 1, let location = top.present["users"] else { return }
    reader.warn(
      "passwords have hashes of different methods or costs (\(kinds.joined(separator: ", "))); the time of a check depends on the hash, "
        + "so a client that measures it can tell users apart; make all of them with 'baudway hash-password', with one method and cost",
      at: location, "users")
  }

  // MARK: - Files

  /// Reads certificates, keys, authorities and revocation lists as listeners and endpoints do. Blocks.
  mutating func openFiles(of config: Config) {
    var seen: Set<Config.TLS> = []
    let users = config.routes.map { ($0.tls, "routes.\($0.name)") } + [(config.admin.tls, "admin")]
    for (tls, path) in users {
      guard let tls, seen.insert(tls).inserted else { continue }
      var whole = TLSServerSettings(tls, speaksHTTP: false)
      // Each one alone, so that all faults are reported at once.
      whole.identities = whole.identities.filter { identity in
        var alone = TLSServerSettings(identities: [identity])
        alone.ciphers = whole.ciphers
        alone.minVersion = whole.minVersion
        return open(alone, tls, saysWarnings: true, path)
      }
      guard !whole.identities.isEmpty, whole.clientCA != nil else { continue }
      var withoutList = whole
      withoutList.crl = nil
      if open(withoutList, tls, saysWarnings: false, path), whole.crl != nil {
        _ = open(whole, tls, saysWarnings: false, path)
      }
    }
    for (_, section) in top.children["routes"] ?? [] {
      for endpoint in section.urls["endpoint"] ?? [] { openFiles(of: endpoint) }
    }
  }

  private mutating func openFiles(of endpoint: ConfigURL) {
    guard let whole = TLSClientSettings(endpoint.url) else { return }
    var (identity, trust) = (whole, whole)
    identity.verification = .none
    trust.identity = nil
    // Without `ca` the system's authorities apply; they are not checked.
    for settings in whole.ca == nil ? [identity] : [identity, trust] {
      do throws(TLSSettingsFault) { _ = try TLSClientContext(settings) } catch {
        report(error, at: endpoint.location, endpoint.path)
      }
    }
  }

  /// Warns of certificates, keys and authorities that others could exchange, and of keys that they can read.
  mutating func checkPermissions() {
    for (use, home) in tlsLocations.sorted(by: { $0.value.location < $1.value.location }) {
      switch use.part {
      case .key: check(use.values.last, isSecret: true, at: home.location, home.path)
      case .certificate, .authority, .revocations:
        check(use.values.first, isSecret: false, at: home.location, home.path)
      case .ciphers: break
      }
    }
    for (_, section) in top.children["routes"] ?? [] {
      for endpoint in section.urls["endpoint"] ?? [] {
        for name in ["ca", "cert", "key"] where endpoint.url.grammar.parameter(name)?.kind == .path {
          check(endpoint.url.string(name), isSecret: name == "key", at: endpoint.location, endpoint.path)
        }
      }
    }
  }

  private mutating func check(
    _ file: String?, isSecret: Bool, at location: ConfigProblem.SourceLocation, _ path: String
  ) {
    guard let file, reported.insert("permissions \(file) \(isSecret)").inserted else { return }
    reader.checkPermissions(file, isSecret: isSecret, at: location, path)
  }

  private mutating func open(
    _ settings: TLSServerSettings, _ tls: Config.TLS, saysWarnings: Bool, _ path: String
  ) -> Bool {
    let identity = settings.identities.first.map { [$0.certificate, $0.key] } ?? []
    do throws(TLSSettingsFault) {
      let warnings = try TLSServerContext(settings).warnings(at: time(nil))
      guard saysWarnings, let use = tlsLocations[TLSUse(part: .certificate, values: identity)] else { return true }
      for warning in warnings where isNew(warning, at: use.location) {
        reader.warn(warning, at: use.location, use.path)
      }
      return true
    } catch {
      let values =
        switch error.part {
        case .authority: [tls.clientCA]
        case .revocations: [tls.crl]
        case .ciphers: [tls.ciphers]
        case .certificate, .key, nil: identity
        }
      let use = tlsLocations[TLSUse(part: error.part ?? .certificate, values: values.compactMap(\.self))]
      report(error, at: use?.location ?? .start, use?.path ?? "\(path).tls")
      return false
    }
  }

  /// Reports a fault once for each place, since routes inherit settings.
  private mutating func report(_ fault: TLSSettingsFault, at location: ConfigProblem.SourceLocation, _ path: String) {
    if isNew(fault.description, at: location) { reader.report(fault.description, at: location, path) }
  }

  private mutating func isNew(_ text: String, at location: ConfigProblem.SourceLocation) -> Bool {
    reported.insert("\(location.line):\(location.column) \(text)").inserted
  }
}

/// A part of a `tls` section and its values. A certificate and its key are a pair.
struct TLSUse: Hashable {
  let part: TLSSettingsFault.Part
  let values: [String]
}
