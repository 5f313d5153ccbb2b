// The schemes of endpoint URLs, one table each. To add a scheme, add its table here and a connector that opens it.
// Whether a scheme can be opened is decided by the broker's list of connectors, not here.

import ByteStreams

package enum EndpointSchemes {
  package static let all: [SchemeGrammar] = [
    tty, tcp, tls, ws, wss, rfc2217, rfc2217s, telnet, unix, rfcomm, ble, ea, pty, exec, sim,
  ]

  package static func grammar(_ scheme: String) -> SchemeGrammar? { all.first { $0.scheme == scheme } }

  private typealias Parameter = SchemeGrammar.Parameter
  private typealias Rule = SchemeGrammar.Rule

  // MARK: serial lines

  package static let tty = SchemeGrammar(
    "tty", example: "tty:///dev/ttyUSB0?baud=115200", authority: .ignored(portIs: "baud"), path: .device,
    parameters: line + port, sharesLink: true, isExclusive: true, rules: lineRules)

  package static let rfc2217 = SchemeGrammar(
    "rfc2217", example: "rfc2217://host:4001?baud=115200", authority: .network(ports: 1...65535),
    parameters: line + port, sharesLink: true, rules: lineRules + remoteRules)

  package static let rfc2217s = SchemeGrammar(
    "rfc2217s", example: "rfc2217s://host:4001?baud=115200", authority: .network(ports: 1...65535),
    parameters: line + port + security, sharesLink: true, rules: lineRules + remoteRules + securityRules)

  package static let pty = SchemeGrammar(
    "pty", example: "pty:///run/baudway/modem0", authority: .none, path: .file,
    parameters: line + [
      Parameter("mode", .mode, standard: "0660", "permission bits of the slave"),
      Parameter("owner", .text, "user that owns the slave"),
      Parameter("group", .text, "group of the slave"),
    ], sharesLink: true, isExclusive: true, rules: lineRules)

  private static let line = [
    // termios2 accepts any rate that fits its 32 bits; the driver rounds it to what the hardware can do.
    Parameter("baud", .integer(1...4_294_967_295), standard: "115200", "bits per second"),
    Parameter("data", .integer(5...8), standard: "8", "data bits"),
    Parameter("parity", .words(["none", "even", "odd", "mark", "space"]), standard: "none", "parity bit"),
    Parameter(
      "stop", .words(["1", "1.5", "2"]), standard: "1", aliases: ["1.0": "1", "2.0": "2"],
      "stop bits; 1.5 with data=5 only"),
    Parameter(
      "flow", .words(["none", "rtscts", "xonxoff"]), standard: "none",
      refused: ["dtrdsr": "Linux has no DTR/DSR flow control; use rtscts or xonxoff"], "flow control"),
  ]

  private static let port = [
    Parameter("dtr", .words(["keep", "on", "off"]), standard: "keep", "DTR after opening"),
    Parameter("rts", .words(["keep", "on", "off"]), standard: "keep", "RTS after opening"),
    Parameter("hupcl", .flag, standard: "no", "drop DTR and RTS at the last close (HUPCL)"),
    Parameter(
      "exclusive", .either(.flag, .words(["strict"])), standard: "yes",
      "lock the port against other programs (TIOCEXCL and flock); strict: refuse it while another has it open"),
    Parameter("low-latency", .flag, standard: "yes", "forward bytes at once (ASYNC_LOW_LATENCY)"),
    Parameter(
      "rs485", .words(["off", "rts-on-send", "rts-after-send"]), standard: "off",
      "the kernel's RS-485 mode: RTS up while sending, or after it"),
    Parameter(
      "rs485-delay-before", .duration(.zero ... .seconds(1)), standard: "0s", "from RTS to the first bit"),
    Parameter(
      "rs485-delay-after", .duration(.zero ... .seconds(1)), standard: "0s", "from the last bit to RTS"),
  ]

  private static let lineRules = [
    Rule("stop") { url in
      url.string("stop") == "1.5" && url.integer("data") != 5 ? "1.5 stop bits exist with data=5 only" : nil
    },
    Rule("rs485-delay-before") { delayWithoutRS485($0, "rs485-delay-before") },
    Rule("rs485-delay-after") { delayWithoutRS485($0, "rs485-delay-after") },
  ]

  /// RFC 2217 has no request for these: the server's own configuration decides. The defaults are accepted, so that the
  /// settings of a `tty` can be taken over.
  private static let remoteRules = [("hupcl", "no"), ("exclusive", "yes"), ("low-latency", "yes"), ("rs485", "off")]
    .map { name, standard in
      Rule(name) { url in
        let value = url.string(name) ?? url.flag(name).map { $0 ? "yes" : "no" }
        return value == standard
          ? nil
          : "RFC 2217 has no request for this: set it at the server, and leave it out or write \(name)=\(standard)"
      }
    }

  private static func delayWithoutRS485(_ url: EndpointURL, _ name: String) -> String? {
    let isWaste = url.string("rs485") == "off" && url.duration(name) ?? .zero > .zero
    return isWaste ? "a delay needs rs485=rts-on-send or rs485=rts-after-send" : nil
  }

  // MARK: the network

  package static let tcp = SchemeGrammar(
    "tcp", example: "tcp://host:4001", authority: .network(ports: 1...65535), path: .ignored)

  package static let telnet = SchemeGrammar(
    "telnet", example: "telnet://host:4001", authority: .network(ports: 1...65535, defaultPort: 23), sharesLink: true)

  package static let tls = SchemeGrammar(
    "tls", example: "tls://host:4001?ca=ca.pem", authority: .network(ports: 1...65535), parameters: security,
    rules: securityRules)

  package static let ws = SchemeGrammar(
    "ws", example: "ws://host:8080/gps", authority: .network(ports: 1...65535, defaultPort: 80), path: .any,
    parameters: webSocket, rules: webSocketRules)

  package static let wss = SchemeGrammar(
    "wss", example: "wss://host/gps", authority: .network(ports: 1...65535, defaultPort: 443), path: .any,
    parameters: webSocket + security, rules: webSocketRules + securityRules)

  private static let webSocket = [
    Parameter("subprotocol", .text, "the WebSocket sub-protocol to ask for"),
    Parameter("user", .text, "the user's name, for a server that asks (HTTP Basic)"),
    Parameter("password", .secret, "the user's password"),
    Parameter("token", .secret, "a bearer token, instead of user and password"),
    Parameter("deflate", .flag, standard: "no", "offer to compress (permessage-deflate)"),
  ]

  private static let webSocketRules = [
    Rule("user") { $0.gives("user") && !$0.gives("password") ? "a user needs a password: add password=…" : nil },
    Rule("user") {
      $0.string("user")?.contains(":") == true ? "a user's name must not contain a colon (RFC 7617)" : nil
    },
    Rule("password") { $0.gives("password") && !$0.gives("user") ? "a password needs a user: add user=…" : nil },
    Rule("token") {
      $0.gives("token") && $0.gives("user") ? "a token replaces user and password: remove one or the other" : nil
    },
    // The token is sent unchanged in an HTTP field.
    Rule("token") { url in
      let isPlain = url.secret("token")?.reveal().utf8.allSatisfy { $0 > 0x20 && $0 < 0x7F } ?? true
      return isPlain ? nil : "a bearer token must be ASCII, without spaces"
    },
  ]

  private static let security = [
    Parameter("ca", .path, "certificates to trust instead of the system's"),
    Parameter("cert", .path, "the client certificate, for a server that asks for one"),
    Parameter("key", .path, "the private key of the client certificate"),
    Parameter("server-name", .text, "the name that the certificate must have, if it is not the host"),
    Parameter(
      "verify", .words(["full", "ca", "none"]), standard: "full",
      "what to verify: chain and name, only the chain, or nothing"),
    Parameter("min-version", .words(["1.2", "1.3"]), standard: "1.2", "the oldest TLS version to accept"),
    Parameter("ciphers", .text, "ciphers to offer, by OpenSSL's names, for a server that has none of the usual ones"),
  ]

  private static let securityRules = [
    Rule("cert") { $0.gives("cert") && !$0.gives("key") ? "a certificate needs its key: add key=…" : nil },
    Rule("key") { $0.gives("key") && !$0.gives("cert") ? "a key needs its certificate: add cert=…" : nil },
  ]

  // MARK: this machine

  package static let unix = SchemeGrammar(
    "unix", example: "unix:///run/x.sock", authority: .none, path: .file,
    rules: [
      Rule(nil) {
        let most = UnixAddress.mostBytes
        return $0.path.utf8.count > most ? "the path of a socket has \(most) bytes at most" : nil
      }
    ])

  package static let exec = SchemeGrammar(
    "exec", example: "exec:/usr/bin/prog?arg=-v", authority: .opaque, path: .file,
    parameters: [
      Parameter("arg", .text, isRepeatable: true, "an argument, passed unchanged: no shell reads it"),
      Parameter("pty", .flag, standard: "no", "give the program a terminal"),
    ])

  package static let sim = SchemeGrammar(
    "sim", example: "sim://nmea?rate=1", authority: .words(["echo", "nmea", "console", "flood", "sink"]),
    parameters: [
      Parameter("rate", .text, standard: "1", "position fixes per second, of nmea: 0.01 to 1000")
    ],
    sharesLink: true,
    rules: [
      Rule("rate") { $0.gives("rate") && $0.host != "nmea" ? "only sim://nmea has a rate" : nil },
      Rule("rate") { url in
        let rate = url.string("rate").flatMap(Double.init) ?? 0
        return (0.01...1000).contains(rate) ? nil : "must be a number from 0.01 to 1000"
      },
    ])

  // MARK: Bluetooth

  package static let rfcomm = SchemeGrammar(
    "rfcomm", example: "rfcomm://00:0A:3A:22:68:73?uuid=1101", authority: .bluetooth, path: .ignored,
    parameters: [Parameter("uuid", .uuid, standard: "1101", "service to look up when no channel is given")] + radio,
    sharesLink: true, isExclusive: true,
    rules: [
      Rule("uuid") {
        $0.gives("uuid") && $0.port != nil ? "a service is looked up only when no channel is given" : nil
      },
      adapter,
    ])

  package static let ble = SchemeGrammar(
    "ble", example: "ble://FFE0/00:0A:3A:22:68:73", authority: .service, path: .bluetooth,
    parameters: [
      Parameter(
        "name", .text, "scan for a device of this name, instead of the service; with * at its end, one that begins so"),
      Parameter(
        "profile", .words(["auto", "nus", "hm10", "fff0", "ff00"]), standard: "auto",
        "a known set of characteristics, or the first that notifies and the first that can be written"),
      Parameter("rx", .uuid, "characteristic to read from, which notifies or indicates"),
      Parameter("tx", .uuid, "characteristic to write to"),
      Parameter(
        "write", .words(["command", "request"]),
        "write without or with a response; default: what the device supports, without if it supports both"),
      Parameter("mtu", .integer(23...517), standard: "517", "the ATT MTU to ask for"),
      Parameter(
        "address-type", .words(["public", "random"]), "kind of the device's address; default: determined by a scan"),
    ] + radio, sharesLink: true, isExclusive: true,
    rules: [
      Rule("rx") { $0.gives("rx") && !$0.gives("tx") ? "rx and tx go together: add tx=…" : nil },
      Rule("tx") { $0.gives("tx") && !$0.gives("rx") ? "rx and tx go together: add rx=…" : nil },
      adapter,
      Rule("name") {
        $0.string("name") == "*" ? "'*' alone fits every device; write how the name begins, as in GoPro*" : nil
      },
      Rule("profile") { $0.gives("profile") && $0.gives("rx") ? "use either a profile, or rx and tx" : nil },
    ]
      + ["profile", "rx", "tx", "write", "mtu"].map { name in
        Rule(name) { $0.gives(name) && $0.port != nil ? "a channel (PSM) has no characteristics" : nil }
      })

  /// External Accessory exists on Apple systems only. The UUID is that of an accessory's service (iAP2), where some
  /// devices speak their own protocol.
  package static let ea = SchemeGrammar("ea", example: "ea://com.vendor.protocol/00:0A:3A:22:68:73") { rest in
    let parts = rest.prefix { $0 != "?" }.split(separator: "/")
    let device = parts.lazy.compactMap { BluetoothNames.address(String($0)) }.first ?? "ADDRESS"
    return "ea does not work on Linux; use rfcomm://\(device), ble://SERVICE/\(device), or, for a device that speaks "
      + "raw bytes at its accessory service, rfcomm://\(device)?uuid=00000000-DECA-FADE-DECA-DEAFDECACAFF; "
      + "'baudway scan' lists nearby devices with their URLs"
  }

  private static let adapter = Rule("adapter") { url in
    guard let adapter = url.string("adapter"), !BluetoothNames.isAdapter(adapter) else { return nil }
    return BluetoothNames.adapterExpected
  }
  private static let radio = [
    Parameter("adapter", .text, "the Bluetooth adapter, by name (hci0) or address"),
    Parameter("security", .words(["low", "medium", "high"]), "none, encrypted, or authenticated pairing"),
  ]
}
