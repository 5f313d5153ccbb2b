// Sends events to swift-log, and its lines to a descriptor. A lane only appends the event: selecting, formatting and
// writing run on a separate queue. A blocked standard error must delay no lane, so the queue is bounded, and dropped
// events are counted.

import ByteStreams
import Dispatch
import Glibc
import Logging
import Synchronization

package final class StatusLog: Sendable {
  private struct Entry {
    let event: StatusEvent
    let time: timespec
  }

  private struct Waiting {
    var entries: [Entry] = []
    var dropped: UInt64 = 0
    /// Writing is scheduled, now or after the pause.
    var isScheduled = false
  }

  // Unsafe to the compiler: these six are used on `queue` only, and by `init` before the log is shared.
  nonisolated(unsafe) private var logger: Logger
  /// The logger's output, if its handler is ours: lines of one moment are written together.
  nonisolated(unsafe) private var output: LogOutput?
  nonisolated(unsafe) private var limiter: LogLimiter
  /// Empty; swapped with the array of waiting events, so that lanes append without allocating.
  nonisolated(unsafe) private var spare: [Entry] = []
  nonisolated(unsafe) private var times = LogTimes()
  /// The time of the next scheduled call to the limiter, if there is one.
  nonisolated(unsafe) private var alarm: UInt64?
  private let level: Atomic<Int>  // the log level's rank, read on any lane
  private let make: @Sendable (Config.Log) -> Logger
  private let clock: QueueClock
  private let queue = DispatchQueue(label: "baudway.log")
  private let waiting = Mutex(Waiting())
  private static let most = 8192  // events, some 400 bytes each
  /// An array that a burst made larger than this is freed.
  private static let mostKept = 256
  /// The longest delay of a line that follows others. Waking the queue for each line would cost more than the line.
  private static let pause: useconds_t = 10_000

  /// Logs to standard error, by `settings` until a reload brings others.
  package convenience init(_ settings: Config.Log) { self.init(settings, clock: .monotonic) }

  /// `make` makes a logger from settings. The clock is that of repeated lines, and not of the lines' time stamps.
  init(
    _ settings: Config.Log, clock: QueueClock,
    make: @escaping @Sendable (Config.Log) -> Logger = StatusLog.toStandardError
  ) {
    self.clock = clock
    let logger = make(settings)
    self.logger = logger
    output = (logger.handler as? LineLogHandler)?.output
    limiter = LogLimiter(settings.repeats)
    level = Atomic(Self.rank(Logger.Level(settings.level)))
    self.make = make
  }

  /// The program's log: lines to standard error.
  @Sendable private static func toStandardError(_ settings: Config.Log) -> Logger {
    Logger(label: "baudway") { _ in
      LineLogHandler(settings.format == .json ? .json : .text, level: Logger.Level(settings.level))
    }
  }

  private static let levels = Logger.Level.allCases  // `allCases` makes a new array each time
  private static func rank(_ level: Logger.Level) -> Int { levels.firstIndex(of: level)! }

  /// Accepts an event without waiting, on any thread.
  package func observe(_ event: StatusEvent) {
    var changesLog = false
    if case .reloaded(let report) = event, let settings = report.log {
      changesLog = true
      level.store(Self.rank(Logger.Level(settings.level)), ordering: .relaxed)
    }
    guard
      LogLine.level(of: event) >= Self.levels[level.load(ordering: .relaxed)] || changesLog || LogLimiter.needs(event)
    else { return }
    let time = Self.now
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

  private static var now: timespec {
    var time = timespec()
    clock_gettime(CLOCK_REALTIME, &time)
    return time
  }

  // MARK: - On the queue

  /// Writes until nothing has come for one pause. It keeps its thread meanwhile: a timer would cost several task
  /// switches.
  private func write() {
    while writeWaiting() { usleep(Self.pause) }
    setAlarm(at: clock.now())
  }

  /// Returns whether any event was waiting.
  private func writeWaiting() -> Bool {
    var entries: [Entry] = []
    swap(&entries, &spare)
    let dropped = waiting.withLock { waiting in
      swap(&waiting.entries, &entries)
      defer { waiting.dropped = 0 }
      // Events that come while lines are written, or in the pause after that, are found when it ends.
      if entries.isEmpty { waiting.isScheduled = false }
      return waiting.dropped
    }
    let isBusy = !entries.isEmpty
    let now = clock.now()
    output?.hold()
    for entry in entries {
      if case .reloaded(let report) = entry.event, let settings = report.log { follow(settings) }
      limiter.take(entry.event, entry.time, at: now, write: log)
    }
    limiter.advance(to: now, write: log)
    if dropped > 0 { logger.warning("log entries dropped", metadata: ["dropped": .stringConvertible(dropped)]) }
    output?.release()
    entries.removeAll(keepingCapacity: entries.capacity <= Self.mostKept)
    spare = entries
    return isBusy
  }

  private func follow(_ settings: Config.Log) {
    limiter.set(settings.repeats, write: log)
    output?.release()
    logger = make(settings)
    output = (logger.handler as? LineLogHandler)?.output
    output?.hold()
  }

  private func setAlarm(at now: UInt64) {
    if let alarm, now >= alarm { self.alarm = nil }
    guard let due = limiter.due, alarm.map({ due < $0 }) ?? true else { return }
    alarm = due
    clock.run(due, queue) { self.write() }
  }

  private func log(_ line: LogLine, _ time: timespec?) {
    if output != nil {
      let stamped = StampedLine(line: line, time: times.text(time ?? Self.now))
      return logger.log(
        level: line.level, "\(line.text)", metadata: [StampedLine.key: .stringConvertible(stamped)])
    }
    var metadata = Logger.Metadata(minimumCapacity: line.fields.count + 2)
    metadata["event"] = .string(line.event)
    if let time { metadata["time"] = .string(times.text(time)) }
    for (key, value) in line.fields { metadata[key] = value.metadata }
    logger.log(level: line.level, "\(line.text)", metadata: metadata)
  }

  /// Writes everything, including open summaries, and waits for that; for a blocked pipe only a second.
  package func flush() {
    let done = DispatchSemaphore(value: 0)
    queue.async {
      _ = self.writeWaiting()
      self.limiter.finish(write: self.log)
      done.signal()
    }
    _ = done.wait(timeout: .now() + .seconds(1))
  }
}

extension Logger.Level {
  /// Both have swift-log's names.
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

/// A time span in seconds with three decimal places: "1.234".
struct Seconds: CustomStringConvertible, Sendable {
  let nanoseconds: UInt64

  var description: String {
    let milliseconds = String(nanoseconds / 1_000_000 % 1000)
    return "\(nanoseconds / 1_000_000_000)." + String(repeating: "0", count: 3 - milliseconds.count) + milliseconds
  }
}

/// Keeps the text of the last second, which most lines share.
struct LogTimes {
  private var second: time_t?
  private var text = ""

  mutating func text(_ time: timespec) -> String {
    if second != time.tv_sec {
      second = time.tv_sec
      text = String(LogTime.text(time).dropLast(4))
    }
    return text + LogTime.milliseconds(time)
  }
}

enum LogTime {
  static func milliseconds(_ time: timespec) -> String {
    let text = String(time.tv_nsec / 1_000_000)
    return String(repeating: "0", count: 3 - text.count) + text + "Z"
  }

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
      + milliseconds(time)
  }
}
