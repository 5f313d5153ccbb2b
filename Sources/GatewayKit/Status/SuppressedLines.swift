// Counts the lines that LogLimiter leaves out, and makes one summary line of them at the end of the second.

import Logging

/// The number of left-out lines by word, and what all of them have in common.
struct SuppressedLines {
  private var counts: [String: UInt64] = [:]
  private var route = Common<String>.nothing
  private var client = Common<RefusalLimiter.Origin>.nothing
  private var level = Logger.Level.info

  var isEmpty: Bool { counts.isEmpty }

  mutating func note(_ word: String, _ level: Logger.Level, of route: String, _ client: RefusalLimiter.Origin?) {
    counts[word, default: 0] += 1
    self.level = max(self.level, level)
    self.route.note(route)
    if let client { self.client.note(client) }
  }

  func line(_ event: String) -> LogLine? {
    guard !isEmpty else { return nil }
    var fields: [(String, LogLine.Value?)] = []
    if case .one(let route) = route, !route.isEmpty { fields.append(("route", .text(route))) }
    if case .one(let client) = client { fields.append(("client", client.text.map { .text($0) })) }
    fields.append(("count", .number(counts.values.reduce(0, +))))
    return LogLine(level, event, fields + counts.sorted { $0.key < $1.key }.map { ($0.key, .number($0.value)) })
  }

  private enum Common<Value: Equatable> {
    case nothing, one(Value), several

    mutating func note(_ value: Value) {
      switch self {
      case .nothing: self = .one(value)
      case .one(let other) where other != value: self = .several
      default: break
      }
    }
  }
}

/// Admits a number of lines a second, and counts the rest.
struct LineShare {
  private let summary: String
  private var lines = 0
  private(set) var suppressed = SuppressedLines()

  init(_ summary: String) { self.summary = summary }

  mutating func admits(_ most: Int, _ word: String, _ level: Logger.Level, of route: String) -> Bool {
    lines += 1
    if lines <= most { return true }
    suppressed.note(word, level, of: route, nil)
    return false
  }

  mutating func close() -> LogLine? {
    defer { self = LineShare(summary) }
    return suppressed.line(summary)
  }
}
