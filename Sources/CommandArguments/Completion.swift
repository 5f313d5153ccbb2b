// What a shell may offer for the word that is being typed.

import StreamBrokerCore

/// What completes a value.
package enum Completion: Sendable {
  case nothing
  /// Files whose names end so (`yaml`); any file if empty.
  case files([String] = [])
  case words([String])
  /// Looked for when asked; takes the command's words before this one.
  case found(@Sendable (CompletionContext) -> [Candidate])
}

/// The words of a command before the one that is being typed.
package struct CompletionContext: Sendable {
  /// Those that are no options, nor their values.
  package fileprivate(set) var arguments: [String] = []
  /// Values of options, by name.
  package fileprivate(set) var options: [String: String] = [:]
}

package struct Candidate: Hashable, Sendable {
  package let word: String
  /// What the word means; may be empty.
  package let note: String

  /// Control characters become escapes: a device may call itself anything, and the shell shows it.
  package init(_ word: String, note: String = "") {
    self.word = Self.shown(word)
    self.note = Self.shown(note)
  }

  private static func shown(_ text: String) -> String {
    text.unicodeScalars.reduce(into: "") {
      $0 += Suggestion.isControl($1) ? $1.escaped(asASCII: true) : String($1)
    }
  }
}

extension Program {
  /// Candidates for the last of `words`, which may be empty, as lines for the scripts in Deploy/completions: a word, a
  /// tab and its note, or a line `:files`, with the endings of names after it, where files complete the word.
  package func completions(of words: [String]) -> [String] {
    let last = words.last ?? ""
    guard words.count > 1 else {
      let commands = shownCommands.map { Candidate($0.help.name, note: $0.help.abstract) }
      let general = [
        Candidate("--help", note: "Prints the commands."), Candidate("--version", note: "Prints the version."),
      ]
      return lines(last.hasPrefix("-") ? general : commands + [helpCandidate], beginningWith: last)
    }
    if words[0] == "help" {
      return words.count == 2
        ? lines(shownCommands.map { Candidate($0.help.name, note: $0.help.abstract) }, beginningWith: last) : []
    }
    guard let type = commands.first(where: { $0.help.name == words[0] }) else { return [] }
    return Line(of: type, words.dropFirst().dropLast()).candidates(for: last)
  }

  private var helpCandidate: Candidate { Candidate("help", note: "Explains a command.") }
}

private func lines(_ candidates: [Candidate], beginningWith start: String, after prefix: String = "") -> [String] {
  candidates.filter { $0.word.hasPrefix(start) }.map { candidate in
    prefix + candidate.word + (candidate.note.isEmpty ? "" : "\t" + candidate.note)
  }
}

/// The words of one command before the one that is being typed.
private struct Line {
  private let all: [Parameter]
  private var context = CompletionContext()
  private var given: Set<String> = []
  /// The option whose value comes next.
  private var open: Parameter?
  private var optionsEnded = false

  init(of type: any Command.Type, _ words: some Sequence<String>) {
    all = parameters(of: type.init())
    for word in words { pass(word) }
  }

  private mutating func pass(_ word: String) {
    if let option = open {
      context.options[option.name] = word
      open = nil
    } else if optionsEnded || !word.hasPrefix("-") || word == "-" {
      context.arguments.append(word)
    } else if word == "--" {
      optionsEnded = true
    } else {
      let (name, value) = Program.split(word)
      guard let parameter = all.first(where: { $0.isNamed(name) }) else { return }
      given.insert(parameter.name)
      guard parameter.kind == .option else { return }
      if let value { context.options[parameter.name] = value } else { open = parameter }
    }
  }

  func candidates(for word: String) -> [String] {
    if let open { return values(of: open, word) }
    if !optionsEnded, word.hasPrefix("-"), word != "-" {
      let (name, value) = Program.split(word)
      if let value {
        guard let parameter = all.first(where: { $0.isNamed(name) }) else { return [] }
        return values(of: parameter, value, after: name + "=")
      }
      let names = all.filter { $0.kind != .argument && ($0.isRepeating || !given.contains($0.name)) }
        .map { Candidate("--\($0.name)", note: $0.help) }
      return lines(names + [Candidate("--help", note: "Explains this command.")], beginningWith: word)
    }
    let arguments = all.filter { $0.kind == .argument }
    let place = context.arguments.count
    if place < arguments.count { return values(of: arguments[place], word) }
    guard let last = arguments.last, last.isRepeating else { return [] }
    return values(of: last, word)
  }

  private func values(of parameter: Parameter, _ start: String, after prefix: String = "") -> [String] {
    switch parameter.completion {
    case .nothing: []
    case .files(let endings): [([":files"] + endings).joined(separator: "\t")]
    case .words(let words): lines(words.map { Candidate($0) }, beginningWith: start, after: prefix)
    case .found(let find): lines(find(context), beginningWith: start, after: prefix)
    }
  }
}
