// What is wrong with a config file, and where. All problems of a file are found before any is reported.

package struct ConfigProblem: Error, Hashable, Sendable {
  package let file: String
  /// Nil when the problem is the file itself.
  package let location: SourceLocation?
  /// "routes.gps.endpoint"; empty at the top of the file.
  package let path: String
  package let message: String
  package let suggestion: String?

  /// A line and a column (in characters) of a file, both from 1.
  package struct SourceLocation: Hashable, Comparable, Sendable {
    package private(set) var line: Int
    package private(set) var column: Int
    /// Which of the configuration's files: 0 is the one that includes the others.
    package var file = 0

    package static func < (one: SourceLocation, other: SourceLocation) -> Bool {
      (one.file, one.line, one.column) < (other.file, other.line, other.column)
    }
  }
}

extension ConfigProblem {
  init(_ fault: YAMLFault, _ file: String) {
    self.init(file: file, location: fault.location, path: "", message: fault.message, suggestion: nil)
  }
}

extension ConfigProblem: CustomStringConvertible {
  /// `config.yaml:12:5: routes.gps.endpoint: unknown key 'buad'; did you mean 'baud'?`
  package var description: String {
    let head = location.map { "\(file):\($0.line):\($0.column): " } ?? "\(file): "
    return head + (path.isEmpty ? "" : "\(path): ") + message + (suggestion.map { "; did you mean '\($0)'?" } ?? "")
  }
}

/// All problems of a configuration, in the order of their places; never empty.
package struct ConfigProblems: Error, Hashable, Sendable, CustomStringConvertible {
  /// Further problems are only counted: a large file that is no config at all must not fill memory or a terminal.
  static let limit = 100

  package let list: [ConfigProblem]
  /// How many there are beyond `list`.
  package let more: Int

  init(_ problems: [ConfigProblem], more: Int = 0) {
    list = problems.sorted { ($0.location ?? .start) < ($1.location ?? .start) }
    self.more = more
  }

  /// One line each.
  package var description: String {
    list.map(\.description).joined(separator: "\n") + (more > 0 ? "\nand \(more) more" : "")
  }
}

extension ConfigProblem.SourceLocation {
  static let start = Self(line: 1, column: 1)

  /// Another column of the line.
  func moved(to column: Int) -> Self { Self(line: line, column: column, file: file) }

  /// Moves past `scalar`. Lines end as in YAML 1.1, at CR LF, CR, LF, NEL, LS and PS, because libyaml counts them so.
  mutating func pass(_ scalar: Unicode.Scalar, after last: Unicode.Scalar?) {
    switch scalar {
    case "\n" where last == "\r": break
    case "\n", "\r", "\u{85}", "\u{2028}", "\u{2029}": (line, column) = (line + 1, 1)
    default: column += 1
    }
  }
}
