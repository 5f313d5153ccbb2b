// Reads a command line: finds the command, fills its parameters, and says what is wrong with the words.

import StreamBrokerCore

package struct Program: Sendable {
  let name: String
  let abstract: String
  let version: String
  let commands: [any Command.Type]

  package init(_ name: String, _ abstract: String, version: String, commands: [any Command.Type]) {
    self.name = name
    self.abstract = abstract
    self.version = version
    self.commands = commands
  }

  package enum Request {
    case run(any Command)
    /// What `--help` and `--version` print.
    case print(String)
  }

  var shownCommands: [any Command.Type] { commands.filter { !$0.help.isHidden } }

  /// `words`: those after the program's name. `columns`: the width for help. Throws `UsageError`, whose text also names
  /// the usage.
  package func read(_ words: [String], columns: Int = 80) throws -> Request {
    guard let first = words.first else { return .print(helpText(columns)) }
    switch first {
    case "-h", "--help", "help":
      guard first == "help", words.count > 1, !["-h", "--help", "help"].contains(words[1]) else {
        return .print(helpText(columns))
      }
      return .print(helpText(of: try command(named: words[1]), columns))
    case "-V", "--version": return .print("\(name) \(version)")
    default: break
    }
    let type = try command(named: first)
    let rest = Array(words.dropFirst())
    if rest.prefix(while: { $0 != "--" }).contains(where: { $0 == "-h" || $0 == "--help" }) {
      return .print(helpText(of: type, columns))
    }
    let command = type.init()
    do {
      try fill(parameters(of: command), from: rest)
      for group in groups(of: command) { try group.validate() }
      try command.validate()
    } catch let error as UsageError {
      let help = "'\(name) help \(first)' explains it."
      throw UsageError("\(error.text)\nUsage: \(usage(of: type))\n\(help)")
    }
    return .run(command)
  }

  private func command(named word: String) throws -> any Command.Type {
    if let type = commands.first(where: { $0.help.name == word }) { return type }
    let kind = word.hasPrefix("-") ? "option" : "command"
    let known = kind == "option" ? ["--help", "--version"] : shownCommands.map { $0.help.name }
    throw UsageError(
      "\(kind) \(Suggestion.quote(word)) does not exist\(hint(word, known))\n'\(name) help' lists the commands.")
  }

  private func hint(_ word: String, _ known: [String]) -> String {
    Suggestion.nearest(to: word, in: known).map { "; did you mean '\($0)'?" } ?? ""
  }

  // MARK: - Words

  private func fill(_ parameters: [Parameter], from words: [String]) throws {
    var places = parameters.filter { $0.kind == .argument }[...]
    var rest = words[...]
    var optionsEnded = false
    while let word = rest.popFirst() {
      if optionsEnded || !word.hasPrefix("-") || word == "-" {
        guard let place = places.first else { throw UsageError("\(Suggestion.quote(word)) is one word too many") }
        try give(word, to: place)
        if !place.isRepeating { places.removeFirst() }
      } else if word == "--" {
        optionsEnded = true
      } else {
        try option(word, among: parameters, &rest)
      }
    }
    if let missing = parameters.first(where: { $0.isRequired && !$0.isGiven }) {
      throw UsageError("\(missing.title) is missing")
    }
  }

  private func option(_ word: String, among parameters: [Parameter], _ rest: inout ArraySlice<String>) throws {
    let (name, attached) = Self.split(word)
    guard let parameter = parameters.first(where: { $0.isNamed(name) }) else {
      let known = parameters.filter { $0.kind != .argument }.map { "--\($0.name)" } + ["--help"]
      throw UsageError("option \(Suggestion.quote(name)) does not exist here\(hint(name, known))")
    }
    if parameter.isGiven, !parameter.isRepeating, parameter.kind == .option {
      throw UsageError("--\(parameter.name) is there twice")
    }
    if parameter.kind == .flag {
      guard attached == nil else { throw UsageError("--\(parameter.name) takes no value") }
      _ = parameter.take("")
      return
    }
    guard let value = attached ?? rest.popFirst() else {
      throw UsageError("--\(parameter.name) needs a value: \(parameter.help)")
    }
    try give(value, to: parameter)
  }

  /// The name and the value of `--name=value`, `--name`, `-n` and `-nvalue`.
  static func split(_ word: String) -> (name: String, value: String?) {
    if word.hasPrefix("--") {
      guard let equals = word.firstIndex(of: "=") else { return (word, nil) }
      return (String(word[..<equals]), String(word[word.index(after: equals)...]))
    }
    let value = word.dropFirst(2)
    return (String(word.prefix(2)), value.isEmpty ? nil : String(value.first == "=" ? value.dropFirst() : value))
  }

  private func give(_ word: String, to parameter: Parameter) throws {
    guard !parameter.take(word) else { return }
    let expected = parameter.choices.isEmpty ? parameter.valueKind : Suggestion.list(parameter.choices)
    throw UsageError(
      "\(parameter.title): \(Suggestion.quote(word)) is not \(expected)\(hint(word, parameter.choices))")
  }
}

extension Parameter {
  /// Whether `word` is its name on the command line, `--name` or `-n`.
  func isNamed(_ word: String) -> Bool {
    kind != .argument && (word == "--\(name)" || short.map { word == "-\($0)" } ?? false)
  }
}
