// What is wrong with a config file, and where. All problems of a file are found before any is told.

public struct ConfigProblem: Error, Hashable, Sendable {
  public let file: String
  /// Both count from 1; nil when the trouble is the file itself.
  public let place: Place?
  /// "routes.gps.endpoint"; empty at the top of the file.
  public let path: String
  public let message: String
  public let suggestion: String?

  /// A line and a column (in characters) of the file, both from 1.
  public struct Place: Hashable, Comparable, Sendable {
    public private(set) var line: Int
    public private(set) var column: Int

    public static func < (one: Place, other: Place) -> Bool {
      (one.line, one.column) < (other.line, other.column)
    }
  }
}

extension ConfigProblem: CustomStringConvertible {
  /// `config.yaml:12:5: routes.gps.endpoint: unknown key 'buad'; did you mean 'baud'?`
  public var description: String {
    let head = place.map { "\(file):\($0.line):\($0.column): " } ?? "\(file): "
    return head + (path.isEmpty ? "" : "\(path): ") + message + (suggestion.map { "; did you mean '\($0)'?" } ?? "")
  }
}

/// All problems of one file, in the order of their places; never empty.
public struct ConfigProblems: Error, Hashable, Sendable, CustomStringConvertible {
  /// More are counted, not kept: a large file that is no config at all must not fill memory or a terminal.
  static let limit = 100

  public let list: [ConfigProblem]
  /// How many there are beyond `list`.
  public let more: Int

  init(_ problems: [ConfigProblem], more: Int = 0) {
    list = problems.sorted { ($0.place ?? .start) < ($1.place ?? .start) }
    self.more = more
  }

  /// One line each.
  public var description: String {
    list.map(\.description).joined(separator: "\n") + (more > 0 ? "\nand \(more) more" : "")
  }
}

extension ConfigProblem.Place {
  static let start = Self(line: 1, column: 1)

  /// Moves behind `scalar`. Lines end as in YAML 1.1, at CR LF, CR, LF, NEL, LS and PS, since libyaml counts them so.
  mutating func pass(_ scalar: Unicode.Scalar, after last: Unicode.Scalar?) {
    switch scalar {
    case "\n" where last == "\r": break
    case "\n", "\r", "\u{85}", "\u{2028}", "\u{2029}": (line, column) = (line + 1, 1)
    default: column += 1
    }
  }
}
