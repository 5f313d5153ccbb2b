// Keys about who may come in, and through which doors: TLS, WebSocket, users, limits per address.

import StreamBroker

extension ConfigKeys {
  /// Listeners whose clients say something before they are let in.
  static let greeting: Set = ["tls", "ws", "wss"]

  static let users = ConfigKey(
    "users",
    .named(
      .mapping([
        ConfigKey("password", .secret, says: "as baudway hash-password prints it, or file:NAME"),
        ConfigKey("token", .list(.secret), says: "what programs show instead, each alone or file:NAME"),
        ConfigKey(
          "certificate", .list(.text),
          says:
            "subjects of client certificates that are this user: CN=ada,O=lab, or the common or alternative name alone"),
        ConfigKey(
          "roles", .named(.value(.words(["monitor", "writer"])), .any),
          says:
            "monitor or writer, by patterns of routes such as lab-*; the nearest counts; writer everywhere unless it is said"
        ),
      ]), .any), support: .later(), listeners: greeting, says: "who may log in")

  static let proxies = ConfigKey(
    "proxies", .list(.network), says: "networks whose PROXY headers are believed")

  static let limits = ConfigKey(
    "limits",
    .mapping([
      ConfigKey(
        "handshakes", .either(.words(["auto"]), .integer(1...Config.Limits.mostHandshakes)), "auto",
        says: "unfinished ones at a time, of all addresses; auto: by the limits of open files and of memory"),
      ConfigKey(
        "handshakes-per-address", .integer(1...100_000), "100",
        says: "that one address may have under way"),
      ConfigKey(
        "connects-per-second", .either(.words(["off"]), .integer(1...100_000)), "off",
        says: "new clients of one address"),
      ConfigKey(
        "reserve-descriptors", .words(Config.Limits.ReserveDescriptors.allCases.map(\.rawValue)), "auto",
        says: "whether the last open files are kept for devices, first clients of other routes and the control socket"),
    ]), says: "for the whole gateway")

  static let tls = ConfigKey(
    "tls",
    .mapping([
      ConfigKey("certificate", .path, says: "the chain, in PEM"), ConfigKey("key", .path, says: "its key, in PEM"),
      ConfigKey(
        "certificates",
        .mappings([
          ConfigKey("certificate", .path, says: "the chain, in PEM"), ConfigKey("key", .path, says: "its key, in PEM"),
        ]), says: "others, chosen by the name that is asked for (SNI)"),
      ConfigKey("client-ca", .path, says: "who signs certificates of clients"),
      ConfigKey(
        "client-auth", .words(Config.TLS.ClientAuth.allCases.map(\.rawValue)), "required",
        says: "with client-ca: whether clients need a certificate"),
      ConfigKey("crl", .path, says: "with client-ca: certificates that are revoked"),
      ConfigKey(
        "min-version", .words(Config.TLS.Version.allCases.map(\.rawValue)), "1.2", says: "of the protocol"),
      ConfigKey("ciphers", .text, says: "of TLS 1.2, in OpenSSL's words"),
    ]), support: .later(), listeners: ["tls", "wss"], says: "for tls, telnets and wss listeners")

  static let websocket = ConfigKey(
    "websocket",
    .mapping([
      ConfigKey("origins", .list(.text), says: "pages that may connect, beside our own; * is all"),
      ConfigKey(
        "hosts", .list(.text),
        says:
          "names of the gateway in pages' URLs, beside its addresses, the machine's names and its certificate's; * is any"
      ),
      ConfigKey("deflate", .flag, "no", says: "compress messages"),
      ConfigKey("max-message", .size(1...1 << 30), "16MiB", says: "the longest that is taken"),
      ConfigKey(
        "ping", .either(.words(["off"]), .duration(.seconds(1) ... .seconds(3600))), "20s",
        says: "after so long a silence"),
    ]), support: .later(), listeners: ["ws", "wss"], says: "for ws and wss listeners")
}
