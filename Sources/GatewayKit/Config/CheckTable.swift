// What `baudway check` prints: the whole config with every default filled in. It is itself a config file that means the
// same (as long as no secret is in it), so it can be read, compared and kept.

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
      "max: \(self.clients.max)", "when-full: refuse", "slow: \(self.clients.slow.rawValue)",
      "buffer: \(Units.text(bytes: self.clients.buffer))",
      shared ? "backlog: \(Units.text(bytes: self.clients.backlog))" : nil,
      "keepalive: \(self.clients.keepalive ? "on" : "off")", "notices: \(self.clients.notices ? "on" : "off")",
    ]
    let device = [
      shared ? "open: \(self.device.open.rawValue)" : nil,
      shared ? "retry: \(Value.durations(self.device.retry))" : nil, shared ? "absent: hold" : nil,
      "connect-timeout: \(Units.text(self.device.connectTimeout))", "drain: \(Units.text(self.device.drain))",
      shared ? "flush: \(self.device.flush.rawValue)" : nil,
    ]
    return [
      "  \(YAMLText.scalar(name)):",
      "    listen: \(YAMLText.oneOrList(addresses))",
      "    endpoint: \(endpointText)", "    link: \(link.rawValue)",
      "    clients: \(YAMLText.mapping(clients.compactMap { $0 }))",
      "    device: \(YAMLText.mapping(device.compactMap { $0 }))",
      "    # memory: at most \(Units.text(bytes: worstCaseMemory)), when all \(self.clients.max) clients are stuck",
    ]
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
    // `${` must not be expanded a second time; quotes don't protect it.
    let safe = text.replacing("${", with: "$${")
    if isPlain, isHarmless, !text.hasSuffix(":"), !["null", "Null", "NULL"].contains(text) { return text }
    return "'\(safe.replacing("'", with: "''"))'"
  }
}
