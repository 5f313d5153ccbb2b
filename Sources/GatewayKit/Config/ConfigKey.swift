// One key of config.yaml: its name, the values that it accepts, and whether this version supports it. BoundKey adds the
// property of Config that holds its value.

import StreamBroker

struct ConfigKey: Sendable {
  let name: String
  let shape: Shape
  /// The default as text; nil when a missing key has a meaning that no value has.
  let standard: String?
  private let scope: Scope
  /// Its description in one line; config.yaml has the long one.
  let summary: String

  /// What the key is for.
  enum Scope: Sendable {
    case everything
    case sharedLinks
    /// Listeners with these schemes. A build that has none of them does not support the key.
    case listeners(Set<String>)
    /// A later version.
    case later
  }

  indirect enum Shape: Sendable {
    case value(ValueKind)
    /// Values of one kind; a single value needs no list.
    case list(ValueKind)
    case mapping([ConfigKey])
    /// The word `off`, or a mapping.
    case switched([ConfigKey])
    case mappings([ConfigKey])
    /// A mapping whose keys are names.
    case named(Shape, Names)
    /// A URL of these schemes, alone or as `url:` with its parameters as keys beside it.
    case url([SchemeGrammar], built: BuiltSchemes, isList: Bool)
  }

  enum Names: Sendable {
    case any
    /// `[a-z0-9._-]+`
    case routes
  }

  /// Which schemes can be used.
  enum BuiltSchemes: Sendable {
    case listeners
    /// The schemes for which ConfigFile's broker has connectors.
    case endpoints
    /// The schemes of the admin listener; all of them.
    case admin
    case none
  }

  init(
    _ name: String, _ kind: ValueKind, _ standard: String? = nil, for scope: Scope = .everything,
    says summary: String = ""
  ) {
    self.init(name, .value(kind), standard, for: scope, says: summary)
  }

  init(
    _ name: String, _ shape: Shape, _ standard: String? = nil, for scope: Scope = .everything,
    says summary: String = ""
  ) {
    self.name = name
    self.shape = shape
    self.standard = standard
    self.scope = scope
    self.summary = summary
  }

  /// Whether a build that can listen on `built` supports the key.
  func support(with built: Set<String>) -> Support {
    switch scope {
    case .everything, .sharedLinks: .built
    case .listeners(let schemes): schemes.isDisjoint(with: built) ? .later() : .built
    case .later: .later()
    }
  }

  var isForSharedLinks: Bool { if case .sharedLinks = scope { true } else { false } }
}
