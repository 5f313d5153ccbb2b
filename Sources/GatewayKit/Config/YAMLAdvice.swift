// What was probably meant where YAML can't be read: looks at the line of the fault, and gives the line as it has to be. Used by YAMLParser
// for faults of libyaml, whose own words name the grammar and not the mistake.

import StreamBroker

struct YAMLAdvice {
  private let line: [Unicode.Scalar]
  private let before: [Unicode.Scalar]
  /// Index in `line` of what libyaml stumbled over; `line.count` at its end.
  private let index: Int
  private let number: Int

  /// `file` is UTF-8.
  init(_ file: [UInt8], at place: ConfigProblem.Place) {
    var (line, before): ([Unicode.Scalar], [Unicode.Scalar]) = ([], [])
    var here = ConfigProblem.Place.start
    var last: Unicode.Scalar?
    for scalar in String(decoding: file, as: UTF8.self).unicodeScalars {
      if here.line == place.line { line.append(scalar) } else if here.line == place.line - 1 { before.append(scalar) }
      here.pass(scalar, after: last)
      last = scalar
      if here.line > place.line { break }
    }
    self.line = Self.withoutEnd(line)
    self.before = Self.withoutEnd(before)
    index = min(place.column - 1, self.line.count)
    number = place.line
  }

  private static func withoutEnd(_ line: [Unicode.Scalar]) -> [Unicode.Scalar] {
    Array(line[..<((line.lastIndex { !["\n", "\r", "\u{85}", "\u{2028}", "\u{2029}"].contains($0) } ?? -1) + 1)])
  }

  /// Nil when nothing better is known than what libyaml says.
  func fault(_ problem: String, _ context: String) -> YAMLFault? {
    if let fault = typography(before, number - 1) ?? typography(line, number) { return fault }
    if context.contains("flow") { return flow() }
    if problem.contains("mapping values are not allowed") { return colon(isFlow: false) }
    if problem.contains("expected key") { return collection(isFlow: false) }
    return nil
  }

  // MARK: letters that look like others

  private func typography(_ line: [Unicode.Scalar], _ number: Int) -> YAMLFault? {
    for (index, scalar) in line.enumerated() where Self.isStructural(index, line) {
      let place = Self.place(number, index)
      if Typography.isOddSpace(scalar) {
        return YAMLFault(
          "\(Typography.name(of: scalar)), which is a letter to YAML; write a plain space or none", at: place)
      }
      if Typography.isCurlyQuote(scalar), let end = line[(index + 1)...].firstIndex(where: Typography.isCurlyQuote) {
        let form = hasSecret ? "" : ": \(YAMLFault.quoted(Self.text(line[(index + 1)..<end])))"
        return YAMLFault(YAMLFault.curlyQuote(scalar) + form, at: place)
      }
    }
    return nil
  }

  /// Whether a key or value could begin here: nothing stands before it but blanks, odd or not, and marks.
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

  /// `[::1]:4001`, which begins as a list does.
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
    return YAMLFault("\(what); write it in quotes\(form)", at: Self.place(number, index))
  }

  // MARK: parts of the line

  private var hasSecret: Bool { Suggestion.mayHoldSecret("\(Self.text(before[...])) \(Self.text(line[...]))") }

  /// Behind the last mark of YAML's; nil without one.
  private func startOfValue(before end: Int, isFlow: Bool) -> Int? {
    let marks = line[..<end].indices.filter { index in
      (line[index] == ":" || line[index] == "," && isFlow) && index + 1 < end && line[index + 1] == " "
    }
    // In a block the first colon parts key and value, whatever comes then.
    guard let mark = isFlow ? marks.last : marks.first else { return nil }
    return line[(mark + 1)..<end].firstIndex { $0 != " " }
  }

  private func endOfItem(from index: Int) -> Int {
    var depth = 0
    for (place, scalar) in line.enumerated().dropFirst(index) {
      switch scalar {
      case "[", "{": depth += 1
      case "]", "}":
        depth -= 1
        if depth < 0 { return place }
      case "," where depth == 0: return place
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

  private static func place(_ line: Int, _ index: Int) -> ConfigProblem.Place {
    ConfigProblem.Place(line: line, column: index + 1)
  }
}

extension YAMLFault {
  static func curlyQuote(_ quote: Unicode.Scalar) -> String {
    "'\(quote)' is a letter to YAML, not a quote; write straight quotes or none"
  }

  /// `text` as YAML has it in quotes, cut as every text in a message.
  static func quoted(_ text: String) -> String {
    let plain = Suggestion.plain(text)
    return plain.contains("\"") || plain.contains("\\")
      ? "'\(plain.replacing("'", with: "''"))'" : "\"\(plain)\""
  }
}
