// Parses one URL: splits the text into scheme, authority, path and query, checks each part by the scheme's table, and
// collects the problems with their positions. Only EndpointURL uses it. URLParser+Parts.swift checks the parts.

import ByteStreams

struct URLParser {
  /// Bytes. Longer texts are not parsed.
  static let limit = 4096
  /// More problems are not collected: a text full of unknown parameters would take long and help nobody.
  private static let mostProblems = 100

  let text: String
  let beside: [(name: String, value: String)]
  let schemes: [SchemeGrammar]
  /// The schemes that can be used; nil for all.
  let built: Set<String>?
  /// What has the built schemes: "Baudway 0.1.0".
  let place: String
  /// Turns the text of a secret into the secret, or reports what is wrong with it.
  let reveal: EndpointURL.Revealer
  /// Whether the text is a guess of another parser. Its problems are not shown, so it makes no guesses itself: one
  /// whose scheme is not accepted here would lead to the next without end.
  let isGuess: Bool
  /// Unicode scalars, so that an offset is a column of the config file.
  let scalars: [Unicode.Scalar]
  private(set) var problems: [URLProblem] = []
  /// The parameters given so far that may be given only once.
  var said: Set<String> = []

  /// The position of a word, for a problem with it.
  enum Origin {
    case text(Int)
    case beside(Int, isValue: Bool)
  }

  init(
    _ text: String, beside: [(name: String, value: String)], schemes: [SchemeGrammar], built: Set<String>?,
    in place: String, reveal: @escaping EndpointURL.Revealer, isGuess: Bool = false
  ) {
    self.isGuess = isGuess
    self.text = text
    self.beside = beside
    self.schemes = schemes
    self.built = built
    self.place = place
    self.reveal = reveal
    scalars = text.utf8.count > Self.limit ? [] : Array(text.unicodeScalars)
  }

  var isFull: Bool { problems.count >= Self.mostProblems }

  mutating func report(_ message: String, at origin: Origin, suggestion: String? = nil, unknown: String? = nil) {
    if isFull { return }
    var problem: URLProblem
    switch origin {
    case .text(let offset):
      problem = URLProblem(message: message, offset: offset, suggestion: suggestion, beside: nil)
    case .beside(let index, let isValue):
      let beside = URLProblem.Beside(index: index, isValue: isValue)
      problem = URLProblem(message: message, offset: 0, suggestion: suggestion, beside: beside)
    }
    problem.unknown = unknown
    problems.append(problem)
  }

  mutating func report(_ message: String, at offset: Int, suggestion: String? = nil) {
    report(message, at: .text(offset), suggestion: suggestion)
  }

  /// Nil if the text can't be split into parts. Otherwise a URL, which is valid if no problem was reported.
  mutating func parse() -> EndpointURL? {
    guard isReadable(), let (grammar, start) = readScheme() else { return nil }
    if let refusal = grammar.refusal {
      report(refusal(string(start..<scalars.count)), at: 0)
      return nil
    }
    guard let parts = cut(from: start, grammar) else { return nil }
    let faultsBefore = problems.count
    let (host, port) = readAuthority(parts.authority, path: parts.path, grammar)
    let path = readPath(parts.path, host: host, grammar)
    var settings = readSettings(parts.query, grammar)
    if case .ignored(let name) = grammar.authority, let port { imply(name, port, at: parts.authority, &settings) }
    let order = grammar.parameters.map(\.name)
    let given = order.flatMap { name in settings.filter { $0.setting.name == name } }
    let warnings = ignoredPath(parts.path, grammar) {
      let inText = given.filter { if case .text = $0.origin { true } else { false } }
      return EndpointURL(
        text: text, host: host, port: port, path: path, settings: inText.map(\.setting), grammar: grammar)
    }
    let url = EndpointURL(
      text: text, host: host, port: port, path: path, settings: given.map(\.setting), grammar: grammar,
      warnings: warnings)
    // A rule looks at the whole URL, so it is skipped if a part is broken.
    let isWhole = problems.count == faultsBefore
    for rule in grammar.rules where isWhole {
      guard let message = rule.fault(url) else { continue }
      let origin = rule.parameter.flatMap { name in given.first { $0.setting.name == name }?.origin }
      report(rule.parameter.map { "\($0): \(message)" } ?? message, at: origin ?? .text(0))
    }
    if let built, !built.contains(grammar.scheme) {
      report("scheme '\(grammar.scheme)' is not in \(place)", at: 0)
    }
    return url
  }

  /// The warning of a path that has no effect. `rest` is the URL to write instead.
  private func ignoredPath(_ range: Range<Int>, _ grammar: SchemeGrammar, rest: () -> EndpointURL) -> [URLWarning] {
    guard grammar.path == .ignored, range.count > 1 else { return [] }
    let path = Suggestion.quote(string(range))
    let message = "\(grammar.scheme) takes no path: \(path) is ignored; write \(rest())"
    return [URLWarning(message: message, offset: range.lowerBound)]
  }

  // MARK: cutting

  private mutating func isReadable() -> Bool {
    if text.isEmpty {
      report("empty; expected a URL such as tcp://host:4001", at: 0)
    } else if scalars.isEmpty {
      report("longer than \(Self.limit) bytes", at: 0)
    } else if let offset = scalars.firstIndex(where: { Suggestion.isControl($0) }) {
      report("control character \(scalars[offset].escaped(asASCII: true)) in a URL", at: offset)
    } else if let space = Typography.oddSpace(in: scalars) {
      report("\(space.name) in a URL; remove it", at: space.offset, suggestion: urlWithoutOddSpaces())
    } else if let offset = scalars.firstIndex(where: { $0 == " " || $0 == "#" }) {
      reportSpaceOrHash(at: offset)
    }
    return problems.isEmpty
  }

  /// Text after a space or a `#` is a comment that lacks its space, arguments of a program, or a mistake.
  private mutating func reportSpaceOrHash(at offset: Int) {
    if scalars[offset] == "#" {
      report(
        "'#' in a URL; a comment needs a space before it, and a '#' within the URL is written %23", at: offset,
        suggestion: urlBeforeComment(at: offset))
    } else if let (program, url) = programWithArguments() {
      let look = program.contains("/") ? "" : " ('command -v \(Suggestion.plain(program))' prints it)"
      report(
        "exec takes the path of a program\(look) and each argument as a parameter; no shell reads them", at: offset,
        suggestion: url)
    } else {
      report(
        "space in a URL; write an intended space as %20", at: offset,
        suggestion: urlWithEscapedSpaces())
    }
  }

  private mutating func readScheme() -> (SchemeGrammar, Int)? {
    let known = schemes.filter { built?.contains($0.scheme) ?? true }
    let example = (known.first { $0.scheme == "tcp" } ?? known.first)?.example ?? "tcp://host:4001"
    let colon = scalars.firstIndex(of: ":") ?? scalars.count
    let name = string(0..<colon).lowercased()
    // Before anything else: a scheme of another package may have more characters in its name (RFC 3986 section 3.1).
    if colon < scalars.count, let grammar = schemes.first(where: { $0.scheme == name }) { return (grammar, colon + 1) }
    let isName =
      name.first?.isLetter ?? false && name.allSatisfy { $0.isASCII && ($0.isLetter || $0.isNumber || $0 == "+") }
    if PortNotation.isWindows(name) {
      report(
        "\(Suggestion.quote(string(0..<colon))) is a port of Windows; here a port is a path, such as tty:///dev/ttyUSB0 "
          + "('baudway devices' lists them)", at: 0)
      return nil
    }
    guard colon < scalars.count, isName else {
      report("no scheme; expected a URL such as \(example)", at: 0, suggestion: urlWithScheme())
      return nil
    }
    if let other = otherTools(name, after: colon + 1, among: known) {
      report(other.message, at: 0, suggestion: other.suggestion)
      return nil
    }
    let names = known.map(\.scheme)
    let suggestion = urlWithScheme() ?? Suggestion.nearest(to: name, in: names)
    let choice = suggestion == nil ? "; expected \(Suggestion.list(names))" : ""
    report("unknown scheme \(Suggestion.quote(name))\(choice)", at: 0, suggestion: suggestion)
    return nil
  }

  private mutating func cut(
    from start: Int, _ grammar: SchemeGrammar
  ) -> (authority: Range<Int>, path: Range<Int>, query: Range<Int>)? {
    let end = scalars.count
    let query = scalars[start...].firstIndex(of: "?") ?? end
    var authority = start..<start
    if scalars[start...].starts(with: "//".unicodeScalars) {
      let first = start + 2
      authority = first..<(scalars[first..<max(first, query)].firstIndex(of: "/") ?? query)
    } else if grammar.authority != .opaque {
      report(
        "expected '//' after '\(grammar.scheme):', as in \(grammar.example)", at: start,
        suggestion: urlWithSlashes(grammar, after: start))
      return nil
    }
    return (authority, authority.upperBound..<query, min(query + 1, end)..<end)
  }

  // MARK: text

  func string(_ range: Range<Int>) -> String {
    var text = String.UnicodeScalarView()
    text.append(contentsOf: scalars[range])
    return String(text)
  }

  func isDigits(_ range: Range<Int>) -> Bool {
    !range.isEmpty && scalars[range].allSatisfy { ("0"..."9").contains($0) }
  }

  /// Decodes the %-escapes of a part. Nil, and reported, if one is broken or encodes a character that no part may
  /// contain.
  mutating func decode(_ range: Range<Int>) -> String? {
    let encoded = scalars[range].flatMap { UTF8.encode($0)! }
    var brokenAt: Int?
    let bytes = PercentEncoding.decode(encoded) { brokenAt = brokenAt ?? $0 }
    if let brokenAt {
      let before = String(decoding: encoded[..<brokenAt], as: UTF8.self).unicodeScalars.count
      report(
        "broken %-escape; expected % and two hexadecimal digits (a % itself is %25)", at: range.lowerBound + before)
      return nil
    }
    let firstEscape = scalars[range].firstIndex(of: "%")
    guard let text = String(validating: bytes, as: UTF8.self) else {
      report("%-escapes that are not UTF-8", at: firstEscape ?? range.lowerBound)
      return nil
    }
    if text.unicodeScalars.contains(where: { Suggestion.isControl($0) }) {
      report("%-escape of a control character", at: firstEscape ?? range.lowerBound)
      return nil
    }
    return text
  }
}
