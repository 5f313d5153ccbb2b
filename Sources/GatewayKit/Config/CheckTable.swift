// What `baudway check` prints: the whole config with every default filled in. It is itself a config file that means the
// same (as long as no secret is in it), so it can be read, compared and kept.

import ByteStreams
import StreamBroker

extension Config {
  /// Ends in a line feed. Secrets are masked.
  public var table: String {
    var lines = [
      "version: 1",
      "log: { level: \(log.level.rawValue), format: \(log.format.rawValue), repeats: \(log.repeats.rawValue) }",
      "control: { socket: \(control.socket) }", "limits: \(limits.table)",
    ]
    if !proxies.isEmpty {
      lines.append("proxies: [ \(proxies.map(\.description).map(YAMLText.scalar).joined(separator: ", ")) ]")
    }
    if !users.isEmpty { lines.append("users:") }
    for user in users { lines.append(user.table) }
    lines.append("routes:")
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
      shared ? "half-close: \(self.clients.halfClose.map { Units.text($0) } ?? "off")" : nil,
      "keepalive: \(self.clients.keepalive ? "on" : "off")", "notices: \(self.clients.notices ? "on" : "off")",
      shared ? "refuse-http: \(self.clients.refuseHttp ? "yes" : "no")" : nil,
      "per-address: \(self.clients.perAddress.map { "\($0)" } ?? "off")",
      self.clients.allow.map { "allow: [ \($0.map { YAMLText.scalar($0.description) }.joined(separator: ", ")) ]" },
      self.clients.deny.isEmpty
        ? nil : "deny: [ \(self.clients.deny.map { YAMLText.scalar($0.description) }.joined(separator: ", ")) ]",
      access.only.map { "users: [ \($0.map(YAMLText.scalar).joined(separator: ", ")) ]" },
      self.clients.banner.map { "banner: \(YAMLText.scalar($0))" },
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
      tls.map { "    tls: \($0.table)" }, websocket.map { "    websocket: \($0.table)" },
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
    if isPlain, isHarmless, !text.hasSuffix(":"), !["null", "Null", "NULL"].contains(text) { return text }
    // `${` must not be expanded a second time; quotes don't protect it.
    let safe = text.replacing("${", with: "$${")
    if safe.unicodeScalars.allSatisfy({ isPrintable($0) && !isBreak($0) && $0 != "\t" }) {
      return "'\(safe.replacing("'", with: "''"))'"
    }
    return "\"\(safe.unicodeScalars.map { escaped($0) }.joined())\""
  }

  private static func escaped(_ scalar: Unicode.Scalar) -> String {
    switch scalar {
    case "\"", "\\": return "\\\(scalar)"
    case "\n": return "\\n"
    case "\r": return "\\r"
    case "\t": return "\\t"
    case _ where isPrintable(scalar) && !isBreak(scalar): return String(scalar)
    default:
      let digits = String(scalar.value, radix: 16, uppercase: true)
      let (letter, width) = scalar.value < 0x100 ? ("x", 2) : ("u", 4)  // those above U+FFFF are printable
      return "\\\(letter)\(String(repeating: "0", count: width - digits.count))\(digits)"
    }
  }

  /// YAML 1.1, production [1] c-printable; without the byte order mark, which may stand at the start of a file only.
  static func isPrintable(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.value {
    case 0xFEFF: false
    case 0x09, 0x0A, 0x0D, 0x20...0x7E, 0x85, 0xA0...0xFFFD, 0x10000...: true
    default: false
    }
  }

  /// What ends a line there.
  private static func isBreak(_ scalar: Unicode.Scalar) -> Bool {
    ["\n", "\r", "\u{85}", "\u{2028}", "\u{2029}"].contains(scalar)
  }
}
