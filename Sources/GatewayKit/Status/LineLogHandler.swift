// The swift-log backend: a line per entry, as text for people or as JSON for programs, to standard error. It blocks when
// the pipe does; StatusLog calls it on a queue of its own.

import ByteStreams
import Glibc
import Logging
import Synchronization

public struct LineLogHandler: LogHandler {
  public enum Format: Sendable { case text, json }

  public var metadata: Logger.Metadata = [:]
  public var metadataProvider: Logger.MetadataProvider?
  public var logLevel: Logger.Level
  private let format: Format
  /// Where lines wait that are to be written together; copies of the handler share it.
  let output: LogOutput

  /// Writes to `descriptor`, which stays its owner's.
  public init(_ format: Format, level: Logger.Level, to descriptor: Int32 = STDERR_FILENO) {
    self.format = format
    output = LogOutput(to: descriptor)
    logLevel = level
  }

  public subscript(metadataKey key: String) -> Logger.Metadata.Value? {
    get { metadata[key] }
    set { metadata[key] = newValue }
  }

  public func log(event: LogEvent) {
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

  private static func json(_ time: String, _ line: LogLine, to bytes: inout [UInt8]) {
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

  /// Whether it needs no quotes.
  private static func isPlain(_ text: String) -> Bool {
    if text.utf8.allSatisfy({ 0x21...0x7E ~= $0 && $0 != UInt8(ascii: "\"") }) { return !text.isEmpty }
    return text.unicodeScalars.allSatisfy { $0 != " " && $0 != "\"" && !JSONValue.misleads($0) }
  }
}

/// A line and its time on the way through swift-log to the handler above, which needs no dictionary of its fields.
struct StampedLine: CustomStringConvertible, Sendable {
  static let key = "line"

  let line: LogLine
  let time: String

  var description: String { line.text }
}

/// Lines on their way to a descriptor: each by itself, or several by one write(2).
final class LogOutput: Sendable {
  private struct State {
    var bytes: [UInt8] = []
    var isHeld = false
  }

  private let state = Mutex(State())
  private let descriptor: Int32
  /// A burst leaves by pieces of this size.
  private static let most = 16384

  init(to descriptor: Int32) { self.descriptor = descriptor }

  func append(_ body: (inout [UInt8]) -> Void) {
    state.withLock { state in
      body(&state.bytes)
      if !state.isHeld || state.bytes.count >= Self.most { write(&state) }
    }
  }

  /// Lines wait until `release`.
  func hold() { state.withLock { $0.isHeld = true } }

  func release() {
    state.withLock { state in
      state.isHeld = false
      write(&state)
    }
  }

  private func write(_ state: inout State) {
    guard !state.bytes.isEmpty else { return }
    // Where nobody reads any more there is nowhere left to say so.
    try? writeAll(state.bytes, to: descriptor)
    state.bytes.removeAll(keepingCapacity: state.bytes.capacity <= 2 * Self.most)
  }
}
