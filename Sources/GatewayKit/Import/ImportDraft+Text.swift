// The imported configuration as text: short lines, a comment before each route.

import StreamBroker

extension ImportDraft {
  private static let width = 100

  var text: String {
    let live = routes.count(where: \.isLive)
    let name = file.split(separator: "/").last.map(String.init) ?? file
    var lines = Self.comment(
      "From \(Suggestion.plain(name)), by 'baudway import': \(Self.count(live, "route")) from "
        + "\(Self.count(routes.count, "connection")).")
    if !lost.isEmpty {
      lines += Self.comment("\(Self.count(lost.count, "thing")) without an equivalent: see the lines with 'No'.")
    }
    for other in source.others {
      lines += Self.comment("No \(other.title) (line \(other.location.line)): \(other.reason).")
    }
    lines += ["", "version: 1", "", "defaults:", "  clients:", "    max: 1  # as in ser2net, unless a route says more"]
    lines += ["", "routes:"]
    for index in routes.indices where !isJoined(index) {
      lines += block(index).map { $0.isEmpty ? "" : "  \($0)" }
    }
    return lines.joined(separator: "\n") + "\n"
  }

  /// Whether the connection is a listener of an earlier route.
  private func isJoined(_ index: Int) -> Bool {
    let route = routes[index]
    return route.obstacles.isEmpty && route.pause == nil && route.listen.isEmpty
  }

  private func block(_ index: Int) -> [String] {
    let route = routes[index]
    let all = [route.connection] + (joined[index] ?? [])
    let titles = all.map { "\(Suggestion.plain($0.title)), line \($0.location.line)" }
    var lines = Self.comment(titles.joined(separator: "; ") + (all.count > 1 ? ": one device, so one route" : ""))
    for text in route.obstacles { lines += Self.comment("No route: \(text.text).") }
    if let pause = route.pause { lines += Self.comment("No route: \(pause.text).") }
    for text in route.lost { lines += Self.comment("No \(text.text).") }
    for note in route.notes { lines += Self.comment("Note: \(note)") }
    guard route.obstacles.isEmpty, route.isWhole else { return lines + [""] }
    return lines + route.lines().map { route.isLive ? $0 : "# \($0)" } + [""]
  }

  static func count(_ number: Int, _ noun: String) -> String { "\(number) \(noun)\(number == 1 ? "" : "s")" }

  /// Comments of at most `width` columns, with nothing in them that could end a line.
  private static func comment(_ text: String) -> [String] {
    let safe = text.unicodeScalars.map { scalar in
      YAMLText.isPrintable(scalar) && !Suggestion.isControl(scalar) ? String(scalar) : "?"
    }.joined()
    var lines = ["#"]
    for word in safe.split(separator: " ") {
      if lines[lines.count - 1].count + word.count + 1 > width, lines[lines.count - 1] != "#" { lines.append("#  ") }
      lines[lines.count - 1] += " \(word)"
    }
    return lines
  }
}
