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

  /// Reads certificates, keys, authorities and lists as a listener would. Blocks.
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
        return open(alone, saysWarnings: true, route.name)
      }
      guard !whole.identities.isEmpty, whole.clientCA != nil else { continue }
      var withoutList = whole
      withoutList.crl = nil
      if open(withoutList, saysWarnings: false, route.name), whole.crl != nil {
        _ = open(whole, saysWarnings: false, route.name)
      }
    }
  }

  private mutating func open(_ settings: TLSServerSettings, saysWarnings: Bool, _ route: String) -> Bool {
    do throws(TLSSettingsFault) {
      let warnings = try TLSServerContext(settings).warnings
      guard saysWarnings, let file = settings.identities.first?.certificate, let use = filePlaces[file] else {
        return true
      }
      for warning in warnings where !checkedFiles.contains(file) { reader.warn(warning, at: use.place, use.path) }
      checkedFiles.insert(file)
      return true
    } catch {
      let use = (error.file ?? settings.identities.first?.certificate).flatMap { filePlaces[$0] }
      if checkedFiles.insert(error.description).inserted {
        reader.report(error.description, at: use?.place ?? .start, use?.path ?? "routes.\(route).tls")
      }
      return false
    }
  }
}
