// Decides which events become log lines, so that neither many clients nor an absent device can fill a disk. A summary
// line counts what is left out. A value: events and times go in, lines come out. StatusLog owns one, on its queue.

import ByteStreams
import Glibc
import Logging
import StreamBroker

struct LogLimiter {
  /// Called for each line, in order; a nil time means now.
  typealias Write = (LogLine, timespec?) -> Void

  /// Lines a second about connections that are not served: for one address, and for all.
  static let mostOfOneAddress = 10
  static let mostRefusals = 100
  /// Lines a second about the ends of sessions, and as many about all other events that sessions cause.
  static let mostEndings = 1000
  /// Opening lines a second that are written at once. Further ones, and those of per-client links, are written when the
  /// session is `openingAge` old. If it ends earlier, its end line has the fields of both.
  static let mostOpenings = 100
  static let openingAge: UInt64 = 1_000_000_000
  /// The most opening lines held, since they take memory. Further ones are written at once.
  static let mostHeld = 16_384
  private static let second: UInt64 = 1_000_000_000

  private(set) var repeats: Config.Log.Repeats
  // The current second and its counts. It begins with the first event that counts.
  private var windowEnd: UInt64 = 0
  private var refusals = RefusalLimiter()
  private var endings = LineShare("sessions ended")
  private var others = LineShare("lines left out")
  private var openings = DelayedOpenLines()
  private var openedNow = 0
  private var links = LinkLineLimiter()

  init(_ repeats: Config.Log.Repeats) { self.repeats = repeats }

  mutating func set(_ repeats: Config.Log.Repeats, write: Write) {
    guard repeats != self.repeats else { return }
    finish(write: write)
    self = LogLimiter(repeats)
  }

  /// Whether the limiter needs the event even when its line is below the log level.
  static func needs(_ event: StatusEvent) -> Bool {
    switch event {
    case .link(_, _, .open, _), .routeStopped: true
    default: false
    }
  }

  /// `time` is when it happened, `now` the monotonic clock, in nanoseconds.
  mutating func take(_ event: StatusEvent, _ time: timespec, at now: UInt64, write: Write) {
    guard repeats == .summary else { return write(LogLine(event), time) }
    advance(to: now, write: write)
    switch event {
    case .sessionOpened(_, let number, let label):
      if holdsOpening(of: number, label, event, time, at: now) { return }
      write(LogLine(event), time)
    case .sessionEnded(let route, let number, let label, let report):
      let isOpeningHeld = openings.drop(number)
      guard admitsEnd(report, of: label, LogLine.level(of: event), of: route, at: now) else { return }
      write(LogLine(route, number, label, report, saysOpening: isOpeningHeld), time)
    case .link(let route, let endpoint, let status, _):
      let verdict = links.take(event, status, of: route, endpoint, time, at: now)
      if case .leaveOut = verdict { return }
      guard admits(event, at: now) else { return }
      var line = LogLine(event)
      if case .again(let count) = verdict { line.add([("count", .number(count))]) }
      write(line, time)
    case .requestRefused(let label, let fault):
      begin(at: now)
      let word = (fault as? any CountedRefusal)?.counter ?? "refused"
      if refusals.admits(RefusalLimiter.Origin(label), word, LogLine.level(of: event), of: "") {
        write(LogLine(event), time)
      }
    case .routeStopped(let route):
      links.forget(route)
      write(LogLine(event), time)
    case .deviceKnown(let route, _, _) where links.isLimited(route, at: now),
      .endpointReason(let route, _, _) where links.isLimited(route, at: now):
      break  // the same at each opening
    default: if admits(event, at: now) { write(LogLine(event), time) }
    }
  }

  /// Whether the line of an opening waits, because it may become one with that of the end.
  private mutating func holdsOpening(
    of number: UInt64, _ label: AcceptedConnection.Label, _ event: StatusEvent, _ time: timespec, at now: UInt64
  ) -> Bool {
    begin(at: now)
    openedNow += 1
    guard label.hasOwnLink || openedNow > Self.mostOpenings, openings.count < Self.mostHeld else { return false }
    openings.hold(number, event, time, until: now &+ Self.openingAge)
    return true
  }

  private mutating func admitsEnd(
    _ report: SessionReport, of label: AcceptedConnection.Label, _ level: Logger.Level, of route: String, at now: UInt64
  ) -> Bool {
    begin(at: now)
    let word = report.ending.word.rawValue
    return report.wasNotServed
      ? refusals.admits(RefusalLimiter.Origin(label), word, level, of: route)
      : endings.admits(Self.mostEndings, word, level, of: route)
  }

  /// Writes what is due: opening lines, and the summaries of a second that is over.
  mutating func advance(to now: UInt64, write: Write) {
    while let (event, time) = openings.next(at: now) { write(LogLine(event), time) }
    while let (event, time) = links.next(at: now) { write(LogLine(event), time) }
    guard windowEnd != 0, now >= windowEnd else { return }
    closeWindow(write)
    // After a second without any event no limit is in force.
    if now >= windowEnd &+ Self.second { refusals = RefusalLimiter() }
    windowEnd = refusals.isLimiting && now < windowEnd &+ Self.second ? windowEnd &+ Self.second : 0
  }

  /// When `advance` has something to write; nil when nothing waits.
  var due: UInt64? {
    let isLeftOut = !refusals.suppressed.isEmpty || !endings.suppressed.isEmpty || !others.suppressed.isEmpty
    return [openings.due, links.due, isLeftOut ? windowEnd : nil].compactMap(\.self).min()
  }

  /// Writes everything held, before the end or a new configuration.
  mutating func finish(write: Write) {
    while let (event, time) = openings.next(at: .max) { write(LogLine(event), time) }
    while let (event, time) = links.next(at: .max) { write(LogLine(event), time) }
    closeWindow(write)
  }

  private mutating func begin(at now: UInt64) { if windowEnd == 0 { windowEnd = now &+ Self.second } }

  private mutating func closeWindow(_ write: Write) {
    if let line = refusals.close() { write(line, nil) }
    if let line = endings.close() { write(line, nil) }
    if let line = others.close() { write(line, nil) }
    openedNow = 0
  }

  /// Limits lines that sessions cause besides their ends: one client that connects and leaves on a shared link causes
  /// several.
  private mutating func admits(_ event: StatusEvent, at now: UInt64) -> Bool {
    guard let (word, route) = event.causedBySession else { return true }
    begin(at: now)
    return others.admits(Self.mostEndings, word, LogLine.level(of: event), of: route)
  }

  /// For tests.
  var rememberedAddresses: Int { refusals.remembered }
}

extension SessionReport {
  /// The client got no slot, was refused for its first bytes, or left soon without sending or receiving any.
  fileprivate var wasNotServed: Bool {
    if !wasOpened || ending.cause is any CountedRefusal { return true }
    let hasLeft = ending.word == .clientLeft || ending.word == .clientLost
    return hasLeft && up == 0 && down == 0 && nanoseconds < LogLimiter.openingAge
  }
}

extension StatusEvent {
  /// A word for the event, and its route, if sessions cause it: then clients decide how often it happens.
  fileprivate var causedBySession: (word: String, route: String)? {
    switch self {
    case .link(let route, _, let status, _): ("link-\(status.word)", route)
    case .writerChanged(let route, _, _): ("writer-changed", route)
    case .lineAsked(let route, _, _, _?): ("line-refused", route)
    case .dropped(let route, _, _, _): ("session-drops", route)
    case .linkDropped(let route, _, _): ("link-drops", route)
    case .deviceKnown(let route, _, _): ("device-known", route)
    case .subprotocolUnknown(let route, _, _): ("subprotocol-unknown", route)
    case .portShared(let route, _, _): ("port-shared", route)
    default: nil
    }
  }
}
