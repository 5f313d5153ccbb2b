// How the file writes a property of Config: which values are read into it, and which value `check` prints.

import ByteStreams
import StreamBroker

struct KeyForm<Property: Hashable & Sendable>: Sendable {
  /// The values allowed in the file.
  let kind: ValueKind
  /// A list of such values.
  var isList = false
  /// The property for a value that `kind` has read; nil for any other value.
  let read: @Sendable (Value) -> Property?
  /// The value of a property; nil where the file leaves the key out instead.
  let value: @Sendable (Property) -> Value?
  /// The value as `check` prints it.
  var text: @Sendable (Value) -> String = { YAMLText.value($0) }

  var shape: ConfigKey.Shape { isList ? .list(kind) : .value(kind) }
}

extension KeyForm where Property: RawRepresentable<String> & CaseIterable {
  static var word: Self {
    Self(
      kind: .words(Property.allCases.map(\.rawValue)), read: { Property(rawValue: $0.description) },
      value: { .text($0.rawValue) })
  }
}

extension KeyForm<Bool> {
  static var flag: Self {
    Self(kind: .flag, read: { if case .flag(let isSet) = $0 { isSet } else { nil } }, value: { .flag($0) })
  }

  /// As `flag`, but printed as `on` or `off`.
  static var onOff: Self {
    var form = flag
    form.text = { $0 == .flag(true) ? "on" : "off" }
    return form
  }
}

extension KeyForm<Int> {
  static func integer(_ range: ClosedRange<Int>) -> Self {
    Self(kind: .integer(range), read: { if case .integer(let number) = $0 { number } else { nil } }) { .integer($0) }
  }

  static func size(_ range: ClosedRange<Int>) -> Self {
    Self(kind: .size(range), read: { if case .size(let bytes) = $0 { bytes } else { nil } }) { .size($0) }
  }
}

extension KeyForm<Duration> {
  static func duration(_ range: ClosedRange<Duration>) -> Self {
    Self(kind: .duration(range), read: { if case .duration(let time) = $0 { time } else { nil } }) { .duration($0) }
  }
}

extension KeyForm<ClosedRange<Duration>> {
  static func durations(_ range: ClosedRange<Duration>) -> Self {
    Self(kind: .durations(range), read: { if case .durations(let pauses) = $0 { pauses } else { nil } }) {
      .durations($0)
    }
  }
}

extension KeyForm<String> {
  static var text: Self { plain(.text) }
  /// ConfigReader has resolved relative paths from the config file's folder.
  static var path: Self { plain(.path) }
  /// Text in which `{names}` and escapes are replaced later.
  static var template: Self { plain(.escapes) }

  private static func plain(_ kind: ValueKind) -> Self {
    Self(kind: kind, read: { if case .text(let text) = $0 { text } else { nil } }, value: { .text($0) })
  }
}

extension KeyForm<Secret> {
  static var secret: Self {
    Self(kind: .secret, read: { if case .secret(let secret) = $0 { secret } else { nil } }, value: { .secret($0) })
  }
}

extension KeyForm<AddressBlock> {
  static var network: Self {
    Self(kind: .network, read: { AddressBlock($0.description) }, value: { .text($0.description) })
  }
}

extension KeyForm<[UInt8]> {
  /// A text with escapes; empty when the key is not given.
  static var bytes: Self {
    Self(
      kind: .escapes, read: { if case .text(let text) = $0 { Escapes.bytes(of: text) } else { nil } },
      value: { $0.isEmpty ? nil : .text(Escapes.text(of: $0)) })
  }
}

extension KeyForm<ResetRecipe> {
  static var resetRecipe: Self {
    Self(kind: .resetRecipe, read: { try? ResetRecipe($0.description) }, value: { .text($0.text) })
  }
}

// MARK: - Forms made from others

extension KeyForm {
  static func optional<Wrapped>(_ form: KeyForm<Wrapped>) -> Self where Property == Wrapped? {
    Self(
      kind: form.kind, isList: form.isList, read: { form.read($0).map { .some($0) } },
      value: { $0.flatMap(form.value) },
      text: form.text)
  }

  /// `word` means nil: `off`, or `auto`.
  static func word<Wrapped>(_ word: String, or form: KeyForm<Wrapped>) -> Self where Property == Wrapped? {
    Self(
      kind: .either(.words([word]), form.kind),
      read: { $0 == .text(word) ? .some(nil) : form.read($0).map { .some($0) } },
      value: { $0.map(form.value) ?? .text(word) }, text: form.text)
  }

  static func list<Item>(_ form: KeyForm<Item>) -> Self where Property == [Item] {
    Self(
      kind: form.kind, isList: true,
      read: { if case .list(let values) = $0 { values.compactMap(form.read) } else { nil } },
      value: { .list($0.compactMap(form.value)) })
  }

  /// A list. A single item is printed without brackets, and an empty list is left out.
  static func oneOrMore<Item>(_ form: KeyForm<Item>) -> Self where Property == [Item] {
    let list = list(form)
    return Self(
      kind: list.kind, isList: true, read: list.read, value: { $0.isEmpty ? nil : list.value($0) },
      text: { value in
        guard case .list(let values) = value else { return YAMLText.value(value) }
        return YAMLText.oneOrList(values.map(YAMLText.value))
      })
  }
}
