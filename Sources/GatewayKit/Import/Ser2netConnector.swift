// What a connection of ser2net leads to: its connector, as an endpoint's URL.

import StreamBroker

extension RouteDraft {
  /// Returns the settings of a serial line.
  mutating func readConnector() -> SerialWords? {
    guard let connector = connection.connector else {
      obstruct("it has no connector", at: connection.location)
      return nil
    }
    let place = connector.location
    guard let string = gensio(connector, "connector") else { return nil }
    var filters = string.filters.map(\.name)
    for layer in string.filters where ["keepopen", "trace", "perf", "ratelimit"].contains(layer.name) {
      filters.removeAll { $0 == layer.name }
      switch layer.name {
      case "keepopen": keepOpen(layer, at: place)
      case "ratelimit": lose(layer.name, "the rate of bytes is not limited", at: place)
      case "perf": lose(layer.name, "'baudway status --watch' shows rates", at: place)
      default: lose(layer.name, "see capture, which records a route in other formats", at: place)
      }
    }
    let security = string.filters.last { $0.name == "ssl" }
    let isRemote = string.filters.contains { layer in
      layer.name == "telnet"
        && Ser2netFile.flag(layer.option("rfc2217") ?? connection.defaults.value("rfc2217", of: "telnet") ?? "no")
          == true
    }
    switch (filters, string.base.name) {
    case ([], "serialdev"), ([], "sdev"), ([], "termios"): return readSerial(string, at: place)
    case ([], "tcp"): network("tcp", string, nil, at: place)
    case (["ssl"], "tcp"): network("tls", string, security, at: place)
    case (["telnet"], "tcp"): network(isRemote ? "rfc2217" : "telnet", string, nil, at: place)
    case (["telnet", "ssl"], "tcp"): network(isRemote ? "rfc2217s" : "telnets", string, security, at: place)
    case ([], "unix"): endpoint = "unix://\(Self.encoded(string.rest.trimmingSpaces))"
    case ([], "echo"): endpoint = "sim://echo"
    case ([], "stdio"), ([], "pty"): readProgram(string, at: place)
    case ([], let name): obstruct("\(name) has no equivalent as an endpoint", at: place)
    case (let names, _):
      obstruct("\(names.joined(separator: ",")),\(string.base.name) has no equivalent as an endpoint", at: place)
    }
    return nil
  }

  private mutating func readSerial(_ string: GensioString, at place: Ser2netFile.Location) -> SerialWords? {
    let words = GensioString.words(string.rest, separators: ", \t\n\r")
    guard let device = words.first, device.hasPrefix("/") else {
      obstruct("\(Suggestion.quote(words.first ?? "")) is not the path of a device", at: place)
      return nil
    }
    var serial = SerialWords()
    for name in SerialWords.names {
      if let value = connection.defaults.value(name, of: "serialdev"), !value.isEmpty { _ = serial.apply(name, value) }
    }
    for word in words.dropFirst() where !serial.apply(word) {
      lose(Suggestion.plain(word), "ser2net has no such setting of a serial port either", at: place)
    }
    for (name, reason) in serial.lost.sorted(by: { $0.key < $1.key }) { lose(name, reason, at: place) }
    if serial.hasTwoFlowControls { lose("xonxoff", "there is one flow control: rtscts", at: place) }
    if serial.isWriteOnly { obstruct("wronly is for printers, and only serial ports can be opened", at: place) }
    endpoint = "tty://\(Self.encoded(device))\(serial.query)"
    return serial
  }

  private mutating func network(
    _ scheme: String, _ string: GensioString, _ security: GensioString.Layer?, at place: Ser2netFile.Location
  ) {
    guard EndpointSchemes.grammar(scheme) != nil else {
      obstruct("endpoints of \(scheme) are not in \(Version.name)", at: place)
      return
    }
    guard let addresses = address(string.rest, at: place) else { return }
    guard let (_, host, port) = addresses.first, let host else {
      obstruct("the connector needs a host", at: place)
      return
    }
    if addresses.count > 1 { lose("connector", "only the first address is tried", at: place) }
    var settings: [String] = []
    if let security {
      func setting(_ name: String) -> String? {
        let value = security.option(name) ?? connection.defaults.value(name, of: "ssl")
        return value.flatMap { $0.isEmpty ? nil : $0 }
      }
      // gensio checks no name in a certificate.
      settings.append("verify=ca")
      for name in ["ca", "cert", "key"] {
        guard let file = setting(name) else { continue }
        if name == "ca", file.hasSuffix("/") {
          obstruct("CA must be a file here, not a folder", at: place)
        } else {
          settings.append("\(name)=\(Self.encoded(file))")
        }
      }
      if let key = setting("key"), setting("cert") == nil { settings.append("cert=\(Self.encoded(key))") }
    }
    endpoint =
      "\(scheme)://\(Self.bracketed(host)):\(port)" + (settings.isEmpty ? "" : "?\(settings.joined(separator: "&"))")
  }

  /// `stdio,PROGRAM ARGUMENT…`, `pty,PROGRAM …`, or a pty that other programs open.
  private mutating func readProgram(_ string: GensioString, at place: Ser2netFile.Location) {
    let words = GensioString.words(string.rest, separators: " \t\n\r")
    let isPty = string.base.name == "pty"
    if let program = words.first {
      guard program.hasPrefix("/") else {
        obstruct("\(Suggestion.quote(program)) is not the whole path of a program", at: place)
        return
      }
      let settings = words.dropFirst().map { "arg=\(Self.encoded($0))" } + (isPty ? ["pty=yes"] : [])
      endpoint = "exec:\(Self.encoded(program))" + (settings.isEmpty ? "" : "?\(settings.joined(separator: "&"))")
    } else if isPty, let path = string.base.option("link") {
      endpoint = "pty://\(Self.encoded(path))"
    } else {
      obstruct(
        isPty ? "a pty without link=PATH has no name here" : "stdio without a program has no equivalent", at: place)
    }
  }

  private mutating func keepOpen(_ layer: GensioString.Layer, at place: Ser2netFile.Location) {
    link = "shared"
    device.append(("open", "always"))
    if layer.option("discard-badwrites").flatMap(Ser2netFile.flag) == true { device.append(("absent", "discard")) }
    if layer.option("retry-time") != nil {
      lose("retry-time", "the pauses between tries grow; see device.retry", at: place)
    }
  }

  // MARK: - Parts of both ends

  mutating func gensio(_ text: Ser2netFile.Text, _ what: String) -> GensioString? {
    for mark in ["*{", "={"] where text.text.contains(mark) {
      obstruct("the \(what) includes a file, which is not read", at: text.location)
      return nil
    }
    do throws(ValueFault) { return try GensioString(text.text) } catch {
      obstruct("\(what): \(error.message)", at: text.location)
      return nil
    }
  }

  mutating func obstruct(_ reason: String, at place: Ser2netFile.Location) {
    obstacles.append(Ser2netFile.Text(text: reason, location: place))
  }

  mutating func lose(_ name: String, _ reason: String, at place: Ser2netFile.Location) {
    guard let index = lost.firstIndex(where: { $0.reason == reason }) else {
      lost.append(Lost(names: [name], reason: reason, location: place))
      return
    }
    if !lost[index].names.contains(name) { lost[index].names.append(name) }
  }

  /// For a path or a value of a URL. Two bytes of a name may be one letter, so bytes are encoded.
  static func encoded(_ text: String) -> String {
    text.utf8.map { byte in
      switch byte {
      case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
        UInt8(ascii: "0")...UInt8(ascii: "9"):
        String(Unicode.Scalar(byte))
      case _ where "-._~/:,@".utf8.contains(byte): String(Unicode.Scalar(byte))
      default: "%" + (byte < 16 ? "0" : "") + String(byte, radix: 16, uppercase: true)
      }
    }.joined()
  }
}

extension String {
  var trimmingSpaces: String {
    let start = drop(while: \.isWhitespace)
    return String(
      start.prefix(start.lastIndex { !$0.isWhitespace }.map { start.distance(from: start.startIndex, to: $0) + 1 } ?? 0)
    )
  }
}
