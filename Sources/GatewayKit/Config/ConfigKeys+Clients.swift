// Keys of a route about its clients, its device and its packets. A value is read and refused by its kind (ValueKind: a
// network of `allow`, a size, a duration); it acts through RouteSettings, or Route+Admission for who may connect.

import StreamBroker

extension ConfigKeys {
  static let clients = KeySection<Config.Clients>(
    "clients",
    [
      BoundKey(
        "max", \.max, .integer(1...100_000), dependsOnOthers: true,  // see Config.Clients.standardMax
        says: "the most clients at once; default: 8 on a shared link, 64 for exec, otherwise 1000"),
      BoundKey("when-full", \.whenFull, .word, says: "what happens to a further client"),
      BoundKey(
        "writers", \.writers, .word, for: .sharedLinks,
        says: "which clients may send to the device; one: the client that has the writer role"),
      BoundKey(
        "takeover", \.takeover, .takeover, for: .sharedLinks, isShown: { $0.writers == .one },
        says: "with writers: one: which client may take the writer role from another, and when"),
      BoundKey(
        "slow", \.slow, .word,
        says:
          "what happens if a client does not read; auto: the device waits for a lone client, otherwise the client is disconnected"
      ),
      BoundKey(
        "buffer", \.buffer, .size(4096...16 << 20), dependsOnOthers: true,  // see Config.Clients.standardBuffer
        says: "bytes kept per client and direction; default: 64KiB on a shared link, otherwise 256KiB"),
      BoundKey(
        "backlog", \.backlog, .size(0...16 << 20), for: .sharedLinks,
        says: "how many of the last bytes of device output each new client gets first"),
      BoundKey(
        "idle-timeout", \.idleTimeout, .word("off", or: .duration(pause)),
        says: "end a client after this time without a byte in either direction"),
      BoundKey(
        "half-close", \.halfClose, .word("off", or: .duration(pause)), for: .sharedLinks,
        says:
          "how long a client still receives after its FIN, or the last byte sent to it; off: its FIN ends the session"),
      BoundKey("keepalive", \.keepalive, .onOff, says: "find dead clients within 30 seconds"),
      BoundKey("notices", \.notices, .onOff, says: "lines of text for people, such as the reason for a refusal"),
      BoundKey(
        "refuse-http", \.refuseHttp, .flag, for: .sharedLinks,
        says: "refuse a client that begins with an HTTP request, as web pages do, on tcp and tls listeners"),
      BoundKey(
        "per-address", \.perAddress, .word("off", or: .integer(1...100_000)),
        dependsOnOthers: true,  // see Config.Clients.standardPerAddress
        says:
          "how many from one address at once, except loopback and proxies; default: max - 1 where max is 4 or more"
      ),
      BoundKey(
        "allow", \.allow, .optional(.list(.network)), says: "networks from which clients may connect; default: all"),
      BoundKey(
        "deny", \.deny, .list(.network), isShown: { !$0.deny.isEmpty },
        says: "networks from which clients may not connect"),
      BoundKey(
        "users", \.users, .optional(.list(.text)), for: .listeners(handshakeSchemes),
        says: "users that may connect, by name or by certificate subject; default: all that can log in"),
      BoundKey(
        "banner", \.banner, .optional(.template),
        says: "text that each client gets first, with {route}, {endpoint}, {client} and escapes such as \\r\\n"),
    ], says: "which clients may connect, and what they may do")

  static let device = KeySection<Config.Device>(
    "device",
    [
      BoundKey(
        "open", \.open, .word, for: .sharedLinks, says: "when the device is open: while there are clients, or always"),
      BoundKey(
        "linger", \.linger, .duration(.zero ... .seconds(86400)), for: .sharedLinks,
        says: "how long the device stays open after the last client"),
      BoundKey(
        "retry", \.retry, .durations(pause), for: .sharedLinks,
        says: "pauses between attempts to open an absent device; it is also opened as soon as it appears"),
      BoundKey(
        "absent", \.absent, .word, for: .sharedLinks,
        says: "while the device is absent: hold clients and their input, discard their input, or close clients"),
      BoundKey(
        "connect-timeout", \.connectTimeout, .duration(pause),
        says: "how long one attempt to open or connect may take; for Bluetooth, only connecting"),
      BoundKey(
        "drain", \.drain, .duration(.zero ... .seconds(3600)),
        says: "input of a client that left is dropped after this time without progress"),
      BoundKey(
        "flush", \.flush, .word, for: .sharedLinks,
        says:
          "connect: discard output from before the link opened; disconnect: unsent input when the last client leaves"
      ),
      BoundKey("on-open", \.onOpen, .bytes, for: .sharedLinks, says: "bytes to send when the link has opened"),
      BoundKey("on-close", \.onClose, .bytes, for: .sharedLinks, says: "bytes to send before the link closes"),
      BoundKey(
        "reset", \.reset, .word("off", or: .resetRecipe), for: .sharedLinks,
        says: "the reset sequence on DTR and RTS that is recognised and replayed with exact times"),
    ], says: "when the device is opened, and what happens while it is absent")

  static let packets = KeySection<Config.Packets>(
    "packets",
    [
      BoundKey(
        "idle", \.idle, .optional(.duration(.milliseconds(1) ... .seconds(60))), says: "idle time that ends a packet"),
      BoundKey("max", \.max, .optional(.size(1...64 << 10)), says: "the length at which a packet ends"),
      BoundKey("delimiter", \.delimiter, .optional(.bytes), says: "the bytes after which a packet ends"),
      BoundKey(
        "exchange", \.exchange, .optional(.duration(.milliseconds(1) ... .seconds(60))), for: .sharedLinks,
        says: "one client's packet at a time, and its answer for that client only; how long the answer may take"),
    ], isSwitched: true, says: "for devices that use frames: keep each frame whole")

  static let capture = KeySection<Config.Capture>(
    "capture",
    [
      BoundKey(
        "file", \.file, .text, dependsOnOthers: true,  // see Config.Capture.standardFile
        says: "the file, with {route} and {date}; relative to the state folder; default: {route}-{date}.pcapng"),
      BoundKey("format", \.format, .word, says: "what is written: packets for Wireshark, lines of text, or the bytes"),
      BoundKey(
        "rotate", \.rotate, .word("off", or: .size(4096...1 << 40)), says: "the size at which the next file begins"),
      BoundKey(
        "rotate-every", \.rotateEvery, .word("off", or: .duration(.seconds(1) ... .seconds(366 * 86400))),
        says: "the next file begins at multiples of this time, in UTC: 24h is midnight"),
      BoundKey(
        "keep", \.keep, .word("all", or: .integer(0...10_000)), says: "how many older files of the route are kept"),
    ], isSwitched: true, says: "record the bytes of both directions and the events of the line")

  fileprivate static let pause = Duration.milliseconds(1)...Duration.seconds(86400)
}

extension KeyForm<Config.Clients.Takeover> {
  fileprivate static var takeover: Self {
    Self(
      kind: .either(.words(["refuse", "newest"]), .prefixed("idle", .duration(ConfigKeys.pause))),
      read: { Config.Clients.Takeover($0.description) }, value: { .text($0.description) })
  }
}
