// Finds the probable mistake in a line that libyaml cannot parse, and writes the line as it should be. YAMLParser uses
// it, because libyaml's messages name the grammar and not the mistake.

import StreamBroker

struct YAMLAdvice {
  private let line: [Unicode.Scalar]
  private let before: [Unicode.Scalar]
  /// The index in `line` where libyaml failed; `line.count` at its end.
  private let index: Int
  private let number: Int

  /// `file` is UTF-8.
  init(_ file: [UInt8], at location: ConfigProblem.SourceLocation) {
    var (line, before): ([Unicode.Scalar], [Unicode.Scalar]) = ([], [])
    var here = ConfigProblem.SourceLocation.start
    var last: Unicode.Scalar?
    for scalar in String(decoding: file, as: UTF8.self).unicodeScalars {
      if here.line == location.line {
        line.append(scalar)
      } else if here.line == location.line - 1 {
        before.append(scalar)
      }
      here.pass(scalar, after: last)
      last = scalar
      if here.line > location.line { break }
    }
    self.line = Self.withoutEnd(line)
    self.before = Self.withoutEnd(before)
    index = min(location.column - 1, self.line.count)
    number = location.line
  }

  private static func withoutEnd(_ line: [Unicode.Scalar]) -> [Unicode.Scalar] {
    Array(line[..<((line.lastIndex { !["\n", "\r", "\u{85}", "\u{2028}", "\u{2029}"].contains($0) } ?? -1) + 1)])
  }

  /// Nil when libyaml's message is the best.
  func fault(_ problem: String, _ context: String) -> YAMLFault? {
    if let fault = typography(before, number - 1) ?? typography(line, number) { return fault }
    if context.contains("flow") { return flow() }
    if problem.contains("mapping values are not allowed") { return deeper() ?? colon(isFlow: false) }
    if problem.contains("expected key") { return collection(isFlow: false) }
    return nil
  }

  // MARK: letters that look like others

  private func typography(_ line: [Unicode.Scalar], _ number: Int) -> YAMLFault? {
    for (index, scalar) in line.enumerated() where Self.isStructural(index, line) {
      let location = Self.location(number, index)
      if Typography.isOddSpace(scalar) {
        return YAMLFault(
          "\(Typography.name(of: scalar)), which YAML treats as a letter; write a plain space or none", at: location)
      }
      if Typography.isCurlyQuote(scalar), let end = line[(index + 1)...].firstIndex(where: Typography.isCurlyQuote) {
        let form = hasSecret ? "" : ": \(YAMLFault.quoted(Self.text(line[(index + 1)..<end])))"
        return YAMLFault(YAMLFault.curlyQuote(scalar) + form, at: location)
      }
    }
    return nil
  }

  /// Whether a key or value could begin here: the last letter before it, except spaces of any kind, is one of YAML's
  /// marks.
  private static func isStructural(_ index: Int, _ line: [Unicode.Scalar]) -> Bool {
    guard let last = line[..<index].last(where: { $0 != " " && !Typography.isOddSpace($0) }) else { return true }
    return [":", "-", "[", "{", ","].contains(last)
  }

  // MARK: texts that need quotes

  private func flow() -> YAMLFault? {
    guard index < line.count else { return nil }
    if let fault = bareAddress() ?? collection(isFlow: true) { return fault }
    if line[index] == ":" { return colon(isFlow: true) }
    // tcp://[::1]:4001 within [ ] or { }
    guard line[index] == "[" || line[index] == "{", index > 0, line[index - 1] != " " else { return nil }
    let start = (line[..<index].lastIndex { $0 == " " || $0 == "," } ?? -1) + 1
    let first = line[start..<index].firstIndex { $0 != "[" && $0 != "{" } ?? index
    guard first < index else { return nil }
    return needsQuotes(
      "'\(line[index])' within a text, in [ ] or { }", value: Self.text(line[first..<endOfItem(from: index)]), at: index
    )
  }

  /// `Hello: you`
  private func colon(isFlow: Bool) -> YAMLFault? {
    guard index < line.count, line[index] == ":", let start = startOfValue(before: index, isFlow: isFlow), start < index
    else { return nil }
    let end = isFlow ? endOfItem(from: index) : endOfLine
    return needsQuotes("': ' within a text", value: Self.text(line[start..<end]), at: index)
  }

  /// A key that is indented deeper than the key before it, which has a value. The line's first colon is where it
  /// failed.
  private func deeper() -> YAMLFault? {
    func indent(_ line: [Unicode.Scalar]) -> Int { line.firstIndex { $0 != " " } ?? line.count }
    func keyEnd(_ line: [Unicode.Scalar]) -> Int? {
      line.indices.first { line[$0] == ":" && ($0 + 1 == line.count || line[$0 + 1] == " ") }
    }
    let here = indent(line)
    guard keyEnd(line) == index, here < index, here > indent(before), let end = keyEnd(before),
      let value = before[(end + 1)...].first(where: { $0 != " " }), value != "#"
    else { return nil }
    return YAMLFault(
      "indented deeper than the line before, which has a value already; keys that belong together begin in the same column",
      at: Self.location(number, here))
  }

  /// `{route} here`
  private func collection(isFlow: Bool) -> YAMLFault? {
    guard index < line.count, let last = line[..<index].lastIndex(where: { $0 != " " }),
      line[last] == "}" || line[last] == "]"
    else { return nil }
    let opening: Unicode.Scalar = line[last] == "}" ? "{" : "["
    guard let start = line[..<last].lastIndex(of: opening) else { return nil }
    let end = isFlow ? endOfItem(from: index) : endOfLine
    return needsQuotes("a text that begins with '\(opening)'", value: Self.text(line[start..<end]), at: start)
  }

  /// `[::1]:4001`, which begins like a list.
  private func bareAddress() -> YAMLFault? {
    guard let start = line[..<index].lastIndex(of: "["), let end = line[start...].firstIndex(of: "]") else {
      return nil
    }
    let inner = line[(start + 1)..<end]
    guard inner.count(where: { $0 == ":" }) > 1, inner.allSatisfy({ $0 == ":" || $0.properties.isASCIIHexDigit }) else {
      return nil
    }
    let rest = line[end...].prefix { $0 != " " && $0 != "," }
    return needsQuotes("an address in brackets", value: "tcp://[\(Self.text(inner))\(Self.text(rest))", at: start)
  }

  private func needsQuotes(_ what: String, value: String, at index: Int) -> YAMLFault? {
    guard !value.isEmpty, !value.hasPrefix("\""), !value.hasPrefix("'") else { return nil }
    let form = hasSecret ? "" : ": \(YAMLFault.quoted(value))"
    return YAMLFault("\(what); write it in quotes\(form)", at: Self.location(number, index))
  }

  // MARK: parts of the line

  private var hasSecret: Bool { Suggestion.mayHoldSecret("\(Self.text(before[...])) \(Self.text(line[...]))") }

  /// The index after the last mark of YAML's; nil without one.
  private func startOfValue(before end: Int, isFlow: Bool) -> Int? {
    let marks = line[..<end].indices.filter { index in
      (line[index] == ":" || line[index] == "," && isFlow) && index + 1 < end && line[index + 1] == " "
    }
    // In a block the first colon ends the key.
    guard let mark = isFlow ? marks.last : marks.first else { return nil }
    return line[(mark + 1)..<end].firstIndex { $0 != " " }
  }

  private func endOfItem(from index: Int) -> Int {
    var depth = 0
    for (position, scalar) in line.enumerated().dropFirst(index) {
      switch scalar {
      case "[", "{": depth += 1
      case "]", "}":
        depth -= 1
        if depth < 0 { return position }
      case "," where depth == 0: return position
      default: break
      }
    }
    return line.count
  }

  private var endOfLine: Int {
    line.indices.first { $0 > index && line[$0] == "#" && line[$0 - 1] == " " } ?? line.count
  }

  private static func text(_ part: ArraySlice<Unicode.Scalar>) -> String {
    var text = String.UnicodeScalarView()
    text.append(contentsOf: part.drop { $0 == " " })
    while text.last == " " { text.removeLast() }
    return String(text)
  }

  private static func location(_ line: Int, _ index: Int) -> ConfigProblem.SourceLocation {
    ConfigProblem.SourceLocation(line: line, column: index + 1)
  }
}

extension YAMLFault {
  static func curlyQuote(_ quote: Unicode.Scalar) -> String {
    "'\(quote)' is a letter to YAML, not a quote; write straight quotes or none"
  }

  /// `text` in YAML's quotes, shortened like every text in a message.
  static func quoted(_ text: String) -> String {
    let plain = Suggestion.plain(text)
    return plain.contains("\"") || plain.contains("\\")
      ? "'\(plain.replacing("'", with: "''"))'" : "\"\(plain)\""
  }
}
