// Configurations of ser2net, which people try as they are. Each connection in one is answered by the route that it is here; nothing is
// read from such a file. Both forms are known: YAML with `connection:` (ser2net 4), and lines with colons (before).

import StreamBroker

enum Ser2net {
  /// Half of them are shown; the rest only tells how many more there are.
  private static let most = 2 * ConfigProblems.limit

  /// One for each connection; none where the file is something else.
  static func remarks(_ tree: Result<YAMLNode?, YAMLFault>, _ bytes: [UInt8]) -> [YAMLFault] {
    if case .success(let root?) = tree, case .mapping(let entries) = root.content { return connections(entries) }
    return lines(bytes)
  }

  // MARK: YAML

  private static func connections(_ entries: [YAMLNode.Entry]) -> [YAMLFault] {
    let all = entries.filter { entry in
      guard case .scalar(let key) = entry.key.content, key.text == "connection", case .mapping = entry.value.content
      else {
        return false
      }
      return text("accepter", of: entry.value) != nil || text("connector", of: entry.value) != nil
    }
    return all.prefix(most).map { entry in
      let (port, listen, isTelnet) = accepter(text("accepter", of: entry.value) ?? "")
      return remark(
        "a connection of ser2net's", port, listen, connector(text("connector", of: entry.value) ?? ""),
        isTelnet: isTelnet, at: entry.key.place)
    }
  }

  private static func text(_ name: String, of node: YAMLNode) -> String? {
    guard case .mapping(let entries) = node.content else { return nil }
    for entry in entries {
      guard case .scalar(let key) = entry.key.content, key.text == name, case .scalar(let value) = entry.value.content
      else { continue }
      return value.text
    }
    return nil
  }

  /// `telnet(rfc2217),tcp,127.0.0.1,2000`
  private static func accepter(_ text: String) -> (port: Int?, listen: String?, isTelnet: Bool) {
    let words = words(text)
    let names = words.map { String($0.prefix { $0 != "(" }) }
    guard let tcp = names.firstIndex(of: "tcp"), let port = names.last.flatMap({ Int($0) }), (1...65535).contains(port)
    else { return (nil, nil, names.contains("telnet")) }
    let host = names[(tcp + 1)...].dropLast().last ?? ""
    let shown = host.contains(":") ? "[\(host)]" : host
    let scheme = names.contains("ssl") || names.contains("tls") ? "tls" : "tcp"
    return (port, "\(scheme)://\(shown):\(port)", names.contains("telnet"))
  }

  /// `serialdev,/dev/ttyS0,9600n81,local`
  private static func connector(_ text: String) -> String? {
    let words = words(text)
    guard let kind = words.firstIndex(where: { ["serialdev", "sdev", "termios"].contains($0.prefix { $0 != "(" }) }),
      kind + 1 < words.count, words[kind + 1].hasPrefix("/")
    else { return nil }
    let rest = words[(kind + 1)...].joined(separator: ",")
    return PortNotation.url(rest) ?? "tty://\(words[kind + 1])"
  }

  /// Cut at commas outside parentheses.
  private static func words(_ text: String) -> [String] {
    var words = [""]
    var depth = 0
    for letter in text.prefix(512) {
      if letter == "(" { depth += 1 } else if letter == ")" { depth -= 1 }
      if letter == ",", depth <= 0 { words.append("") } else { words[words.count - 1].append(letter) }
    }
    return words
  }

  // MARK: lines

  /// `3001:raw:600:/dev/ttyS0:9600 8DATABITS NONE 1STOPBIT`, where nothing but such lines makes sense of the file.
  private static func lines(_ bytes: [UInt8]) -> [YAMLFault] {
    var faults: [YAMLFault] = []
    for (index, line) in bytes.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false).enumerated() {
      guard line.count < 512, line.allSatisfy({ $0 < 0x7F && ($0 > 0x1F || [0x09, 0x0D].contains($0)) }) else {
        continue
      }
      let text = String(decoding: line, as: UTF8.self)
      let parts = text.split(separator: ":", maxSplits: 4, omittingEmptySubsequences: false).map(String.init)
      guard parts.count >= 4, ["raw", "rawlp", "telnet", "off"].contains(parts[1]), UInt32(parts[2]) != nil,
        parts[3].hasPrefix("/dev/")
      else { continue }
      let address = parts[0].split(separator: ",")
      let port = address.last.flatMap { Int($0) }
      let host = address.dropLast().last ?? ""
      let settings = parts.count > 4 ? parts[4].split { " \t\r".contains($0) }.joined(separator: ",") : ""
      faults.append(
        remark(
          "a line of ser2net's", port, port.map { "tcp://\(host):\($0)" },
          PortNotation.url("\(parts[3]),\(settings)") ?? "tty://\(parts[3])", isTelnet: parts[1] == "telnet",
          at: ConfigProblem.Place(line: index + 1, column: 1)))
      if faults.count == most { break }
    }
    return faults
  }

  /// What a message can have in it.
  private static func shown(_ url: String?) -> String? {
    url.flatMap { $0.utf8.count <= 120 && $0.utf8.allSatisfy { (0x21...0x7E).contains($0) } ? $0 : nil }
  }

  private static func remark(
    _ what: String, _ port: Int?, _ listen: String?, _ endpoint: String?, isTelnet: Bool, at place: ConfigProblem.Place
  ) -> YAMLFault {
    let form = RouteForm.text(
      port.map { "port-\($0)" } ?? "lab", listen: shown(listen), endpoint: shown(endpoint))
    let lacks = isTelnet ? "; telnet and RFC 2217 are not in \(Version.name)" : ""
    return YAMLFault("\(what); here it is a route: 'routes: { \(form) }'\(lacks)", at: place)
  }
}
