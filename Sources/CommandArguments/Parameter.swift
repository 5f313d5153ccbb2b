// The parameters of a command, as wrappers of its properties, and how they are found in it.

/// One parameter while a command line is read. The wrapper shares it with everything that describes or fills it.
package final class Parameter {
  enum Kind { case argument, option, flag }

  let kind: Kind
  /// Set when it is found in its command: that of the property, in the command line's spelling.
  fileprivate(set) var name = ""
  let short: Character?
  let help: String
  private let statedValueName: String?
  let completion: Completion
  let isRequired: Bool
  let isRepeating: Bool
  let choices: [String]
  /// What it is when not given, as a user would write it.
  let standard: String?
  let valueKind: String
  private(set) var isGiven = false
  private let fill: (String, Bool) -> Bool

  /// What the command states of it.
  fileprivate struct Terms {
    var short: Character?
    let help: String
    var valueName: String?
    var completion = Completion.nothing
  }

  /// What follows from the type of its value. As it is here: for a flag, which has none.
  fileprivate struct ValueTerms {
    var isRequired = false
    var isRepeating = false
    var choices: [String] = []
    var standard: String?
    var kind = ""
  }

  /// `fill` takes a word, and whether an earlier word was taken; it returns whether the word is a value.
  fileprivate init(_ kind: Kind, _ terms: Terms, _ value: ValueTerms, fill: @escaping (String, Bool) -> Bool) {
    self.kind = kind
    short = terms.short
    help = terms.help
    statedValueName = terms.valueName
    completion = value.choices.isEmpty ? terms.completion : .words(value.choices)
    isRequired = value.isRequired
    isRepeating = value.isRepeating
    choices = value.choices
    standard = value.standard
    valueKind = value.kind
    self.fill = fill
  }

  var valueName: String { statedValueName ?? name }
  /// The value's place in a usage line.
  var placeholder: String { valueName.uppercased() + (isRepeating ? "…" : "") }
  /// How messages name it.
  var title: String { kind == .argument ? placeholder : "--\(name)" }

  /// Whether `word` is a value of it, which it then has.
  func take(_ word: String) -> Bool {
    guard fill(word, isGiven) else { return false }
    isGiven = true
    return true
  }
}

protocol ParameterHolder {
  var parameter: Parameter { get }
}

/// A value that its place among the words tells: `ROUTE`.
@propertyWrapper package struct Argument<Value: ParameterValue>: ParameterHolder {
  private let cell: Cell<Value>
  let parameter: Parameter

  package init(
    wrappedValue: Value, help: String, name: String? = nil, completion: Completion = .nothing
  ) {
    (cell, parameter) = Cell.make(
      .argument, wrappedValue, .init(help: help, valueName: name, completion: completion))
  }
  package init(help: String, name: String? = nil, completion: Completion = .nothing) {
    (cell, parameter) = Cell.make(.argument, nil, .init(help: help, valueName: name, completion: completion))
  }

  package var wrappedValue: Value { cell.value }
}

/// A value after a name: `--timeout 10s`.
@propertyWrapper package struct Option<Value: ParameterValue>: ParameterHolder {
  private let cell: Cell<Value>
  let parameter: Parameter

  package init(
    wrappedValue: Value, short: Character? = nil, help: String, value: String? = nil, completion: Completion = .nothing
  ) {
    (cell, parameter) = Cell.make(
      .option, wrappedValue, .init(short: short, help: help, valueName: value, completion: completion))
  }
  package init(short: Character? = nil, help: String, value: String? = nil, completion: Completion = .nothing) {
    (cell, parameter) = Cell.make(
      .option, nil, .init(short: short, help: help, valueName: value, completion: completion))
  }

  package var wrappedValue: Value { cell.value }
}

/// A name without a value: `--json`.
@propertyWrapper package struct Flag: ParameterHolder {
  let parameter: Parameter

  package init(wrappedValue: Bool = false, short: Character? = nil, help: String) {
    parameter = Parameter(.flag, .init(short: short, help: help), .init(), fill: { _, _ in true })
  }

  package var wrappedValue: Bool { parameter.isGiven }
}

/// Where a value is: the copies of a command share it.
private final class Cell<Value: ParameterValue> {
  private var current: Value?

  private init(_ value: Value?) { current = value }

  var value: Value {
    guard let current else { preconditionFailure("read before the command line was") }
    return current
  }

  static func make(
    _ kind: Parameter.Kind, _ standard: Value?, _ terms: Parameter.Terms
  ) -> (Cell<Value>, Parameter) {
    let cell = Cell(standard ?? Value.absent)
    let value = Parameter.ValueTerms(
      isRequired: standard == nil && Value.absent == nil, isRepeating: Value.isRepeating, choices: Value.choices,
      standard: standard?.asWord, kind: Value.kind)
    let parameter = Parameter(kind, terms, value) { word, isMore in
      guard let value = Value.value(of: word, after: isMore ? cell.current : nil) else { return false }
      cell.current = value
      return true
    }
    return (cell, parameter)
  }
}

/// The parameters of a command, in the order of their declaration. (By reflection: a command states each once.)
func parameters(of command: Any) -> [Parameter] {
  Mirror(reflecting: command).children.flatMap { label, value -> [Parameter] in
    if value is any ParameterGroup { return parameters(of: value) }
    guard let parameter = (value as? any ParameterHolder)?.parameter else { return [] }
    parameter.name = spelled(label ?? "")
    return [parameter]
  }
}

/// The groups in a command, and those in them.
func groups(of command: Any) -> [any ParameterGroup] {
  Mirror(reflecting: command).children.compactMap { $0.value as? any ParameterGroup }
    .flatMap { [$0] + groups(of: $0) }
}

/// `unsafe-permissions` of `_unsafePermissions`.
private func spelled(_ label: String) -> String {
  label.drop { $0 == "_" }.reduce(into: "") { $0 += $1.isUppercase ? "-" + $1.lowercased() : String($1) }
}
