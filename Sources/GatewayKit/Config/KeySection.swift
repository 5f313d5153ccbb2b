// Sections of config.yaml: keys with keys within. Each section fills one part of Config.

import StreamBroker

/// A mapping of keys that fill one part of Config.
struct KeySection<Owner: Sendable>: Sendable {
  let key: ConfigKey
  let keys: [BoundKey<Owner>]

  init(
    _ name: String, _ keys: [BoundKey<Owner>], isSwitched: Bool = false, for scope: ConfigKey.Scope = .everything,
    says summary: String
  ) {
    let inner = keys.map(\.key)
    key = ConfigKey(
      name, isSwitched ? .switched(inner) : .mapping(inner), isSwitched ? "off" : nil, for: scope, says: summary)
    self.keys = keys
  }

  /// On per-client links, keys for shared links keep their defaults.
  func fill(_ owner: inout Owner, isShared: Bool = true, given: (_ name: String) -> Value?) {
    for bound in keys where isShared || !bound.key.isForSharedLinks { bound.fill(&owner, given) }
  }

  /// For a section with `off`: whether it is on. The route's own keys win over an inherited `off`, and its own `off`
  /// over inherited keys.
  func isOn(_ settings: Settings) -> Bool {
    let names = keys.map { "\(key.name).\($0.key.name)" }
    let isOwn = names.contains { settings.own[$0] != nil }
    if !isOwn, settings.given(key.name) != nil { return false }
    return names.contains { settings.given($0) != nil }
  }

  func text(_ owner: Owner, isShared: Bool) -> String { YAMLText.mapping(keys.items(owner, isShared: isShared)) }

  func differences(_ new: Owner, _ old: Owner) -> [String] {
    keys.differences(new, old).map { "\(key.name).\($0)" }
  }
}

extension KeySection where Owner: KeyOwner {
  /// Keys that `settings` do not give keep their defaults.
  func read(_ settings: Settings, isShared: Bool = true) -> Owner {
    var owner = Owner()
    fill(&owner, isShared: isShared) { settings.given("\(key.name).\($0)")?.value }
    return owner
  }
}

extension Array {
  /// "name: value" for each key that `check` prints.
  func items<Owner>(_ owner: Owner, isShared: Bool) -> [String] where Element == BoundKey<Owner> {
    compactMap { bound in bound.text(owner, isShared).map { "\(bound.key.name): \($0)" } }
  }

  func differences<Owner>(_ new: Owner, _ old: Owner) -> [String] where Element == BoundKey<Owner> {
    flatMap { $0.differences(new, old) }
  }
}

extension BoundKey {
  /// A section that always exists.
  init<Part>(_ section: KeySection<Part>, _ path: WritablePath<Part>) {
    let name = section.key.name
    key = section.key
    fill = { owner, given in section.fill(&owner[keyPath: path]) { given("\(name).\($0)") } }
    text = { owner, isShared in section.text(owner[keyPath: path], isShared: isShared) }
    differences = { section.differences($0[keyPath: path], $1[keyPath: path]) }
  }

  /// A section that may be missing. ConfigBuilder decides whether it exists, and fills it.
  init<Part>(optional section: KeySection<Part>, _ path: Path<Part?>) {
    let name = section.key.name
    key = section.key
    fill = { _, _ in }
    text = { owner, isShared in owner[keyPath: path].map { section.text($0, isShared: isShared) } }
    differences = { new, old in
      switch (new[keyPath: path], old[keyPath: path]) {
      case (let new?, let old?): section.differences(new, old)
      case (nil, nil): []
      default: [name]
      }
    }
  }
}
