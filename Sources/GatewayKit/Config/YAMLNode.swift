// A YAML document as a small tree. Every node knows its line and column. Scalars stay text: the key, not YAML 1.1,
// decides what `on`, `0660` or `4001:22` mean.

struct YAMLNode {
  let content: Content
  let location: ConfigProblem.SourceLocation
  /// How many nodes it holds, itself included.
  let weight: Int
  /// `name` of `&name`; an alias has that of its anchor.
  var anchor: String?

  enum Content {
    case scalar(Scalar)
    case sequence([YAMLNode])
    case mapping([Entry])
  }

  struct Scalar {
    let text: String
    /// Written without quotes.
    let isPlain: Bool
    /// Column of the first character if the file has the text unchanged in one line, without escapes; else nil.
    let firstColumn: Int?
  }

  struct Entry {
    let key: YAMLNode
    let value: YAMLNode
  }

  /// Nothing after the colon, or null.
  var isNull: Bool {
    guard case .scalar(let scalar) = content else { return false }
    return scalar.isPlain && ["", "~", "null", "Null", "NULL"].contains(scalar.text)
  }

  /// It has an endpoint or listeners.
  var isRoute: Bool {
    guard case .mapping(let entries) = content else { return false }
    return entries.contains {
      if case .scalar(let key) = $0.key.content { ["listen", "endpoint"].contains(key.text) } else { false }
    }
  }

  /// For messages: "a list".
  var kind: String {
    switch content {
    case .scalar: isNull ? "nothing" : "a single value"
    case .sequence: "a list"
    case .mapping: "a mapping"
    }
  }
}

/// Why bytes are no YAML document that we accept.
struct YAMLFault: Error {
  let location: ConfigProblem.SourceLocation
  let message: String

  init(_ message: String, at location: ConfigProblem.SourceLocation) {
    self.message = message
    self.location = location
  }
}
