// Guesses the URL that an invalid text may have meant. A suggestion is always a valid URL of an accepted scheme,
// without a warning.

extension URLParser {
  /// The first of these texts that is a valid URL without a secret: a secret may be the value of a variable.
  func firstGood(_ texts: [String?]) -> String? {
    if isGuess { return nil }
    return texts.lazy.compactMap { $0 }.first {
      var guess = URLParser($0, beside: [], schemes: schemes, built: built, in: place, reveal: reveal, isGuess: true)
      guard let url = guess.parse(), guess.problems.isEmpty, url.warnings.isEmpty else { return false }
      return !url.settings.contains { if case .secret = $0.value { true } else { false } }
    }
  }

  /// For a text without a scheme: a serial port's name, or a host and port.
  func urlWithScheme() -> String? {
    let name = text.hasPrefix("/dev/") ? text : text.hasPrefix("tty") ? "/dev/\(text)" : nil
    let isNetwork = scalars.lastIndex(of: ":").map { isDigits($0 + 1..<scalars.count) } ?? false
    return firstGood([name.map { PortNotation.url($0) ?? "tty://\($0)" }, isNetwork ? "tcp://\(text)" : nil])
  }

  /// For a scheme that other tools have (pyserial, ser2net, socat, Zigbee2MQTT): what it is here. Nil for others.
  func otherTools(
    _ name: String, after start: Int, among known: [SchemeGrammar]
  ) -> (message: String, suggestion: String?)? {
    let rest = string(start..<scalars.count)
    let bare = String(rest.prefix { $0 != "?" }.drop { $0 == "/" })
    func isHere(_ scheme: String) -> Bool { known.contains { $0.scheme == scheme } }
    let message = "unknown scheme \(Suggestion.quote(name))"
    switch name {
    case "socket", "tcpip", "tcp4", "tcp6", "raw":
      return (message + "; a TCP connection is tcp://host:port", firstGood(["tcp://\(bare)"]))
    case "serial", "uart", "com", "file", "rs232", "rs485", "device", "dev":
      let last = bare.split(separator: "/").last.map(String.init) ?? ""
      if PortNotation.isWindows(last) {
        return (
          message
            + "; \(Suggestion.quote(last)) is a port of Windows; here a port is a path, such as tty:///dev/ttyUSB0",
          nil
        )
      }
      let path = bare.hasPrefix("dev/") ? "/\(bare)" : "/dev/\(last)"
      guard isHere("tty") else {
        return (message + "; a listener for programs of this machine is pty:///run/name", nil)
      }
      return (
        message + "; a serial port is tty:///dev/ttyUSB0, with ?baud=… and others",
        firstGood([PortNotation.url(path), "tty://\(path)\(rate(in: rest))"])
      )
    case "mdns", "zeroconf", "bonjour", "dnssd":
      let host = bare.prefix { $0 != "/" && $0 != ":" }
      return (
        message + "; services are not looked up: write the device's name and port, as in tcp://"
          + "\(Suggestion.plain(host.isEmpty ? "name" : String(host))).local:4001", nil
      )
    case "http": return (message + "; a WebSocket is ws://host/path", firstGood(["ws://\(bare)"]))
    case "https": return (message + "; a WebSocket over TLS is wss://host/path", firstGood(["wss://\(bare)"]))
    case "ssl", "tcps", "tls1.2": return (message + "; TCP over TLS is tls://host:port", firstGood(["tls://\(bare)"]))
    case "loop" where isHere("sim"): return (message + "; a simulated device that echoes is sim://echo", "sim://echo")
    case "udp", "udp4", "udp6": return (message + "; datagrams are not carried; use tcp or rfc2217", nil)
    default: return nil
    }
  }

  /// "?baud=9600" for pyserial's `?baudrate=9600`; empty if there is none.
  private func rate(in rest: String) -> String {
    for part in rest.split(whereSeparator: { "?&".contains($0) }) {
      for name in ["baudrate=", "baud=", "speed="] where part.hasPrefix(name) && part.utf8.count > name.utf8.count {
        return "?baud=\(part.dropFirst(name.count))"
      }
    }
    return ""
  }

  /// For a text whose scheme is not followed by two slashes: `tcp:4001`, `tcp:://host:4001`, `tty:/dev/ttyS0`.
  func urlWithSlashes(_ grammar: SchemeGrammar, after start: Int) -> String? {
    let rest = string(start..<scalars.count)
    let bare = String(rest.drop { $0 == ":" || $0 == "/" })
    switch grammar.path {
    case .file, .device: return rest.hasPrefix("/") ? firstGood(["\(grammar.scheme):///\(bare)"]) : nil
    default: return firstGood(["\(grammar.scheme)://\(bare)", "\(grammar.scheme)://:\(bare)"])
    }
  }

  /// For a text pasted from a page, with special spaces in it.
  func urlWithoutOddSpaces() -> String? {
    var plain = String.UnicodeScalarView()
    plain.append(contentsOf: scalars.filter { !Typography.isOddSpace($0) })
    return firstGood([String(plain)])
  }

  /// Works on scalars: a space with a combining mark after it is one `Character`, which is not a space, and the text
  /// would not change.
  func urlWithEscapedSpaces() -> String? {
    firstGood([scalars.map { $0 == " " ? "%20" : String($0) }.joined()])
  }

  /// The URL before a comment, with the space that is missing between them.
  func urlBeforeComment(at offset: Int) -> String? {
    firstGood([string(0..<offset)]).map { "\($0) \(string(offset..<scalars.count))" }
  }

  /// `exec:ls -l` → exec:/usr/bin/ls?arg=-l. Nil for other schemes. No URL if quotes suggest that a shell was expected.
  func programWithArguments() -> (program: String, url: String?)? {
    guard text.lowercased().hasPrefix("exec:"), schemes.contains(where: { $0.scheme == "exec" }) else { return nil }
    let words = string(5..<scalars.count).split(separator: " ")
    guard let program = words.first, !program.contains("?") else { return nil }
    if text.contains("'") || text.contains("\"") { return (String(program), nil) }
    let path = program.hasPrefix("/") ? String(program) : "/usr/bin/\(program)"
    let arguments = words.dropFirst().map { "arg=\(Self.escaped($0))" }
    return (String(program), firstGood(["exec:\(path)?\(arguments.joined(separator: "&"))"]))
  }

  private static func escaped(_ word: Substring) -> String {
    String(word).replacing("%", with: "%25").replacing("&", with: "%26").replacing("#", with: "%23")
  }
}
