// Checks the authority, path and settings of a URL by the scheme's table. Part of URLParser; opens and looks up
// nothing.

import Glibc

extension URLParser {
  // MARK: authority

  mutating func readAuthority(_ range: Range<Int>, path: Range<Int>, _ grammar: SchemeGrammar) -> (String, Int?) {
    let start = range.lowerBound
    if let at = scalars[range].firstIndex(of: "@") {
      let takesUser = grammar.parameter("user") != nil && grammar.parameter("password") != nil
      report("a URL takes no user name or password" + (takesUser ? " here: use user=… and password=…" : ""), at: at)
      return ("", nil)
    }
    switch grammar.authority {
    case .none, .opaque:
      if !range.isEmpty {
        // A bare name, or one that begins with . or ~, would be another file in the root directory.
        let isPath = !path.isEmpty && ![".", "~"].contains(scalars[start])
        let meant = isPath ? firstGood(["\(grammar.scheme):///\(string(start..<scalars.count))"]) : nil
        report("\(grammar.scheme) takes no host, as in \(grammar.example)", at: start, suggestion: meant)
      }
      return ("", nil)
    case .network(let ports, let standard):
      return readNetwork(range, ports: ports, standard: standard, isListening: false, grammar)
    case .listening(let ports, let standard):
      return readNetwork(range, ports: ports, standard: standard, isListening: true, grammar)
    case .ignored(let name): return readIgnored(range, path: path, portFor: name, grammar)
    case .words(let words):
      let word = string(range).lowercased()
      if !words.contains(word) {
        let message =
          word.isEmpty
          ? "a name is missing; expected " : "unknown \(grammar.scheme) \(Suggestion.quote(word)); expected "
        report(message + Suggestion.list(words), at: start, suggestion: Suggestion.nearest(to: word, in: words))
      }
      return (word, nil)
    case .bluetooth: return readAddressAndChannel(range)
    case .service: return readService(range)
    case .name(let what):
      if range.isEmpty { report("needs \(what), as in \(grammar.example)", at: start) }
      return (decode(range) ?? "", nil)
    }
  }

  /// A host that means nothing, except `usb`. Its port is the parameter `name`.
  private mutating func readIgnored(
    _ range: Range<Int>, path: Range<Int>, portFor name: String, _ grammar: SchemeGrammar
  ) -> (String, Int?) {
    let (host, port) = split(range)
    let kind = grammar.parameter(name)?.kind ?? .integer(0...Int.max)
    let number = port.flatMap { readNumber($0, kind, name) }
    let text = decode(host)?.lowercased() ?? ""
    if text == "dev" {
      let meant = firstGood(["\(grammar.scheme):///dev\(string(path.lowerBound..<scalars.count))"])
      report("'dev' after two slashes is a host, not a directory", at: range.lowerBound, suggestion: meant)
    } else if text.hasPrefix("~") {
      report(Self.tilde, at: range.lowerBound)
    }
    return (text == "usb" ? text : "", number)
  }

  private mutating func readNetwork(
    _ range: Range<Int>, ports: ClosedRange<Int>, standard: Int?, isListening: Bool, _ grammar: SchemeGrammar
  ) -> (String, Int?) {
    let start = range.lowerBound
    var host = ""
    var portRange: Range<Int>?
    if scalars[range].first == "[" {
      guard let close = scalars[range].firstIndex(of: "]") else {
        report("'[' without ']'", at: start)
        return ("", nil)
      }
      host = readIPv6(start + 1..<close)
      if close + 1 < range.upperBound {
        guard scalars[close + 1] == ":" else {
          report("expected ':' and a port after ']'", at: close + 1)
          return (host, nil)
        }
        portRange = close + 2..<range.upperBound
      }
    } else {
      if scalars[range].count(where: { $0 == ":" }) > 1 {
        report("an IPv6 address needs brackets, as in \(grammar.scheme)://[::1]:4001", at: start)
        return ("", nil)
      }
      let (name, port) = split(range)
      portRange = port
      guard let decoded = decode(name) else { return ("", nil) }
      host = decoded.lowercased()
      if isListening, host == "*" { host = "" }
      // A listener's address is not looked up in DNS.
      if isListening, host == "localhost" { host = "127.0.0.1" }
      if !(isListening && host.isEmpty) { checkHost(host, isListening, at: start, grammar) }
    }
    if let portRange { return (host, readNumber(portRange, .integer(ports), "port")) }
    if standard == nil { report("needs a port, as in \(grammar.example)", at: range.upperBound) }
    return (host, standard)
  }

  /// What stands in brackets.
  private mutating func readIPv6(_ range: Range<Int>) -> String {
    let host = address(string(range))
    if !isIPv6(host) {
      report("\(Suggestion.quote(host)) is not an IPv6 address", at: range.lowerBound)
    } else if lacksInterface(host) {
      report(
        "\(host) is a link-local address, which exists on each network: name its interface, as in [\(host)%eth0]",
        at: range.lowerBound)
    }
    return host
  }

  private mutating func readAddressAndChannel(_ range: Range<Int>) -> (String, Int?) {
    let separators = range.filter { scalars[$0] == ":" || scalars[$0] == "-" }
    let end = separators.count == 6 ? separators[5] : range.upperBound
    guard let address = BluetoothNames.address(string(range.lowerBound..<end)) else {
      report(
        "\(Suggestion.quote(string(range))) is not a Bluetooth address; expected one such as 00:0A:3A:22:68:73",
        at: range.lowerBound)
      return ("", nil)
    }
    guard end < range.upperBound else { return (address, nil) }
    // RFCOMM has 30 server channels (Bluetooth Core, RFCOMM with TS 07.10, section 5.4).
    return (address, readNumber(end + 1..<range.upperBound, .integer(1...30), "channel"))
  }

  private mutating func readService(_ range: Range<Int>) -> (String, Int?) {
    let (service, psm) = split(range)
    if BluetoothNames.address(string(range)) != nil {
      report(
        "a device address in the place of the service; expected ble://SERVICE/\(string(range))", at: range.lowerBound)
      return ("", nil)
    }
    let uuid = BluetoothNames.uuid(string(service))
    if uuid == nil {
      report(
        "\(Suggestion.quote(string(service))) is not a service; expected a UUID such as FFE0; 'baudway scan' lists nearby devices",
        at: service.lowerBound)
    }
    // An LE PSM has one byte (Bluetooth Core, L2CAP, section 4.22).
    return (uuid ?? "", psm.flatMap { readNumber($0, .integer(1...255), "PSM") })
  }

  /// Splits at the last colon.
  private func split(_ range: Range<Int>) -> (Range<Int>, Range<Int>?) {
    guard let colon = scalars[range].lastIndex(of: ":") else { return (range, nil) }
    return (range.lowerBound..<colon, colon + 1..<range.upperBound)
  }

  private mutating func readNumber(_ range: Range<Int>, _ kind: ValueKind, _ name: String) -> Int? {
    do {
      guard case .integer(let number) = try kind.read(string(range)) else { return nil }
      return number
    } catch {
      report("\(name): \(error.message)", at: range.lowerBound, suggestion: error.suggestion)
      return nil
    }
  }

  // MARK: path

  private static let tilde = "'~' is not expanded here; write the whole path, as in /home/NAME/…"

  mutating func readPath(_ range: Range<Int>, host: String, _ grammar: SchemeGrammar) -> String {
    let start = range.lowerBound
    if grammar.path == .device, host == "usb" { return readIdentity(range) }
    guard let path = decode(range) else { return "" }
    switch grammar.path {
    case .any: return path.isEmpty ? "/" : path
    case .none:
      if path.count > 1 { report("\(grammar.scheme) takes no path, as in \(grammar.example)", at: start) }
      return ""
    case .ignored: return ""
    case .file, .device:
      if !path.hasPrefix("/") || path.hasSuffix("/") {
        let isProgram = grammar.scheme == "exec" && !path.isEmpty && !path.contains("/")
        let advice =
          isProgram
          ? "needs the absolute path of a program ('command -v \(Suggestion.plain(path))' prints it), as in exec:/usr/bin/\(Suggestion.plain(path))"
          : "needs the absolute path of a file, as in \(grammar.example)"
        report(advice, at: start)
      } else if path.hasPrefix("/~/") {
        report(Self.tilde, at: start)
      } else if grammar.path == .device {
        checkPortName(range, grammar)
      }
      return path
    case .bluetooth:
      let peer = String(path.dropFirst())
      if peer.isEmpty { return "" }
      if let address = BluetoothNames.address(peer) { return "/" + address }
      let message =
        BluetoothNames.isDeviceUUID(peer)
        ? "a device UUID, as Apple systems generate them, is not valid here; 'baudway scan' shows the device's address"
        : "\(Suggestion.quote(peer)) is not a Bluetooth address; expected one such as 00:0A:3A:22:68:73"
      report(message, at: start + 1)
      return path
    }
  }

  /// A port's name has no settings and no wildcards: opening it would wait for a file with exactly that name. Escaped,
  /// a name may contain anything.
  private mutating func checkPortName(_ range: Range<Int>, _ grammar: SchemeGrammar) {
    if let wildcard = range.first(where: { scalars[$0] == "*" || scalars[$0] == "[" }) {
      report(
        "'\(scalars[wildcard])' in a port's name: a route leads to one port; write its name, as in tty:///dev/ttyUSB0 or "
          + "tty://usb/VID:PID, which 'baudway devices' prints", at: wildcard)
    } else if let (name, url) = PortNotation.cut(string(range)) {
      let mark = range.lowerBound + name.unicodeScalars.count
      let digits = String(scalars[mark].value, radix: 16, uppercase: true)
      // Keep the parameters that already follow the '?'.
      let query = scalars[range.upperBound...].dropFirst()
      let more = query.isEmpty ? "" : (url.contains("?") ? "&" : "?") + string(query.startIndex..<query.endIndex)
      report(
        "'\(scalars[mark])' in a port's name: settings are parameters (write a '\(scalars[mark])' of the name itself as %\(digits))",
        at: mark, suggestion: firstGood([url + more, url]))
    }
  }

  /// `/VID:PID[/SERIAL[/INTERFACE]]`. A serial number may contain anything, so the parts are split before decoding.
  private mutating func readIdentity(_ range: Range<Int>) -> String {
    var parts: [String] = []
    for part in scalars[range].dropFirst().split(separator: "/", omittingEmptySubsequences: false) {
      guard let text = decode(part.startIndex..<part.endIndex) else { return "" }
      parts.append(text)
    }
    if let identity = USBIdentity(parts) { return identity.path }
    let message = "not a USB identity; expected usb/VID:PID, usb/VID:PID/SERIAL or usb/VID:PID/SERIAL/INTERFACE"
    report(message, at: range.lowerBound)
    return ""
  }

  // MARK: settings

  typealias Given = (setting: EndpointURL.Setting, origin: Origin)

  mutating func readSettings(_ query: Range<Int>, _ grammar: SchemeGrammar) -> [Given] {
    var given: [Given] = []
    var start = query.lowerBound
    while start < query.upperBound {
      let end = scalars[start..<query.upperBound].firstIndex(of: "&") ?? query.upperBound
      let equals = scalars[start..<end].firstIndex(of: "=") ?? end
      let name = string(start..<equals)
      if name.isEmpty {
        report("a parameter without a name", at: start)
      } else if equals == end {
        if let parameter = known(name, grammar, at: .text(start)) {
          report("\(name): needs a value; expected \(parameter.kind.expected)", at: start)
        }
      } else if let value = decode(equals + 1..<end) {
        read(name, value, grammar, at: .text(start), .text(equals + 1), &given)
      }
      start = end + 1
    }
    for (index, item) in beside.enumerated() {
      let (name, value) = (Origin.beside(index, isValue: false), Origin.beside(index, isValue: true))
      read(item.name, item.value, grammar, at: name, value, &given)
    }
    return given
  }

  private mutating func known(
    _ name: String, _ grammar: SchemeGrammar, at origin: Origin, value: String? = nil
  ) -> SchemeGrammar.Parameter? {
    if let parameter = grammar.parameter(name) { return parameter }
    if isFull { return nil }
    if grammar.authority == .bluetooth, name == "channel" {
      report("write the channel after the address, as in \(grammar.scheme)://00:0A:3A:22:68:73:3", at: origin)
      return nil
    }
    var word = "parameter"
    if case .beside = origin { word = "key" }
    let none = grammar.parameters.isEmpty ? "; \(grammar.scheme) has none" : ""
    let names = grammar.parameters.map(\.name)
    var suggestion = Suggestion.nearest(to: name, in: names)
    if ["flow=rtscts", "flow=xonxoff"].contains(suggestion), let value, ValueKind.isNo(value) {
      suggestion = "flow=none"
    }
    if suggestion == nil, names.contains("baud"), let settings = PortNotation.settings(name) { suggestion = settings }
    report("unknown \(word) \(Suggestion.quote(name))\(none)", at: origin, suggestion: suggestion, unknown: name)
    return nil
  }

  private mutating func read(
    _ name: String, _ text: String, _ grammar: SchemeGrammar, at nameOrigin: Origin, _ valueOrigin: Origin,
    _ given: inout [Given]
  ) {
    guard let parameter = known(name, grammar, at: nameOrigin, value: text) else { return }
    let text = parameter.aliases[text] ?? text
    if !parameter.isRepeatable, said.contains(name) {
      report("'\(name)' is given twice", at: nameOrigin)
      return
    }
    if let reason = parameter.refused[text] {
      report("\(name): \(reason)", at: valueOrigin)
      return
    }
    do {
      let value = try parameter.kind.read(parameter.kind.isSecret ? reveal(text).get() : text)
      if !parameter.support.grants(value.description) {
        report("\(name): \(Suggestion.quote(value.description)) is not in \(Version.name)", at: valueOrigin)
      }
      if !parameter.isRepeatable { said.insert(name) }
      given.append((EndpointURL.Setting(name: name, value: value), valueOrigin))
    } catch {
      report("\(name): \(error.message)", at: valueOrigin, suggestion: error.suggestion)
    }
  }

  /// The port of a URL such as `tty://any:19200/dev/cu.x` is the setting `name`.
  mutating func imply(_ name: String, _ port: Int, at authority: Range<Int>, _ given: inout [Given]) {
    let origin = Origin.text(split(authority).1?.lowerBound ?? authority.lowerBound)
    if let twice = given.first(where: { $0.setting.name == name }) {
      report("'\(name)' is given twice: as the port and by name", at: twice.origin)
    } else {
      given.append((EndpointURL.Setting(name: name, value: .integer(port)), origin))
    }
  }
}
