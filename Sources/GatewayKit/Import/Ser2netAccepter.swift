// What a connection of ser2net listens on: its accepter, as URLs of listeners.

import StreamBroker

extension RouteDraft {
  private static let defaultFiles = (certificate: "/etc/ser2net/ser2net.crt", key: "/etc/ser2net/ser2net.key")

  mutating func readAccepter() {
    guard let accepter = connection.accepter else {
      obstruct("it has no accepter", at: connection.location)
      return
    }
    guard let string = gensio(accepter, "accepter") else { return }
    readFilters(string, at: accepter.location)
    readBase(string, at: accepter.location)
  }

  private mutating func readFilters(_ string: GensioString, at place: Ser2netFile.Location) {
    var isSecure = false
    for layer in string.filters {
      switch layer.name {
      case "telnet":
        if isSecure { obstruct("telnet within ssl has no equivalent in this order", at: place) }
        readTelnet(layer, at: place)
      case "ssl":
        isSecure = true
        readTLS(layer, at: place)
      case "certauth":
        obstruct("certauth: its users (gtlssh) have no equivalent; see users and tls.client-ca", at: place)
      case "mux" where string.has("certauth"): break
      case "conacc": break
      case "trace": lose(layer.name, "see capture, which records a route in other formats", at: place)
      case "perf": lose(layer.name, "'baudway status --watch' shows rates", at: place)
      case "ratelimit": lose(layer.name, "the rate of bytes is not limited", at: place)
      default: obstruct("\(layer.name): its framing of bytes has no equivalent", at: place)
      }
    }
  }

  private mutating func readTelnet(_ layer: GensioString.Layer, at place: Ser2netFile.Location) {
    if layer.option("mode") == "client" { obstruct("a telnet client that accepts has no equivalent", at: place) }
    let isRemote = layer.option("rfc2217") ?? connection.defaults.value("rfc2217", of: "telnet") ?? "false"
    if Ser2netFile.flag(isRemote) != true {
      notes.append("clients can set the line by RFC 2217, which ser2net allows with telnet(rfc2217) only.")
    }
  }

  private mutating func readBase(_ string: GensioString, at place: Ser2netFile.Location) {
    let (isTelnet, isSecure, isConnecting) = (string.has("telnet"), string.has("ssl"), string.has("conacc"))
    let isPlain = !isTelnet && !isSecure
    switch string.base.name {
    case "tcp" where !isConnecting:
      readTCP(string, scheme: isTelnet ? isSecure ? "telnets" : "telnet" : isSecure ? "tls" : "tcp", at: place)
    case "unix" where !isConnecting && isPlain: readUnix(string)
    case "pty" where isConnecting && isPlain:
      guard let path = string.base.option("link") else {
        return obstruct("a pty without link=PATH has no name here", at: place)
      }
      listen = ["pty://\(Self.encoded(path))\(Self.permissions(string.base))"]
    case "dummy": obstruct("it has no address of its own: only a rotator leads to it", at: place)
    case let name where isConnecting:
      obstruct("conacc,\(name): the gateway does not connect to its clients", at: place)
    case "sctp", "udp":
      let other = string.base.name == "sctp" && obstacles.isEmpty ? "; with tcp in its place it would be a route" : ""
      obstruct("\(string.base.name) has no equivalent\(other)", at: place)
    case let name: obstruct("clients cannot come through \(name)", at: place)
    }
  }

  // MARK: - TCP

  /// `[[ipv4|ipv6|ipv6n4,]HOST,]PORT`, once or several times.
  private mutating func readTCP(_ string: GensioString, scheme: String, at place: Ser2netFile.Location) {
    if let rules = string.base.option("tcpd"), rules != "off" {
      lose("tcpd", "/etc/hosts.allow and hosts.deny are not obeyed; write clients.allow and deny", at: place)
    }
    guard let addresses = address(string.rest, at: place) else { return }
    for (family, host, port) in addresses {
      if let host, AddressBlock(host) == nil, host != "localhost" {
        obstruct("listeners have addresses, not names: write the address of \(Suggestion.quote(host))", at: place)
      }
      let shown =
        switch (family, host) {
        case ("ipv4", nil): "0.0.0.0"
        case ("ipv6", nil): "[::]"
        case (_, let host?): Self.bracketed(host)
        case (_, nil): ""
        }
      listen.append("\(scheme)://\(shown):\(port)")
    }
  }

  /// Nil when that was reported as an obstacle. SCTP and UDP may be named here, too.
  mutating func address(
    _ text: String, at place: Ser2netFile.Location
  ) -> [(family: String?, host: String?, port: Int)]? {
    var addresses: [(family: String?, host: String?, port: Int)] = []
    var (family, host): (String?, String?) = (nil, nil)
    func isPort(_ word: String) -> Bool {
      word.allSatisfy(\.isNumber) && Int(word).map((0...65535).contains) ?? false
    }
    let words = GensioString.words(text, separators: ", \t\n\r")
    for (index, word) in words.enumerated() {
      // Before a port, a number is an address to gensio, as to inet_aton(3).
      let isHost = host == nil && isPort(word) && words.dropFirst(index + 1).first.map(isPort) ?? false
      switch word.lowercased() {
      case "0" where isHost: host = "0.0.0.0"
      case "ipv4", "ipv6", "ipv6n4": family = word.lowercased()
      case "tcp": break
      case "udp", "sctp":
        obstruct("\(word.lowercased()) has no equivalent", at: place)
        return nil
      default:
        if isPort(word), !isHost, let port = Int(word) {
          addresses.append((family, host, port))
          (family, host) = (nil, nil)
        } else if host == nil {
          host = word.lowercased()
        } else {
          obstruct("\(Suggestion.quote(word)) is not a port's number", at: place)
          return nil
        }
      }
    }
    if host != nil || addresses.isEmpty {
      obstruct("\(Suggestion.quote(host ?? text)) is not a port's number", at: place)
      return nil
    }
    return addresses
  }

  static func bracketed(_ host: String) -> String {
    host.contains(":") ? "[\(host.replacing("%", with: "%25"))]" : host
  }

  // MARK: - Others

  private mutating func readUnix(_ string: GensioString) {
    let path = string.rest.trimmingSpaces
    listen = ["unix://\(Self.encoded(path))\(Self.permissions(string.base))"]
  }

  private static func permissions(_ layer: GensioString.Layer) -> String {
    let given = [("mode", layer.option("perm")), ("owner", layer.option("owner")), ("group", layer.option("group"))]
      .compactMap { name, value in value.flatMap { $0.isEmpty ? nil : "\(name)=\(encoded($0))" } }
    return given.isEmpty ? "" : "?\(given.joined(separator: "&"))"
  }

  private mutating func readTLS(_ layer: GensioString.Layer, at place: Ser2netFile.Location) {
    func setting(_ name: String) -> String? {
      let value = layer.option(name) ?? connection.defaults.value(name, of: "ssl")
      return value.flatMap { $0.isEmpty ? nil : $0 }
    }
    if layer.option("mode") == "client" { obstruct("a TLS client that accepts has no equivalent", at: place) }
    let key = setting("key") ?? Self.defaultFiles.key
    let isStandard = setting("key") == nil && setting("cert") == nil
    let certificate = setting("cert") ?? (setting("key") == nil ? Self.defaultFiles.certificate : key)
    if isStandard { notes.append("the certificate and the key are ser2net's default files.") }
    tls = [("certificate", YAMLText.scalar(certificate)), ("key", YAMLText.scalar(key))]
    let isAsked =
      layer.options.contains { $0.name == "clientauth" && Ser2netFile.flag($0.value) == true }
      || layer.option("clientauth") == nil
        && connection.defaults.value("clientauth", of: "ssl").flatMap(Ser2netFile.flag) == true
    guard isAsked else {
      if layer.option("ca") != nil { notes.append("CA has no effect without clientauth.") }
      return
    }
    if layer.option("allow-authfail").flatMap(Ser2netFile.flag) == true {
      lose("allow-authfail", "clients without a valid certificate are refused", at: place)
    }
    guard let authority = setting("ca"), !authority.hasSuffix("/") else {
      obstruct(
        "clientauth: certificates of clients are checked against one file, tls.client-ca, not against folders",
        at: place)
      return
    }
    tls.append(("client-ca", YAMLText.scalar(authority)))
    if connection.options.contains(where: { $0.name == "allowed-users" }) {
      obstruct("allowed-users: names in certificates are users here; see clients.users", at: place)
    }
    lose(
      "authdir", "every certificate of \(Suggestion.plain(authority)) is accepted, without a folder for each user",
      at: place)
  }
}
