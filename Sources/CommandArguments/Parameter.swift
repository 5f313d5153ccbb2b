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

  /// `fill` takes a word, and whether an earlier word was taken; it returns whether the word is a value.
  fileprivate init(
    _ kind: Kind, short: Character?, help: String, valueName: String?, completion: Completion, isRequired: Bool,
    isRepeating: Bool, choices: [String], standard: String?, valueKind: String, fill: @escaping (String, Bool) -> Bool
  ) {
    self.kind = kind
    self.short = short
    self.help = help
    statedValueName = valueName
    self.completion = completion
    self.isRequired = isRequired
    self.isRepeating = isRepeating
    self.choices = choices
    self.standard = standard
    self.valueKind = valueKind
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
    (cell, parameter) = Cell.make(.argument, wrappedValue, help: help, valueName: name, completion: completion)
  }
  package init(help: String, name: String? = nil, completion: Completion = .nothing) {
    (cell, parameter) = Cell.make(.argument, nil, help: help, valueName: name, completion: completion)
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
      .option, wrappedValue, short: short, help: help, valueName: value, completion: completion)
  }
  package init(short: Character? = nil, help: String, value: String? = nil, completion: Completion = .nothing) {
    (cell, parameter) = Cell.make(.option, nil, short: short, help: help, valueName: value, completion: completion)
  }

  package var wrappedValue: Value { cell.value }
}

/// A name without a value: `--json`.
@propertyWrapper package struct Flag: ParameterHolder {
  let parameter: Parameter

  package init(wrappedValue: Bool = false, short: Character? = nil, help: String) {
    parameter = Parameter(
      .flag, short: short, help: help, valueName: nil, completion: .nothing, isRequired: false, isRepeating: false,
      choices: [], standard: nil, valueKind: "", fill: { _, _ in true })
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
    _ kind: Parameter.Kind, _ standard: Value?, short: Character? = nil, help: String, valueName: String?,
    completion: Completion
  ) -> (Cell<Value>, Parameter) {
    let cell = Cell(standard ?? Value.absent)
    let parameter = Parameter(
      kind, short: short, help: help, valueName: valueName,
      completion: Value.choices.isEmpty ? completion : .words(Value.choices),
      isRequired: standard == nil && Value.absent == nil, isRepeating: Value.isRepeating, choices: Value.choices,
      standard: standard?.asWord, valueKind: Value.kind,
      fill: { word, isMore in
        guard let value = Value.value(of: word, after: isMore ? cell.current : nil) else { return false }
        cell.current = value
        return true
      })
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
