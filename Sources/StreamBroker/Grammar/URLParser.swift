// One reading of one URL: cuts the text into scheme, authority, path and query, checks each part by the scheme's table,
// and collects what is wrong with its place. Used by EndpointURL alone. URLParser+Parts.swift checks the parts.

struct URLParser {
  /// Longer texts are not looked at.
  static let limit = 4096
  /// More problems are not looked for: a text of nothing but parameters that are unknown takes long, and tells nobody more.
  private static let mostProblems = 100

  let text: String
  let beside: [(name: String, value: String)]
  let schemes: [SchemeGrammar]
  /// Those that can be used; nil for all.
  let built: Set<String>?
  /// What stands for a secret → the secret, or what is wrong with it.
  let reveal: EndpointURL.Revealer
  /// Unicode scalars, so that a place in them is a column of the config file.
  let scalars: [Unicode.Scalar]
  private(set) var problems: [URLProblem] = []
  /// Parameters that were given and may be given once only.
  var said: Set<String> = []

  /// Where a word came from, for the problem it may become.
  enum Origin {
    case text(Int)
    case beside(Int, isValue: Bool)
  }

  init(
    _ text: String, beside: [(name: String, value: String)], schemes: [SchemeGrammar], built: Set<String>?,
    reveal: @escaping EndpointURL.Revealer
  ) {
    self.text = text
    self.beside = beside
    self.schemes = schemes
    self.built = built
    self.reveal = reveal
    scalars = text.utf8.count > Self.limit ? [] : Array(text.unicodeScalars)
  }

  var isFull: Bool { problems.count >= Self.mostProblems }

  mutating func report(_ message: String, at origin: Origin, suggestion: String? = nil) {
    if isFull { return }
    switch origin {
    case .text(let offset):
      problems.append(URLProblem(message: message, offset: offset, suggestion: suggestion, beside: nil))
    case .beside(let index, let isValue):
      let beside = URLProblem.Beside(index: index, isValue: isValue)
      problems.append(URLProblem(message: message, offset: 0, suggestion: suggestion, beside: beside))
    }
  }

  mutating func report(_ message: String, at offset: Int, suggestion: String? = nil) {
    report(message, at: .text(offset), suggestion: suggestion)
  }

  /// Nil when the text can't be cut into parts; else a URL that is good if no problem was reported.
  mutating func parse() -> EndpointURL? {
    guard isReadable(), let (grammar, start) = readScheme() else { return nil }
    guard let parts = cut(from: start, grammar) else { return nil }
    let faultsBefore = problems.count
    let (host, port) = readAuthority(parts.authority, path: parts.path, grammar)
    let path = readPath(parts.path, host: host, grammar)
    var settings = readSettings(parts.query, grammar)
    if case .ignored(let name) = grammar.authority, let port { imply(name, port, at: parts.authority, &settings) }
    let order = grammar.parameters.map(\.name)
    let given = order.flatMap { name in settings.filter { $0.setting.name == name } }
    let url = EndpointURL(
      text: text, host: host, port: port, path: path, settings: given.map(\.setting), grammar: grammar)
    // A rule looks at the whole: it has nothing to say about a URL with broken parts.
    let isWhole = problems.count == faultsBefore
    var isRefused = false
    for rule in grammar.rules where isWhole {
      guard let message = rule.fault(url) else { continue }
      if rule.parameter == nil { isRefused = true }
      let origin = rule.parameter.flatMap { name in given.first { $0.setting.name == name }?.origin }
      report(rule.parameter.map { "\($0): \(message)" } ?? message, at: origin ?? .text(0))
    }
    if let built, !built.contains(grammar.scheme), !isRefused {
      report("scheme '\(grammar.scheme)' is not in \(Version.name)", at: 0)
    }
    return url
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
      report("\(space.name) in a URL; write none there", at: space.offset, suggestion: urlWithoutOddSpaces())
    } else if let offset = scalars.firstIndex(where: { $0 == " " || $0 == "#" }) {
      reportSpaceOrHash(at: offset)
    }
    return problems.isEmpty
  }

  /// What comes after a space or a `#` is a comment that lacks its space, arguments of a program, or a mistake.
  private mutating func reportSpaceOrHash(at offset: Int) {
    if scalars[offset] == "#" {
      report(
        "'#' in a URL; a comment needs a space before it, and a '#' of the URL's own is written %23", at: offset,
        suggestion: urlBeforeComment(at: offset))
    } else if let (program, url) = programWithArguments() {
      let look = program.contains("/") ? "" : " ('command -v \(Suggestion.plain(program))' prints it)"
      report(
        "exec takes the path of a program\(look) and each argument as a parameter; no shell reads them", at: offset,
        suggestion: url)
    } else {
      report(
        "space in a URL; where one is meant write %20", at: offset,
        suggestion: urlWithEscapedSpaces())
    }
  }

  private mutating func readScheme() -> (SchemeGrammar, Int)? {
    let names = schemes.map(\.scheme)
    let example = schemes.first { $0.scheme == "tcp" }?.example ?? schemes[0].example
    let colon = scalars.firstIndex(of: ":") ?? scalars.count
    let name = string(0..<colon).lowercased()
    let isName =
      name.first?.isLetter ?? false && name.allSatisfy { $0.isASCII && ($0.isLetter || $0.isNumber || $0 == "+") }
    guard colon < scalars.count, isName else {
      report("no scheme; expected a URL such as \(example)", at: 0, suggestion: urlWithScheme())
      return nil
    }
    if let grammar = schemes.first(where: { $0.scheme == name }) { return (grammar, colon + 1) }
    let suggestion = urlWithScheme() ?? Suggestion.nearest(to: name, in: names)
    let choice = names.filter { built?.contains($0) ?? true }
    let known = suggestion == nil ? "; known are \(Suggestion.list(choice))" : ""
    report("unknown scheme \(Suggestion.quote(name))\(known)", at: 0, suggestion: suggestion)
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

  /// Undoes the %-escapes of a part. Nil, and reported, when one is broken or stands for what no part may hold.
  mutating func decode(_ range: Range<Int>) -> String? {
    var bytes: [UInt8] = []
    var next = range.lowerBound
    var firstEscape: Int?
    while next < range.upperBound {
      guard scalars[next] == "%" else {
        bytes.append(contentsOf: UTF8.encode(scalars[next])!)
        next += 1
        continue
      }
      let digits = next + 3 <= range.upperBound ? string(next + 1..<next + 3) : ""
      guard BluetoothNames.isHex(digits[...], count: 2), let byte = UInt8(digits, radix: 16) else {
        report("broken %-escape; expected % and two hexadecimal digits (a % itself is %25)", at: next)
        return nil
      }
      firstEscape = firstEscape ?? next
      bytes.append(byte)
      next += 3
    }
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
