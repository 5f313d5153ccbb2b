// Events to swift-log, and swift-log's lines to a descriptor. Formatting and writing happen on a queue of their own: a
// stuck pipe behind standard error must hold up nobody, so the queue is bounded, and what it can't take is counted.

import ByteStreams
import Dispatch
import Glibc
import Logging
import Synchronization

public final class StatusLog: Sendable {
  private struct Entry {
    let event: StatusEvent
    let time: timespec
  }

  private struct Waiting {
    var entries: [Entry] = []
    var dropped: UInt64 = 0
    var isScheduled = false
  }

  nonisolated(unsafe) private var logger: Logger  // touched on the queue only
  private let level: Atomic<Int>  // what is told, so that nobody has to ask the queue
  private let make: @Sendable (Config.Log) -> Logger
  private let queue = DispatchQueue(label: "baudway.log")
  private let waiting = Mutex(Waiting())
  private static let most = 8192  // events, some 200 bytes each

  /// Logs as `settings` say, and as those of a later configuration do once it is in force. `make` makes the logger of them.
  public init(_ settings: Config.Log, make: @escaping @Sendable (Config.Log) -> Logger = StatusLog.toStandardError) {
    logger = make(settings)
    level = Atomic(Self.rank(Logger.Level(settings.level)))
    self.make = make
  }

  /// The program's log: lines to standard error.
  public static func toStandardError(_ settings: Config.Log) -> Logger {
    Logger(label: "baudway") { _ in
      LineLogHandler(settings.format == .json ? .json : .text, level: Logger.Level(settings.level))
    }
  }

  private static let levels = Logger.Level.allCases  // made anew each time it is asked for
  private static func rank(_ level: Logger.Level) -> Int { levels.firstIndex(of: level)! }

  /// Takes an event without waiting, from any thread.
  public func observe(_ event: StatusEvent) {
    var changesLog = false
    if case .reloaded(let report) = event, let settings = report.log {
      changesLog = true
      level.store(Self.rank(Logger.Level(settings.level)), ordering: .relaxed)
    }
    guard LogLine.level(of: event) >= Self.levels[level.load(ordering: .relaxed)] || changesLog else { return }
    var time = timespec()
    clock_gettime(CLOCK_REALTIME, &time)
    let mustSchedule = waiting.withLock { waiting in
      guard waiting.entries.count < Self.most || changesLog else {
        waiting.dropped += 1
        return false
      }
      waiting.entries.append(Entry(event: event, time: time))
      defer { waiting.isScheduled = true }
      return !waiting.isScheduled
    }
    if mustSchedule { queue.async { self.write() } }
  }

  private func write() {
    let (entries, dropped) = waiting.withLock { waiting in
      defer {
        waiting.entries = []
        waiting.dropped = 0
        waiting.isScheduled = false
      }
      return (waiting.entries, waiting.dropped)
    }
    for entry in entries {
      if case .reloaded(let report) = entry.event, let settings = report.log { logger = make(settings) }
      let line = LogLine(entry.event)
      var metadata: Logger.Metadata = ["time": "\(LogTime.text(entry.time))", "event": "\(line.event)"]
      for (key, value) in line.fields { metadata[key] = value.metadata }
      logger.log(level: line.level, "\(line.text)", metadata: metadata)
    }
    if dropped > 0 { logger.warning("log entries dropped", metadata: ["dropped": .stringConvertible(dropped)]) }
  }

  /// Waits until everything is written, but not for a stuck pipe.
  public func flush() {
    let done = DispatchSemaphore(value: 0)
    queue.async { done.signal() }
    _ = done.wait(timeout: .now() + .seconds(1))
  }
}

extension Logger.Level {
  /// Both have swift-log's words.
  init(_ level: Config.Log.Level) { self = Self(rawValue: level.rawValue)! }
}

extension LogLine.Value {
  fileprivate var metadata: Logger.MetadataValue {
    switch self {
    case .text(let text): .string(text)
    case .number(let number): .stringConvertible(number)
    case .seconds(let nanoseconds): .stringConvertible(Seconds(nanoseconds: nanoseconds))
    }
  }
}

/// A time span as people and programs read it: "1.234".
struct Seconds: CustomStringConvertible, Sendable {
  let nanoseconds: UInt64

  var description: String {
    let milliseconds = String(nanoseconds / 1_000_000 % 1000)
    return "\(nanoseconds / 1_000_000_000)." + String(repeating: "0", count: 3 - milliseconds.count) + milliseconds
  }
}

enum LogTime {
  /// RFC 3339 in UTC with milliseconds: "2026-11-21T11:00:00.123Z".
  static func text(_ time: timespec) -> String {
    var seconds = time.tv_sec
    var parts = tm()
    gmtime_r(&seconds, &parts)
    func digits(_ number: some BinaryInteger, _ width: Int) -> String {
      let text = String(number)
      return String(repeating: "0", count: max(0, width - text.count)) + text
    }
    return "\(digits(parts.tm_year + 1900, 4))-\(digits(parts.tm_mon + 1, 2))-\(digits(parts.tm_mday, 2))T"
      + "\(digits(parts.tm_hour, 2)):\(digits(parts.tm_min, 2)):\(digits(parts.tm_sec, 2))."
      + "\(digits(time.tv_nsec / 1_000_000, 3))Z"
  }
}
