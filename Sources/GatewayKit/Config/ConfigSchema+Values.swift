// The schema of plain values. Editors read YAML 1.2 and see numbers and booleans where our reader sees text, so each
// kind lists which of these it accepts.

import StreamBroker

extension ConfigSchema {
  /// `${NAME}` is allowed in any value; only `check` sees what it expands to.
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
        // Like our reader, in upper or lower case.
        .object([
          "type": .words("string", "integer"), "minimum": .integer(0), "maximum": .integer(1),
          "pattern": .text(
            "^(?:[Yy][Ee][Ss]|[Nn][Oo]|[Oo][Nn]|[Oo][Ff][Ff]|[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]|[01])$|\(variable)"),
        ]),
      ])
    ),
  ]

  /// The schema of a value of the kind.
  static func value(_ kind: ValueKind) -> JSONValue {
    if kind == .flag { return any([.object(["$ref": .text("#/definitions/switch")])]) }
    if case .either(.flag, let other) = kind { return any([value(.flag), value(other)]) }
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

  /// A default of the tables as users write it.
  static func plain(_ text: String, _ kind: ValueKind) -> JSONValue { written(text).first ?? .text(text) }

  /// The word. If YAML reads the word as a number, that number comes first.
  private static func written(_ word: String) -> [JSONValue] {
    if let number = UInt64(word), String(number) == word { return [.integer(number), .text(word)] }
    if let number = Double(word), "\(number)" == word { return [.decimal(number), .text(word)] }
    return [.text(word)]
  }

  /// The texts that a kind accepts: words, regular expressions for whole texts, and integers without quotes.
  private struct Forms {
    var words: [String] = []
    var patterns: [String] = []
    var integers: ClosedRange<Int>?
    /// Any text except an empty one.
    var isFree = false
    /// A scalar that YAML reads as another type counts as text, too.
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
      case .resetRecipe:
        words = ResetRecipe.names
        patterns = [ResetRecipe.pattern]
      case .prefixed(let word, let kind): patterns = Forms(kind).patterns.map { "\(word):(?:\($0))" }
      case .either(let first, let second):
        let (one, other) = (Forms(first), Forms(second))
        words = one.words + other.words
        patterns = one.patterns + other.patterns
        integers = one.integers ?? other.integers
        isFree = one.isFree || other.isFree
      }
    }

    private static let duration =
      "[0-9]+(?:\\.[0-9]{1,\(Units.mostPlaces)})?(?:\(Units.durationNames.joined(separator: "|")))"
  }
}
