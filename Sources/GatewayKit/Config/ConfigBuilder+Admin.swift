// Settings → the admin listener, and the checks that keep it from being reachable by accident.

import StreamBroker

extension ConfigBuilder {
  /// `admin` with its listeners and their TLS. Call it before the routes: they are compared with it.
  mutating func admin(_ keys: Config.Admin, _ users: [Config.User]) -> Config.Admin {
    var admin = keys
    guard let location = top.present["admin"] else { return admin }
    if top.present["admin.listen"] == nil, top.present.keys.contains(where: { $0.hasPrefix("admin.") }) {
      reader.warn("has no effect without 'listen', such as 'listen: http://127.0.0.1:8080'", at: location, "admin")
      return Config.Admin()
    }
    let listeners = top.urls["admin.listen"] ?? []
    for listener in listeners where !claimSharedPort(listener) { claimAddress(listener) }
    // As for a route that sets no `tls` itself.
    admin.tls = tls(Settings(own: [:], inherited: inherited), "", ConfigSection(location: location), listeners)
    for listener in listeners {
      checkCompany(listener, admin.tls)
      checkProxies(listener)
      if !admin.insecure { checkReach(listener, users) }
    }
    if let setting = top.settings["admin.hosts"] {
      for host in admin.hosts where !WebOrigin.isHostName(host) {
        reader.report(
          "\(Suggestion.quote(host)) is not a host name; expected one such as gw.example.org or *.example.org, or *",
          at: setting.key, setting.path, suggestion: WebOrigin.hostName(in: host))
      }
    }
    admin.listen = listeners.map { Config.Listen(url: $0.url) }
    return admin
  }

  /// Reports a listener that other machines can reach, without TLS or without users.
  private mutating func checkReach(_ listener: ConfigURL, _ users: [Config.User]) {
    let listen = Config.Listen(url: listener.url)
    guard !listen.isLoopback else { return }
    var missing: [String] = []
    if !listen.usesTLS { missing.append("TLS (https)") }
    if !users.contains(where: \.hasRole) { missing.append("'users'") }
    guard !missing.isEmpty else { return }
    reader.report(
      "other machines can reach this address, and it has no \(missing.joined(separator: " and no ")); listen on 127.0.0.1, "
        + "add what is missing, or allow it with 'insecure: yes'", at: listener.location, listener.path)
  }
}

extension Config.Listen {
  /// Whether only this machine can reach it.
  var isLoopback: Bool {
    guard let host else { return false }
    return host == "localhost" || host == "::1" || SocketAddress(numeric: host, port: 0)?.isLoopback ?? false
  }
}
