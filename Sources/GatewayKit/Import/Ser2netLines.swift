// ser2net.conf of ser2net 3, which ser2net 4 reads, too: `PORT:STATE:TIMEOUT:DEVICE:OPTIONS`, and lines such as
// `BANNER:name:text`. A `\` at the end of a line continues it.

import StreamBroker

struct Ser2netLines {
  private var file = Ser2netFile()
  private var defaults = Ser2netFile.Defaults()
  /// Texts by name: the keyword that defined one is the option that uses it.
  private var texts: [String: (option: String, text: String)] = [:]

  private static let keywords = [
    "BANNER": "banner", "SIGNATURE": "signature", "OPENSTR": "openstr", "CLOSESTR": "closestr", "CLOSEON": "closeon",
    "DEVICE": "device", "TRACEFILE": "tracefile", "RS485CONF": "rs485",
  ]
  private static let states = ["rawlp", "raw", "telnet", "off", "on"]

  /// Nil when there is no line of a connection.
  static func read(_ bytes: [UInt8]) throws(YAMLFault) -> Ser2netFile? {
    var reader = Ser2netLines()
    do throws(YAMLFault) { try reader.read(bytes) } catch {
      // Any other file would have such a fault, too.
      if !reader.file.connections.isEmpty { throw error }
    }
    return reader.file.connections.isEmpty ? nil : reader.file
  }

  private mutating func read(_ bytes: [UInt8]) throws(YAMLFault) {
    var pending = ""
    var first = 1
    for (index, line) in bytes.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false).enumerated() {
      let place = Ser2netFile.Location(line: pending.isEmpty ? index + 1 : first, column: 1)
      first = place.line
      guard pending.utf8.count + line.count <= Ser2netFile.textLimit else {
        throw YAMLFault("a line of more than \(Units.text(bytes: Ser2netFile.textLimit))", at: place)
      }
      guard let text = String(validating: line, as: UTF8.self), !text.utf8.contains(0) else {
        throw YAMLFault("bytes that are not UTF-8 text", at: place)
      }
      pending += text.hasSuffix("\r") ? String(text.dropLast()) : text
      if pending.hasPrefix("#") { pending = "" }
      if pending.hasSuffix("\\") {
        pending.removeLast()
        continue
      }
      try read(pending, at: place)
      pending = ""
    }
    if !pending.isEmpty { try read(pending, at: Ser2netFile.Location(line: first, column: 1)) }
  }

  private mutating func read(_ line: String, at place: Ser2netFile.Location) throws(YAMLFault) {
    guard !line.allSatisfy(\.isWhitespace) else { return }
    let parts = line.split(separator: ":", maxSplits: 2, omittingEmptySubsequences: false).map(String.init)
    let (name, rest) = (parts.count > 1 ? parts[1] : "", parts.count > 2 ? parts[2] : "")
    switch parts[0] {
    case "CONTROLPORT": try file.add(.admin, "", place)
    case "ROTATOR": try file.add(.rotator, name, place)
    case "LED": try file.add(.led, name, place)
    case "DEFAULT":
      let values = rest.split(separator: ":", maxSplits: 1).map(String.init)
      defaults.set(name, values.first ?? "", of: values.count > 1 ? values[1].filter { !$0.isWhitespace } : nil)
      try file.addDefault(name, values.first ?? "", place)
    case "DELDEFAULT": defaults.remove(name, of: rest.filter { !$0.isWhitespace })
    case let word where Self.keywords[word] != nil: texts[name] = (Self.keywords[word]!, rest)
    default:
      if let (port, state, rest) = Self.split(line) {
        try connection(port, state, rest, at: place)
      } else {
        try file.add(.unknown, Suggestion.plain(line), place)
      }
    }
  }

  /// The port may have colons itself (IPv6), so the state divides a line.
  private static func split(_ line: String) -> (port: String, state: String, rest: String)? {
    let found = states.compactMap { state in line.firstRange(of: ":\(state):").map { ($0, state) } }
    guard let (range, state) = found.min(by: { $0.0.lowerBound < $1.0.lowerBound }) else { return nil }
    return (String(line[..<range.lowerBound]), state, String(line[range.upperBound...]))
  }

  // MARK: - Connections

  private mutating func connection(
    _ port: String, _ state: String, _ rest: String, at place: Ser2netFile.Location
  ) throws(YAMLFault) {
    let parts = rest.split(separator: ":", maxSplits: 2, omittingEmptySubsequences: false).map(String.init)
    let number = port.split(separator: ",").last.map(String.init) ?? ""
    let isNumber = !number.isEmpty && number.allSatisfy { $0.isASCII && $0.isNumber }
    var made = Ser2netFile.Connection(
      name: isNumber ? "port-\(number)" : port, location: place, title: "port \(Suggestion.plain(port))")
    made.defaults = defaults
    made.isEnabled = state != "off"
    made.timeout = parts.first.map { Ser2netFile.Text(text: $0, location: place) }
    guard parts.count > 1, !parts[1].isEmpty else {
      made.faults.append(Ser2netFile.Text(text: "it has no device", location: place))
      try file.add(made)
      return
    }
    if state == "rawlp" {
      made.faults.append(
        Ser2netFile.Text(text: "rawlp is for printers, and only serial ports can be opened", location: place))
    }
    var serial: [String] = []
    var isRemote = defaults.value("remctl", of: "").flatMap(Ser2netFile.flag) ?? false
    for word in GensioString.words(parts.count > 2 ? parts[2] : "", separators: " \t") {
      read(word, &serial, &isRemote, &made)
    }
    let telnet = state == "telnet" ? isRemote ? "telnet(rfc2217)," : "telnet," : ""
    made.accepter = Ser2netFile.Text(text: telnet + port, location: place)
    let device = texts[parts[1]].flatMap { $0.option == "device" ? $0.text : nil } ?? parts[1]
    let kind = device.hasPrefix("/") ? "serialdev," : device.hasPrefix("sol.") ? "ipmisol," : ""
    // A device's name may have commas here, which divide a connector.
    let name = kind == "serialdev," ? device.replacing(",", with: "\\,") : device
    made.connector = Ser2netFile.Text(text: ([kind + name] + serial).joined(separator: ","), location: place)
    try file.add(made)
  }

  /// One word of a line's options: a setting of the serial line, the name of a text, or an option with its old name.
  private func read(
    _ word: String, _ serial: inout [String], _ isRemote: inout Bool, _ made: inout Ser2netFile.Connection
  ) {
    func option(_ name: String, _ value: String) {
      made.options.append(Ser2netFile.Option(name: name, value: value, location: made.location))
    }
    let isOff = word.hasPrefix("-")
    let parts = (isOff ? word.dropFirst() : word[...]).split(separator: "=", maxSplits: 1).map(String.init)
    let (name, value) = (Ser2netFile.key(parts.first ?? ""), parts.count > 1 ? parts[1] : isOff ? "false" : "true")
    let traces = ["tr": "trace-read", "tw": "trace-write", "tb": "trace-both"]
    if let text = texts[word], ["banner", "signature", "openstr", "closestr", "closeon"].contains(text.option) {
      option(text.option, text.text)
    } else if name == "rs485" {
      serial.append("rs485=\(Self.rs485(texts[value]?.text ?? value))")
    } else if let trace = traces[name] {
      option(trace, texts[value]?.text ?? value)
    } else if name == "remctl" {
      isRemote = !isOff
    } else if name == "disable-chardelay" {
      option("chardelay", isOff ? "true" : "false")
    } else if SerialWords.knows(word) {
      serial.append(word)
    } else if name == "hexdump" || name == "timestamp" {
      option("trace-\(name)", value)
    } else if let trace = traces.first(where: { name.hasPrefix("\($0.key)-") }) {
      option(trace.value + name.dropFirst(2), value)
    } else if parts.count == 1, Self.keywords.values.contains(name) {
      option("\(word) without a text", value)  // the file does not define it
    } else {
      option(name, value)
    }
  }

  /// `10:20:1:0` (RTS up while sending, receive while sending) as ser2net 4 writes it.
  private static func rs485(_ text: String) -> String {
    let parts = text.split(separator: ":").map { $0.filter { !$0.isWhitespace } }
    guard parts.count > 2, parts[2...].allSatisfy({ ["0", "1"].contains($0) }) else { return text }
    return parts[..<2].joined(separator: ":") + (parts[2] == "1" ? ":rts_on_send" : ":rts_after_send")
      + (parts.count > 3 && parts[3] == "1" ? ":rx_during_tx" : "")
  }
}
