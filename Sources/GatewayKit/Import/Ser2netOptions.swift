// Options and the timeout of a connection of ser2net, as policies of a route.

import StreamBroker

extension RouteDraft {
  /// Options without an equivalent, with the value that changes nothing; a switch that is off never does.
  static let unknownHere: [String: (idle: String, reason: String)] = [
    "signature": ("", "the gateway names itself to clients of RFC 2217"),
    "closeon": ("", "no bytes of the device end a session"),
    "sendon": ("", "bytes are sent at once; packets.delimiter would keep lines whole"),
    "telnet-brk-on-sync": ("", "a telnet Synch sends no break; IAC BREAK does"),
    "timeout-on-os-queue": ("", "dead clients are found by keepalive"),
    "connback": ("", "the gateway does not connect to its clients"),
    "connback-timeout": ("", "the gateway does not connect to its clients"),
    "connector-retry-time": ("10", "the pauses between tries grow; see device.retry"),
    "accepter-retry-time": ("10", "an address that is in use is tried again in pauses that grow"),
    "chardelay-scale": ("20", "bytes are sent at once"),
    "chardelay-min": ("1000", "bytes are sent at once"),
    "chardelay-max": ("20000", "bytes are sent at once"),
    "dev-to-net-bufsize": ("64", "buffers have at least 4KiB; see clients.buffer"),
    "net-to-dev-bufsize": ("64", "buffers have at least 4KiB; see clients.buffer"),
    "led-tx": ("", "no LED shows traffic"),
    "led-rx": ("", "no LED shows traffic"),
    "led-conn": ("", "no LED shows clients"),
    "mdns": ("", "listeners are not announced by mDNS"),
    "trace-read": ("", "see capture, which records a route in other formats"),
    "trace-write": ("", "see capture, which records a route in other formats"),
    "trace-both": ("", "see capture, which records a route in other formats"),
  ]
  /// Options with an equivalent, or of another option, or without an effect where nobody logs in.
  private static let quiet: Set = [
    "kickolduser", "max-connections", "banner", "openstr", "closestr", "remaddr", "no-acc-to-con", "no-con-to-acc",
    "chardelay", "authdir", "pamauth", "allowed-users", "mdns-interface", "mdns-nettype", "mdns-name", "mdns-type",
    "mdns-domain", "mdns-host", "mdns-txt", "mdns-sysattrs", "trace-hexdump", "trace-timestamp", "trace-read-hexdump",
    "trace-read-timestamp", "trace-write-hexdump", "trace-write-timestamp", "trace-both-hexdump",
    "trace-both-timestamp",
  ]
  /// A text of a configuration may have 4 KiB.
  private static let textLimit = 4000
  private static let mostAddresses = 1000

  /// Whether an option with this value has no equivalent.
  static func isLost(_ name: String, _ value: String) -> Bool {
    guard let known = unknownHere[name] else { return false }
    return value != known.idle && !value.isEmpty && Ser2netFile.flag(value) != false
  }

  mutating func readOptions(_ serial: SerialWords?) {
    let most = max(1, min(option("max-connections").flatMap { Int($0.value) } ?? 1, 65536))
    if most > 1 { clients.append(("max", String(most))) }
    readTimeout()
    if isOn("kickolduser") { clients.append(("when-full", "replace-oldest")) }
    if isOn("no-acc-to-con") { clients.append(("writers", "none")) }
    if isOn("no-con-to-acc") {
      obstruct("no-con-to-acc: clients always get what the device sends", at: option("no-con-to-acc")!.location)
    }
    readAddresses()
    if most > 3 { clients.append(("per-address", "off")) }
    readTexts(serial)
    for option in connection.options where !Self.quiet.contains(option.name) { readOther(option) }
    // Endpoints such as tcp have a link for each client, unless that is said.
    let scheme = endpoint.map { String($0.prefix { $0 != ":" }) } ?? ""
    let isPrivate = EndpointSchemes.grammar(scheme).map { !$0.sharesLink } ?? false
    let needsOne = most > 1 || isOn("no-acc-to-con") || !device.isEmpty
    if isPrivate { link = needsOne ? "shared" : nil } else { link = nil }
  }

  private func option(_ name: String) -> Ser2netFile.Option? {
    connection.options.last { $0.name == name }
      ?? connection.defaults.value(name, of: "ser2net").map {
        Ser2netFile.Option(name: name, value: $0, location: connection.location)
      }
  }

  private func isOn(_ name: String) -> Bool { option(name).flatMap { Ser2netFile.flag($0.value) } ?? false }

  private mutating func readOther(_ option: Ser2netFile.Option) {
    guard let known = Self.unknownHere[option.name] else {
      lose(Suggestion.plain(option.name), "ser2net has no such option either", at: option.location)
      return
    }
    guard Self.isLost(option.name, option.value) else { return }
    let isTelnet = connection.accepter?.text.contains("telnet") ?? false
    if !isTelnet, ["telnet-brk-on-sync", "signature"].contains(option.name) { return }
    lose(option.name, known.reason, at: option.location)
  }

  private mutating func readTimeout() {
    guard let timeout = connection.timeout, timeout.text != "0" else { return }
    let text = timeout.text.lowercased()
    let number =
      text.hasPrefix("0x") ? Int(text.dropFirst(2), radix: 16) : text.hasPrefix("0") ? Int(text, radix: 8) : Int(text)
    guard let number, number >= 0 else {
      lose("timeout", "\(Suggestion.quote(timeout.text)) is not a number of seconds", at: timeout.location)
      return
    }
    guard number > 0 else { return }
    if number > 86400 { lose("timeout", "at most 24h", at: timeout.location) }
    clients.append(("idle-timeout", Units.text(.seconds(min(number, 86400)))))
  }

  // MARK: - Who may connect

  /// `remaddr`: what cannot be said here is left out, so that the list only gets shorter.
  private mutating func readAddresses() {
    let options = connection.options.filter { $0.name == "remaddr" }
    let given = options.isEmpty ? [option("remaddr")].compactMap(\.self) : options
    var allowed: [String] = []
    let words = given.flatMap { option in option.value.split(separator: ";").map { (String($0), option.location) } }
    if let (_, place) = words.dropFirst(Self.mostAddresses).first {
      lose("remaddr", "addresses beyond the first \(Self.mostAddresses) may not connect", at: place)
    }
    for (text, place) in words.prefix(Self.mostAddresses) {
      let isBack = text.hasPrefix("!")
      if isBack { lose("remaddr", "the gateway does not connect to its clients", at: place) }
      let parts = GensioString.words(isBack ? String(text.dropFirst()) : text, separators: ", \t")
        .filter { !["ipv4", "ipv6", "ipv6n4", "tcp", "udp", "sctp"].contains($0.lowercased()) }
      guard parts.count == 2, AddressBlock(parts[0]) != nil, let port = Int(parts[1]) else {
        lose("remaddr", "\(Suggestion.quote(text)) is not an address with a port, so it may not connect", at: place)
        continue
      }
      if port != 0 { notes.append("remaddr: \(Suggestion.plain(parts[0])) may connect from any of its ports.") }
      if !allowed.contains(parts[0]) { allowed.append(parts[0]) }
    }
    guard let (_, place) = words.first else { return }
    if allowed.isEmpty {
      obstruct("remaddr: nobody could connect", at: place)
    } else {
      clients.append(("allow", YAMLText.oneOrList(allowed.map(YAMLText.scalar))))
    }
  }

  // MARK: - Texts

  private mutating func readTexts(_ serial: SerialWords?) {
    let address = listen.first.map { String($0.split(separator: ":").last?.prefix { $0 != "?" } ?? "") } ?? ""
    func fixed(_ letter: Character) -> Ser2netString.Meaning? {
      switch letter {
      case "p": .text(address)
      case "B", "s": .text(serial?.shown ?? "")
      default: nil
      }
    }
    if let banner = text("banner") {
      func meaning(_ letter: Character) -> Ser2netString.Meaning? {
        switch letter {
        case "d": .name("{endpoint}")
        case "o", "N": .name("{route}")
        case "I": .name("{client}")
        default: fixed(letter)
        }
      }
      let text = banner.string.banner(meaning)
      leaveOut(banner.string.lost(meaning), of: banner.option)
      add(text, "banner", to: \.clients, from: banner.option)
    }
    for (name, key) in [("openstr", "on-open"), ("closestr", "on-close")] {
      guard let bytes = text(name) else { continue }
      func meaning(_ letter: Character) -> Ser2netString.Meaning? {
        switch letter {
        case "d": .text(connection.connector?.text ?? "")
        case "o", "N": .text(connection.name)
        default: fixed(letter)
        }
      }
      leaveOut(bytes.string.lost(meaning), of: bytes.option)
      add(Escapes.text(of: bytes.string.bytes(meaning)), key, to: \.device, from: bytes.option)
    }
  }

  private mutating func text(_ name: String) -> (option: Ser2netFile.Option, string: Ser2netString)? {
    guard let option = option(name), !option.value.isEmpty else { return nil }
    for mark in ["*{", "={"] where option.value.contains(mark) {
      lose(name, "it includes a file, which is not read", at: option.location)
      return nil
    }
    return (option, Ser2netString(option.value))
  }

  private mutating func leaveOut(_ letters: [String], of option: Ser2netFile.Option) {
    guard !letters.isEmpty else { return }
    lose(
      option.name, "\(letters.joined(separator: " ")) left out, which changes with time or client", at: option.location)
  }

  private mutating func add(
    _ text: String, _ key: String, to pairs: WritableKeyPath<RouteDraft, [Pair]>, from option: Ser2netFile.Option
  ) {
    if text.isEmpty { return }
    guard text.utf8.count <= Self.textLimit else {
      lose(option.name, "longer than \(Self.textLimit) bytes", at: option.location)
      return
    }
    self[keyPath: pairs].append((key, YAMLText.scalar(text)))
  }
}
