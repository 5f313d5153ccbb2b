// The output of `baudway check`: the whole configuration with every default filled in. It is a configuration file
// itself with the same meaning, except that secrets are masked. Keys and values come from ConfigKeys. The rest is made
// here: `version`, the layout of users and routes, an endpoint's settings, the lines on memory.

import ByteStreams
import StreamBroker

extension Config {
  /// Ends in a line feed. Secrets are masked.
  package var table: String {
    var lines = ["version: 1"] + ConfigKeys.global.items(self, isShared: true)
    if !users.isEmpty { lines.append("users:") }
    for user in users { lines.append(user.table) }
    lines.append("routes:")
    for route in routes { lines += route.table }
    return lines.joined(separator: "\n") + "\n"
  }
}

extension Config.Route {
  fileprivate var table: [String] {
    ["  \(YAMLText.scalar(name)):"] + ConfigKeys.ofRoute.items(self, isShared: link == .shared).map { "    \($0)" }
      + ["    # memory: at most \(Units.text(bytes: worstCaseMemory)), when none of \(clients.max) clients reads"]
  }
}

extension Config.User {
  /// Secrets are masked.
  fileprivate var table: String {
    "  \(YAMLText.scalar(name)): \(YAMLText.mapping(ConfigKeys.user.items(self, isShared: true)))"
  }
}

extension EndpointURL {
  /// The URL, with all settings in force as keys beside it.
  var table: String {
    var items: [String] = []
    for parameter in grammar.parameters {
      let values = settingsInForce.filter { $0.name == parameter.name }.map { YAMLText.scalar("\($0.value)") }
      if !values.isEmpty { items.append("\(parameter.name): \(YAMLText.oneOrList(values))") }
    }
    let url = YAMLText.scalar(target)
    return items.isEmpty ? url : YAMLText.mapping(["url: \(url)"] + items)
  }
}

extension Config.Clients.Takeover: CustomStringConvertible {
  package var description: String {
    switch self {
    case .refuse: "refuse"
    case .newest: "newest"
    case .idle(let pause): "idle:\(Units.text(pause))"
    }
  }
}

enum YAMLText {
  /// `{ … }`, broken before a line gets longer than 116 characters.
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

  static func value(_ value: Value) -> String {
    guard case .list(let values) = value else { return scalar(value.description) }
    return values.isEmpty ? "[]" : "[ \(values.map(Self.value).joined(separator: ", ")) ]"
  }

  static func oneOrList(_ items: [String]) -> String {
    items.count == 1 ? items[0] : "[ \(items.joined(separator: ", ")) ]"
  }

  /// `text` as a scalar that reads back unchanged in any place: plain where that is safe, else quoted.
  static func scalar(_ text: String) -> String {
    let isPlain = text.first.map { $0.isASCII && ($0.isLetter || $0.isNumber || $0 == "/") } ?? false
    let isHarmless = text.allSatisfy { $0.isASCII && ($0.isLetter || $0.isNumber || "._-/:?=&+".contains($0)) }
    if isPlain, isHarmless, !text.hasSuffix(":"), !["null", "Null", "NULL"].contains(text) { return text }
    // Quotes don't protect `${`: it would be expanded when the output is read.
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

  /// YAML 1.1, production [1] c-printable, without the byte order mark, which is allowed only at the start of a file.
  static func isPrintable(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.value {
    case 0xFEFF: false
    case 0x09, 0x0A, 0x0D, 0x20...0x7E, 0x85, 0xA0...0xFFFD, 0x10000...: true
    default: false
    }
  }

  /// A line break in YAML 1.1.
  private static func isBreak(_ scalar: Unicode.Scalar) -> Bool {
    ["\n", "\r", "\u{85}", "\u{2028}", "\u{2029}"].contains(scalar)
  }
}
