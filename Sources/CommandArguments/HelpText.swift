// Help as text, and all of it as JSON, from which Deploy/man makes the manual page.

import StreamBrokerCore

extension Program {
  func helpText(_ columns: Int) -> String {
    let rows = shownCommands.map { ($0.help.name, $0.help.abstract) } + [("help", "Explains a command.")]
    let general = [("-h, --help", "Prints this."), ("-V, --version", "Prints the version.")]
    return """
      \(abstract)

      Usage: \(name) COMMAND …

      Commands:
      \(table(rows, columns))

      Options:
      \(table(general, columns))

      '\(name) help COMMAND' explains a command.
      """
  }

  func helpText(of type: any Command.Type, _ columns: Int) -> String {
    let all = parameters(of: type.init())
    var parts = [type.help.abstract, "Usage: \(usage(of: type))"]
    let arguments = all.filter { $0.kind == .argument }
    if !arguments.isEmpty { parts.append(table(arguments.map { ($0.placeholder, $0.explanation) }, columns)) }
    let options = all.filter { $0.kind != .argument }.map { ($0.names, $0.explanation) }
    parts.append("Options:\n" + table(options + [("-h, --help", "Prints this.")], columns))
    for paragraph in paragraphs(type.help.discussion) {
      parts.append(wrapped(paragraph, to: columns).joined(separator: "\n"))
    }
    return parts.joined(separator: "\n\n")
  }

  func usage(of type: any Command.Type) -> String {
    let all = parameters(of: type.init())
    let words = all.filter { $0.kind == .argument }.map { $0.isRequired ? $0.placeholder : "[\($0.placeholder)]" }
    let needed = all.filter { $0.kind == .option && $0.isRequired }.map { "--\($0.name) \($0.placeholder)" }
    return ([name, type.help.name, "[OPTION…]"] + needed + words).joined(separator: " ")
  }

  private func table(_ rows: [(String, String)], _ columns: Int) -> String {
    let width = min(26, (rows.map(\.0.count).max() ?? 0) + 4)
    return rows.map { name, text in
      let lines = wrapped(text, to: columns - width)
      let indent = String(repeating: " ", count: width)
      let start = "  " + name
      // A name too long for its column has a line of its own.
      guard start.count + 2 <= width else {
        return ([start] + lines.map { indent + $0 }).joined(separator: "\n")
      }
      let first = start + String(repeating: " ", count: width - start.count) + (lines.first ?? "")
      return ([first] + lines.dropFirst().map { indent + $0 }).joined(separator: "\n")
    }.joined(separator: "\n")
  }
}

private func paragraphs(_ text: String) -> [String] {
  var found = [""]
  for line in text.split(separator: "\n", omittingEmptySubsequences: false) {
    if line.isEmpty { found.append("") } else { found[found.count - 1] += (found.last == "" ? "" : " ") + line }
  }
  return found.filter { !$0.isEmpty }
}

private func wrapped(_ text: String, to columns: Int) -> [String] {
  var lines: [String] = []
  for word in text.split(whereSeparator: { $0 == " " || $0 == "\n" }) {
    if let last = lines.last, last.count + 1 + word.count <= max(20, columns) {
      lines[lines.count - 1] = last + " " + word
    } else {
      lines.append(String(word))
    }
  }
  return lines
}

extension Parameter {
  fileprivate var names: String {
    (short.map { "-\($0), " } ?? "") + "--\(name)" + (kind == .option ? " \(placeholder)" : "")
  }

  fileprivate var explanation: String {
    let choices = choices.isEmpty || choices.allSatisfy(help.contains) ? "" : " Values: \(Suggestion.list(choices))."
    return help + choices + (standard.map { " Default: \($0)." } ?? "")
  }
}

// MARK: - JSON

extension Program {
  /// Commands and parameters, for programs that make documents of them.
  package var description: String {
    let commands = shownCommands.map { type in
      let help = type.help
      return object([
        ("name", text(help.name)), ("abstract", text(help.abstract)),
        ("discussion", array(paragraphs(help.discussion).map(text))),
        ("parameters", array(parameters(of: type.init()).map(described))),
      ])
    }
    return object([
      ("name", text(name)), ("abstract", text(abstract)), ("version", text(version)), ("commands", array(commands)),
    ])
  }

  private func described(_ parameter: Parameter) -> String {
    let kind =
      switch parameter.kind {
      case .argument: "argument"
      case .option: "option"
      case .flag: "flag"
      }
    return object(
      [
        ("kind", text(kind)), ("name", text(parameter.name)), ("value", text(parameter.valueName)),
        ("help", text(parameter.help)), ("isRequired", "\(parameter.isRequired)"),
        ("isRepeating", "\(parameter.isRepeating)"), ("choices", array(parameter.choices.map(text))),
      ] + (parameter.short.map { [("short", text(String($0)))] } ?? [])
        + (parameter.standard.map { [("default", text($0))] } ?? []))
  }

  private func object(_ members: [(String, String)]) -> String {
    "{" + members.map { "\(text($0)):\($1)" }.joined(separator: ",") + "}"
  }
  private func array(_ values: [String]) -> String { "[" + values.joined(separator: ",") + "]" }
  /// Our own sentences: no control characters but line ends.
  private func text(_ value: String) -> String {
    "\"" + value.reduce(into: "") { $0 += $1 == "\"" || $1 == "\\" ? "\\\($1)" : $1 == "\n" ? " " : String($1) } + "\""
  }
}
