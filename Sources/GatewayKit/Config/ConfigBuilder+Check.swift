// What only `check` says: files that are no certificates, and doors that are wider open than the users' roles make believe.

import StreamBroker
import StreamTLS

extension ConfigBuilder {
  /// Roles hold where somebody is asked who he is. Doors of this machine have a mode.
  mutating func checkOpenDoors(
    _ listeners: [ConfigURL], _ route: String, _ users: [Config.User], knowsCertificates: Bool
  ) {
    guard users.contains(where: { $0.roles != nil && $0.role(on: route) != nil }) else { return }
    for listener in listeners where ["tcp", "tls", "rfcomm"].contains(listener.url.scheme) {
      let isAsked = listener.url.scheme == "tls" && knowsCertificates
      guard !isAsked, Config.Listen(url: listener.url).role == .writer else { continue }
      let advice =
        listener.url.scheme == "tls" ? "'tls.client-ca' would ask for a certificate" : "tls, ws and wss can ask"
      reader.warn(
        "users have roles on this route, and here nobody is asked who he is: everybody may write; \(advice), and "
          + "'?role=monitor' lets nobody write",
        at: listener.place, listener.path)
    }
  }

  /// Answers to log-ins take as long as the slowest check, so that users can't be told apart by it; alike they take no longer than they must.
  mutating func checkHashes(of config: Config) {
    let kinds = config.hashesByKind.map(\.kind)
    guard kinds.count > 1, let place = top.present["users"] else { return }
    reader.warn(
      "passwords have hashes of different methods or costs (\(kinds.joined(separator: ", "))); each check costs as the hash says, and "
        + "who can measure that tells users apart; 'baudway hash-password' makes them alike",
      at: place, "users")
  }

  // MARK: - Files

  /// Reads certificates, keys, authorities and lists as listeners and endpoints would. Blocks.
  mutating func openFiles(of config: Config) {
    var seen: Set<Config.TLS> = []
    for route in config.routes {
      guard let tls = route.tls, seen.insert(tls).inserted else { continue }
      var whole = TLSServerSettings(tls, speaksHTTP: false)
      // One after the other, so that all that is wrong is said at once.
      whole.identities = whole.identities.filter { identity in
        var alone = TLSServerSettings(identities: [identity])
        alone.ciphers = whole.ciphers
        alone.minVersion = whole.minVersion
        return open(alone, tls, saysWarnings: true, route.name)
      }
      guard !whole.identities.isEmpty, whole.clientCA != nil else { continue }
      var withoutList = whole
      withoutList.crl = nil
      if open(withoutList, tls, saysWarnings: false, route.name), whole.crl != nil {
        _ = open(whole, tls, saysWarnings: false, route.name)
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
    // The system's authorities are not the file's.
    for settings in whole.ca == nil ? [identity] : [identity, trust] {
      do throws(TLSSettingsFault) { _ = try TLSClientContext(settings) } catch {
        report(error, at: endpoint.place, endpoint.path)
      }
    }
  }

  /// Files of certificates, keys and authorities that others could exchange, and keys that they can read.
  mutating func checkPermissions() {
    for (use, home) in tlsPlaces.sorted(by: { $0.value.place < $1.value.place }) {
      switch use.part {
      case .key: check(use.values.last, isSecret: true, at: home.place, home.path)
      case .certificate, .authority, .revocations: check(use.values.first, isSecret: false, at: home.place, home.path)
      case .ciphers: break
      }
    }
    for (_, section) in top.children["routes"] ?? [] {
      for endpoint in section.urls["endpoint"] ?? [] {
        for name in ["ca", "cert", "key"] where endpoint.url.grammar.parameter(name)?.kind == .path {
          check(endpoint.url.string(name), isSecret: name == "key", at: endpoint.place, endpoint.path)
        }
      }
    }
  }

  private mutating func check(_ file: String?, isSecret: Bool, at place: ConfigProblem.Place, _ path: String) {
    guard let file, told.insert("permissions \(file) \(isSecret)").inserted else { return }
    reader.checkPermissions(file, isSecret: isSecret, at: place, path)
  }

  private mutating func open(
    _ settings: TLSServerSettings, _ tls: Config.TLS, saysWarnings: Bool, _ route: String
  ) -> Bool {
    let identity = settings.identities.first.map { [$0.certificate, $0.key] } ?? []
    do throws(TLSSettingsFault) {
      let warnings = try TLSServerContext(settings).warnings
      guard saysWarnings, let use = tlsPlaces[TLSUse(part: .certificate, values: identity)] else { return true }
      for warning in warnings where isNew(warning, at: use.place) { reader.warn(warning, at: use.place, use.path) }
      return true
    } catch {
      let values =
        switch error.part {
        case .authority: [tls.clientCA]
        case .revocations: [tls.crl]
        case .ciphers: [tls.ciphers]
        case .certificate, .key, nil: identity
        }
      let use = tlsPlaces[TLSUse(part: error.part ?? .certificate, values: values.compactMap(\.self))]
      report(error, at: use?.place ?? .start, use?.path ?? "routes.\(route).tls")
      return false
    }
  }

  /// Once for each place: routes inherit.
  private mutating func report(_ fault: TLSSettingsFault, at place: ConfigProblem.Place, _ path: String) {
    if isNew(fault.description, at: place) { reader.report(fault.description, at: place, path) }
  }

  private mutating func isNew(_ text: String, at place: ConfigProblem.Place) -> Bool {
    told.insert("\(place.line):\(place.column) \(text)").inserted
  }
}

/// One use of what stands under `tls`: which part, with the values that make it: certificate and key are a pair.
struct TLSUse: Hashable {
  let part: TLSSettingsFault.Part
  let values: [String]
}
