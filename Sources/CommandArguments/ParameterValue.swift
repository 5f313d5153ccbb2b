// Values that a word of the command line can become.

package protocol ParameterValue {
  /// The value of one more word; nil if the word is not such a value. `earlier`: the value so far, without a default.
  static func value(of word: String, after earlier: Self?) -> Self?
  /// The value as a user would write it; nil for "none".
  var asWord: String? { get }
  /// What a parameter without a word is; nil if it needs one.
  static var absent: Self? { get }
  static var isRepeating: Bool { get }
  /// The only words it takes; empty if any.
  static var choices: [String] { get }
  /// What messages call it.
  static var kind: String { get }
}

extension ParameterValue {
  package static var absent: Self? { nil }
  package static var isRepeating: Bool { false }
  package static var choices: [String] { [] }
}

extension String: ParameterValue {
  package static func value(of word: String, after earlier: String?) -> String? { word }
  package var asWord: String? { self }
  package static var kind: String { "text" }
}

extension ParameterValue where Self: FixedWidthInteger {
  package static func value(of word: String, after earlier: Self?) -> Self? { Self(word) }
  package var asWord: String? { String(self) }
  package static var kind: String { Self.isSigned ? "a whole number" : "a number from \(min) to \(max)" }
}
extension Int: ParameterValue {}
extension UInt: ParameterValue {}
extension UInt16: ParameterValue {}
extension UInt64: ParameterValue {}

extension ParameterValue where Self: RawRepresentable & CaseIterable, RawValue == String {
  package static func value(of word: String, after earlier: Self?) -> Self? { Self(rawValue: word) }
  package var asWord: String? { rawValue }
  package static var choices: [String] { allCases.map(\.rawValue) }
  package static var kind: String { "a word" }
}

extension Optional: ParameterValue where Wrapped: ParameterValue {
  package static func value(of word: String, after earlier: Wrapped??) -> Wrapped?? {
    Wrapped.value(of: word, after: nil).map { .some($0) }
  }
  package var asWord: String? { self?.asWord }
  package static var absent: Wrapped?? { .some(nil) }
  package static var choices: [String] { Wrapped.choices }
  package static var kind: String { Wrapped.kind }
}

extension Array: ParameterValue where Element: ParameterValue {
  package static func value(of word: String, after earlier: [Element]?) -> [Element]? {
    Element.value(of: word, after: nil).map { (earlier ?? []) + [$0] }
  }
  package var asWord: String? { nil }
  package static var absent: [Element]? { [] }
  package static var isRepeating: Bool { true }
  package static var choices: [String] { Element.choices }
  package static var kind: String { Element.kind }
}
