// A YAML document as a small tree in which everything knows its line and column. Scalars stay text: what `on`, `0660`
// or `4001:22` mean is for the key to say, not for YAML 1.1.

struct YAMLNode {
  let content: Content
  let place: ConfigProblem.Place
  /// How many nodes it holds, itself included.
  let weight: Int

  enum Content {
    case scalar(Scalar)
    case sequence([YAMLNode])
    case mapping([Entry])
  }

  struct Scalar {
    let text: String
    /// Written without quotes.
    let isPlain: Bool
    /// Column of the first character when the file holds the text letter by letter in one line; else nil.
    let firstColumn: Int?
  }

  struct Entry {
    let key: YAMLNode
    let value: YAMLNode
  }

  /// Nothing stands after the colon.
  var isNull: Bool {
    guard case .scalar(let scalar) = content else { return false }
    return scalar.isPlain && ["", "~", "null", "Null", "NULL"].contains(scalar.text)
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

/// Why bytes are no YAML document of ours.
struct YAMLFault: Error {
  let place: ConfigProblem.Place
  let message: String

  init(_ message: String, at place: ConfigProblem.Place) {
    self.message = message
    self.place = place
  }
}
