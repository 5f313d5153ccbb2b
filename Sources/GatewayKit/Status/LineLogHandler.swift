// The swift-log backend: a line per entry, as text for people or as JSON for programs, to standard error. It blocks when
// the pipe does; StatusLog calls it on a queue of its own.

import ByteStreams
import Glibc
import Logging

public struct LineLogHandler: LogHandler {
  public enum Format: Sendable { case text, json }

  public var metadata: Logger.Metadata = [:]
  public var metadataProvider: Logger.MetadataProvider?
  public var logLevel: Logger.Level
  private let format: Format
  private let descriptor: Int32

  /// Writes to `descriptor`, which stays its owner's.
  public init(_ format: Format, level: Logger.Level, to descriptor: Int32 = STDERR_FILENO) {
    self.format = format
    self.descriptor = descriptor
    logLevel = level
  }

  public subscript(metadataKey key: String) -> Logger.Metadata.Value? {
    get { metadata[key] }
    set { metadata[key] = newValue }
  }

  public func log(event: LogEvent) {
    var fields = metadata.merging(event.metadata ?? [:]) { $1 }
    var now = timespec()
    clock_gettime(CLOCK_REALTIME, &now)
    let time = fields.removeValue(forKey: "time").map { "\($0)" } ?? LogTime.text(now)
    let kind = fields.removeValue(forKey: "event").map { "\($0)" } ?? "\(event.message)"
    let ordered = fields.sorted { Self.rank($0.key) < Self.rank($1.key) }
    let line =
      switch format {
      case .text: Self.text(time, event.level, "\(event.message)", ordered)
      case .json: Self.json(time, event.level, kind, ordered)
      }
    write(line)
  }

  // Who and where first, what it came to last; words that are not here stand in between, by the alphabet.
  private static let first = ["session", "route", "client", "listen", "endpoint", "reason", "up", "down", "dropped"]
  private static let last = ["seconds", "changes", "error", "advice", "retry"]

  private static func rank(_ key: String) -> String {
    if let place = first.firstIndex(of: key) { return "0\(place)" }
    if let place = last.firstIndex(of: key) { return "2\(place)" }
    return "1\(key)"
  }

  private static func text(
    _ time: String, _ level: Logger.Level, _ message: String, _ fields: [(key: String, value: Logger.MetadataValue)]
  ) -> String {
    var line = "\(time) \(level) \(message)"
    for (key, value) in fields where key != "session" {  // its number is in the message
      let value = "\(value)"
      let isPlain =
        !value.isEmpty && value.unicodeScalars.allSatisfy { $0 != " " && $0 != "\"" && !JSONValue.misleads($0) }
      line += " \(key)=\(isPlain ? value : JSONValue.quote(value))"
    }
    return line + "\n"
  }

  private static func json(
    _ time: String, _ level: Logger.Level, _ event: String, _ fields: [(key: String, value: Logger.MetadataValue)]
  ) -> String {
    var line =
      "{\"time\":\(JSONValue.quote(time)),\"level\":\(JSONValue.quote(level.rawValue)),\"event\":\(JSONValue.quote(event))"
    for (key, value) in fields {
      line += ",\(JSONValue.quote(key)):"
      switch value {
      case .stringConvertible(let number) where number is UInt64 || number is Seconds: line += "\(number)"
      default: line += JSONValue.quote("\(value)")
      }
    }
    return line + "}\n"
  }

  private func write(_ line: String) {
    // Where nobody reads any more there is nowhere left to say so.
    try? writeAll(Array(line.utf8), to: descriptor)
  }
}
