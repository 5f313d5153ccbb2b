// What plain values look like to an editor. It reads YAML 1.2 and sees numbers and booleans where our reader sees their text, so each
// kind says which of them may stand there too.

import StreamBroker

extension ConfigSchema {
  /// `${NAME}` may stand in any value; what it comes to is seen only by `check`.
  static let variable = #"\$\{"#

  static let valueDefinitions: [(name: String, schema: JSONValue)] = [
    (
      "variable",
      .object([
        "description": .text("${NAME} or ${NAME:-value}: a variable of the environment"), "type": .text("string"),
        "pattern": .text(variable),
      ])
    ),
    (
      "switch",
      any([
        .object(["enum": .array([.text("yes"), .text("no"), .text("on"), .text("off"), .bool(true), .bool(false)])]),
        // As our reader takes them, in any case.
        .object([
          "type": .words("string", "integer"), "minimum": .integer(0), "maximum": .integer(1),
          "pattern": .text(
            "^(?:[Yy][Ee][Ss]|[Nn][Oo]|[Oo][Nn]|[Oo][Ff][Ff]|[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]|[01])$|\(variable)"),
        ]),
      ])
    ),
  ]

  /// What a value of the kind may be.
  static func value(_ kind: ValueKind) -> JSONValue {
    if kind == .flag { return any([.object(["$ref": .text("#/definitions/switch")])]) }
    let forms = Forms(kind)
    var choices: [JSONValue] = []
    if !forms.words.isEmpty { choices.append(.object(["enum": .array(forms.words.flatMap(written))])) }
    if forms.isFree {
      choices.append(.object(["type": anyScalar, "minLength": .integer(1)]))
    } else if forms.patterns.isEmpty {
      choices.append(.object(["$ref": .text("#/definitions/variable")]))
    } else {
      let pattern = "^(?:\(forms.patterns.joined(separator: "|")))$|\(variable)"
      choices.append(
        .object([
          "type": forms.integers != nil ? .words("string", "integer") : forms.isText ? anyScalar : .text("string"),
          "minimum": forms.integers.map { .integer($0.lowerBound) },
          "maximum": forms.integers.map { .integer($0.upperBound) }, "pattern": .text(pattern),
        ]))
    }
    return choices.count == 1 ? choices[0] : any(choices)
  }

  private static let anyScalar = JSONValue.words("string", "number", "boolean")

  /// A value of the tables as people write it.
  static func plain(_ text: String, _ kind: ValueKind) -> JSONValue { written(text).first ?? .text(text) }

  /// The word, and before it the number that YAML takes it for.
  private static func written(_ word: String) -> [JSONValue] {
    if let number = UInt64(word), String(number) == word { return [.integer(number), .text(word)] }
    if let number = Double(word), "\(number)" == word { return [.decimal(number), .text(word)] }
    return [.text(word)]
  }

  /// The texts of a kind: words, regular expressions for whole texts, and integers that may stand without quotes.
  private struct Forms {
    var words: [String] = []
    var patterns: [String] = []
    var integers: ClosedRange<Int>?
    /// Any text but none.
    var isFree = false
    /// What YAML takes for something else is a text, too.
    var isText = false

    init(_ kind: ValueKind) {
      switch kind {
      case .text, .secret, .path, .uuid, .flag: isFree = true
      case .file: patterns = ["/.*"]
      case .integer(let range):
        patterns = ["0|[1-9][0-9]*"]
        integers = range
      case .mode:
        patterns = ["0{0,2}[0-7]{1,3}"]
        integers = 0...777
      case .size(let range):
        patterns = ["[0-9]+(?:\(Units.sizeNames.joined(separator: "|")))?"]
        integers = range
      case .duration(let range):
        patterns = [Self.duration]
        if range.contains(.zero) {
          patterns.append("0")
          integers = 0...0
        }
      case .durations: patterns = [#"\#(Self.duration)\.\.\#(Self.duration)"#]
      case .words(let words): self.words = words
      case .network: patterns = ["[0-9A-Fa-f.:]+(?:/[0-9]{1,3})?"]
      case .escapes:
        patterns = [#"(?:[^\\]|\\[rnt\\]|\\x[0-9A-Fa-f]{2})+"#]
        isText = true
      case .prefixed(let word, let kind): patterns = Forms(kind).patterns.map { "\(word):(?:\($0))" }
      case .either(let first, let second):
        let (one, other) = (Forms(first), Forms(second))
        words = one.words + other.words
        patterns = one.patterns + other.patterns
        integers = one.integers ?? other.integers
        isFree = one.isFree || other.isFree
      }
    }

    private static let duration = "[0-9]+(?:\(Units.durationNames.joined(separator: "|")))"
  }
}
