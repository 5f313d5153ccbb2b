// Binds a key of config.yaml to the property of Config that holds its value. One description gives the reader, the
// default, the schema's entry, the line in the output of `check` and the name in a reload's report. So a new key is one
// BoundKey and one stored property.

import StreamBroker

struct BoundKey<Owner: Sendable>: Sendable {
  let key: ConfigKey
  /// Sets the property if the file gives the key. `given` finds values by the key's name in its section.
  let fill: @Sendable (_ owner: inout Owner, _ given: (_ name: String) -> Value?) -> Void
  /// The value that `check` prints, as YAML; nil where `check` omits the key.
  let text: @Sendable (_ owner: Owner, _ isShared: Bool) -> String?
  /// The names of keys whose values differ: this key, or keys within it.
  let differences: @Sendable (_ new: Owner, _ old: Owner) -> [String]

  typealias Path<Property> = any KeyPath<Owner, Property> & Sendable
  typealias WritablePath<Property> = any WritableKeyPath<Owner, Property> & Sendable
  typealias Condition = @Sendable (Owner) -> Bool
}

extension BoundKey {
  /// For an owner without defaults. `check` prints the key where `isShown` is true or nil.
  init<Property>(
    _ name: String, _ path: WritablePath<Property>, _ form: KeyForm<Property>, standard: String?,
    for scope: ConfigKey.Scope = .everything, isShown: Condition? = nil, says summary: String
  ) {
    let key = ConfigKey(name, form.shape, standard, for: scope, says: summary)
    self.key = key
    fill = { owner, given in
      guard let value = given(name) else { return }
      guard let property = form.read(value) else { preconditionFailure("\(name) has a kind that its form can't read") }
      owner[keyPath: path] = property
    }
    text = { owner, isShared in
      guard isShared || !key.isForSharedLinks, isShown?(owner) ?? true else { return nil }
      return form.value(owner[keyPath: path]).map(form.text)
    }
    differences = { $0[keyPath: path] == $1[keyPath: path] ? [] : [name] }
  }

  /// ConfigBuilder sets the property; this key is only printed and compared.
  init<Property: Equatable & Sendable>(
    _ key: ConfigKey, reads path: Path<Property>, text: @escaping @Sendable (Property) -> String?
  ) {
    let name = key.name
    self.key = key
    fill = { _, _ in }
    self.text = { owner, _ in text(owner[keyPath: path]) }
    differences = { $0[keyPath: path] == $1[keyPath: path] ? [] : [name] }
  }

  /// A key that this version does not support.
  init(unbound key: ConfigKey) {
    self.key = key
    fill = { _, _ in }
    text = { _, _ in nil }
    differences = { _, _ in [] }
  }
}

/// A part of Config whose initial values are the defaults of its keys.
protocol KeyOwner: Sendable { init() }

extension BoundKey where Owner: KeyOwner {
  /// The default is the property's initial value; where it `dependsOnOthers`, ConfigBuilder computes it.
  init<Property>(
    _ name: String, _ path: WritablePath<Property>, _ form: KeyForm<Property>, dependsOnOthers: Bool = false,
    for scope: ConfigKey.Scope = .everything, isShown: Condition? = nil, says summary: String
  ) {
    let standard = dependsOnOthers || form.isList ? nil : form.value(Owner()[keyPath: path])?.description
    self.init(name, path, form, standard: standard, for: scope, isShown: isShown, says: summary)
  }
}
