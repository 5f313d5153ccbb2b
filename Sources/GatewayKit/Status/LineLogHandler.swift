// The swift-log backend: one line per entry, as text or JSON, to standard error. It blocks while the pipe is full, so
// StatusLog calls it on a separate queue.

import ByteStreams
import Glibc
import Logging
import Synchronization

package struct LineLogHandler: LogHandler {
  package enum Format: Sendable { case text, json }

  package var metadata: Logger.Metadata = [:]
  package var metadataProvider: Logger.MetadataProvider?
  package var logLevel: Logger.Level
  private let format: Format
  /// Holds lines that are written together; copies of the handler share it.
  let output: LogOutput

  /// Writes to `descriptor`, which the caller still owns.
  package init(_ format: Format, level: Logger.Level, to descriptor: Int32 = STDERR_FILENO) {
    self.format = format
    output = LogOutput(to: descriptor)
    logLevel = level
  }

  package subscript(metadataKey key: String) -> Logger.Metadata.Value? {
    get { metadata[key] }
    set { metadata[key] = newValue }
  }

  package func log(event: LogEvent) {
    if case .stringConvertible(let value)? = event.metadata?[StampedLine.key], let stamped = value as? StampedLine {
      return write(stamped.time, stamped.line)
    }
    let given = event.metadata ?? [:]
    var fields = metadata.isEmpty ? given : metadata.merging(given) { $1 }
    var now = timespec()
    clock_gettime(CLOCK_REALTIME, &now)
    let time = fields.removeValue(forKey: "time").map { "\($0)" } ?? LogTime.text(now)
    let text = "\(event.message)"
    let kind = fields.removeValue(forKey: "event").map { "\($0)" } ?? text
    let line = LogLine(event.level, kind, text: text, fields.map { ($0.key, LogLine.Value($0.value)) })
    write(time, line)
  }

  private func write(_ time: String, _ line: LogLine) {
    output.append { bytes in
      switch format {
      case .text: Self.text(time, line, to: &bytes)
      case .json: Self.json(time, line, to: &bytes)
      }
    }
  }

  private static func text(_ time: String, _ line: LogLine, to bytes: inout [UInt8]) {
    bytes += time.utf8
    bytes.append(UInt8(ascii: " "))
    bytes += line.level.rawValue.utf8
    bytes.append(UInt8(ascii: " "))
    bytes += line.text.utf8
    for (key, value) in line.fieldsInOrder where key != "session" {  // its number is in the message
      bytes.append(UInt8(ascii: " "))
      bytes += key.utf8
      bytes.append(UInt8(ascii: "="))
      switch value {
      case .text(let text): bytes += isPlain(text) ? text.utf8 : JSONValue.quote(text).utf8
      case .number, .seconds: bytes += value.description.utf8
      }
    }
    bytes.append(UInt8(ascii: "\n"))
  }

  /// Ends in a line feed.
  static func json(_ time: String, _ line: LogLine, to bytes: inout [UInt8]) {
    let open = "{\"time\":\(JSONValue.quote(time)),\"level\":\(JSONValue.quote(line.level.rawValue)),\"event\":"
    bytes += open.utf8
    bytes += JSONValue.quote(line.event).utf8
    for (key, value) in line.fieldsInOrder {
      bytes.append(UInt8(ascii: ","))
      bytes += JSONValue.quote(key).utf8
      bytes.append(UInt8(ascii: ":"))
      switch value {
      case .text(let text): bytes += JSONValue.quote(text).utf8
      case .number, .seconds: bytes += value.description.utf8
      }
    }
    bytes += "}\n".utf8
  }

  /// Whether the text needs no quotes.
  private static func isPlain(_ text: String) -> Bool {
    if text.utf8.allSatisfy({ 0x21...0x7E ~= $0 && $0 != UInt8(ascii: "\"") }) { return !text.isEmpty }
    return text.unicodeScalars.allSatisfy { $0 != " " && $0 != "\"" && !JSONValue.misleads($0) }
  }
}

/// Carries a line and its time through swift-log to the handler above, which then needs no dictionary of its fields.
struct StampedLine: CustomStringConvertible, Sendable {
  static let key = "line"

  let line: LogLine
  let time: String

  var description: String { line.text }
}

/// Writes lines to a descriptor: each by itself, or several by one write(2).
final class LogOutput: Sendable {
  private struct State {
    var bytes: [UInt8] = []
    var isHeld = false
  }

  private let state = Mutex(State())
  private let descriptor: Int32
  /// Held lines are written when they reach this many bytes.
  private static let most = 16384

  init(to descriptor: Int32) { self.descriptor = descriptor }

  func append(_ body: (inout [UInt8]) -> Void) {
    state.withLock { state in
      body(&state.bytes)
      if !state.isHeld || state.bytes.count >= Self.most { write(&state) }
    }
  }

  /// Holds lines until `release`.
  func hold() { state.withLock { $0.isHeld = true } }

  func release() {
    state.withLock { state in
      state.isHeld = false
      write(&state)
    }
  }

  private func write(_ state: inout State) {
    guard !state.bytes.isEmpty else { return }
    // Errors are ignored: there is no other place to report them.
    try? writeAll(state.bytes, to: descriptor)
    state.bytes.removeAll(keepingCapacity: state.bytes.capacity <= 2 * Self.most)
  }
}
