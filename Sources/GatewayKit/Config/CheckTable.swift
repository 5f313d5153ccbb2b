// What `baudway check` prints: the whole config with every default filled in. It is itself a config file that means the
// same (as long as no secret is in it), so it can be read, compared and kept.

import ByteStreams
import StreamBroker

extension Config {
  /// Ends in a line feed. Secrets are masked.
  public var table: String {
    var lines = [
      "version: 1", "log: { level: \(log.level.rawValue), format: \(log.format.rawValue) }",
      "control: { socket: \(control.socket) }", "routes:",
    ]
    for route in routes { lines += route.table }
    return lines.joined(separator: "\n") + "\n"
  }
}

extension Config.Control.Socket: CustomStringConvertible {
  public var description: String {
    switch self {
    case .automatic: "auto"
    case .path(let path): YAMLText.scalar(path)
    case .off: "off"
    }
  }
}

extension Config.Route {
  fileprivate var table: [String] {
    let addresses = listen.map { YAMLText.scalar($0.url.description) }
    let shared = link == .shared
    let clients = [
      "max: \(self.clients.max)", "when-full: \(self.clients.whenFull.rawValue)",
      shared ? "writers: \(self.clients.writers.rawValue)" : nil,
      self.clients.writers == .one ? "takeover: \(self.clients.takeover)" : nil,
      "slow: \(self.clients.slow.rawValue)",
      "buffer: \(Units.text(bytes: self.clients.buffer))",
      shared ? "backlog: \(Units.text(bytes: self.clients.backlog))" : nil,
      "idle-timeout: \(self.clients.idleTimeout.map { Units.text($0) } ?? "off")",
      "keepalive: \(self.clients.keepalive ? "on" : "off")", "notices: \(self.clients.notices ? "on" : "off")",
      self.clients.allow.map { "allow: [ \($0.map { YAMLText.scalar($0.description) }.joined(separator: ", ")) ]" },
      self.clients.deny.isEmpty
        ? nil : "deny: [ \(self.clients.deny.map { YAMLText.scalar($0.description) }.joined(separator: ", ")) ]",
      self.clients.banner.map { "banner: \(YAMLText.lines($0))" },
    ]
    let device = [
      shared ? "open: \(self.device.open.rawValue)" : nil,
      shared ? "linger: \(Units.text(self.device.linger))" : nil,
      shared ? "retry: \(Value.durations(self.device.retry))" : nil,
      shared ? "absent: \(self.device.absent.rawValue)" : nil,
      "connect-timeout: \(Units.text(self.device.connectTimeout))", "drain: \(Units.text(self.device.drain))",
      shared ? "flush: \(self.device.flush.rawValue)" : nil,
      self.device.onOpen.isEmpty ? nil : "on-open: \(YAMLText.scalar(Escapes.text(of: self.device.onOpen)))",
      self.device.onClose.isEmpty ? nil : "on-close: \(YAMLText.scalar(Escapes.text(of: self.device.onClose)))",
    ]
    let packets = [
      self.packets?.idle.map { "idle: \(Units.text($0))" }, self.packets?.max.map { "max: \(Units.text(bytes: $0))" },
      self.packets?.delimiter.map { "delimiter: \(YAMLText.scalar(Escapes.text(of: $0)))" },
    ].compactMap { $0 }
    return [
      "  \(YAMLText.scalar(name)):",
      "    listen: \(YAMLText.oneOrList(addresses))",
      "    endpoint: \(endpointText)", "    link: \(link.rawValue)",
      "    clients: \(YAMLText.mapping(clients.compactMap { $0 }))",
      "    device: \(YAMLText.mapping(device.compactMap { $0 }))",
      packets.isEmpty ? nil : "    packets: \(YAMLText.mapping(packets))",
      "    # memory: at most \(Units.text(bytes: worstCaseMemory)), when all \(self.clients.max) clients are stuck",
    ].compactMap { $0 }
  }

  private var endpointText: String {
    var items: [String] = []
    for parameter in endpoint.grammar.parameters {
      let values = endpoint.settingsInForce.filter { $0.name == parameter.name }.map { YAMLText.scalar("\($0.value)") }
      if !values.isEmpty { items.append("\(parameter.name): \(YAMLText.oneOrList(values))") }
    }
    let url = YAMLText.scalar(endpoint.place)
    return items.isEmpty ? url : YAMLText.mapping(["url: \(url)"] + items)
  }
}

extension Config.Clients.Takeover: CustomStringConvertible {
  public var description: String {
    switch self {
    case .refuse: "refuse"
    case .newest: "newest"
    case .idle(let pause): "idle:\(Units.text(pause))"
    }
  }
}

enum YAMLText {
  /// `text` of several lines as one double-quoted scalar.
  static func lines(_ text: String) -> String {
    if !text.unicodeScalars.contains(where: { $0.value < 0x20 || $0.value == 0x7F }) { return scalar(text) }
    let escaped = text.replacing("\\", with: "\\\\").replacing("\"", with: "\\\"").replacing("${", with: "$${")
      .unicodeScalars.map { letter in
        switch letter {
        case "\n": "\\n"
        case "\r": "\\r"
        case "\t": "\\t"
        default:
          letter.value < 0x20 || letter.value == 0x7F
            ? "\\x" + (letter.value < 16 ? "0" : "") + String(letter.value, radix: 16) : String(letter)
        }
      }
    return "\"\(escaped.joined())\""
  }

  /// `{ … }`, continued on another line before it gets too wide to read.
  static func mapping(_ items: [String]) -> String {
    var lines = ["{"]
    for (index, item) in items.enumerated() {
      let text = " " + item + (index == items.count - 1 ? " }" : ",")
      let before = lines.count == 1 ? 14 : 0  // the key
      if before + lines[lines.count - 1].count + text.count > 116 { lines.append("       ") }
      lines[lines.count - 1] += text
    }
    return lines.joined(separator: "\n")
  }

  static func oneOrList(_ items: [String]) -> String {
    items.count == 1 ? items[0] : "[ \(items.joined(separator: ", ")) ]"
  }

  /// `text` as a scalar that reads back as it is in any place: plain where nothing in it can mislead, else quoted.
  static func scalar(_ text: String) -> String {
    let isPlain = text.first.map { $0.isASCII && ($0.isLetter || $0.isNumber || $0 == "/") } ?? false
    let isHarmless = text.allSatisfy { $0.isASCII && ($0.isLetter || $0.isNumber || "._-/:?=&+".contains($0)) }
    // `${` must not be expanded a second time; quotes don't protect it.
    let safe = text.replacing("${", with: "$${")
    if isPlain, isHarmless, !text.hasSuffix(":"), !["null", "Null", "NULL"].contains(text) { return text }
    return "'\(safe.replacing("'", with: "''"))'"
  }
}
