// Which events become lines of the log, so that neither a crowd of clients nor an absent device can fill a disk. What it leaves
// out is counted in a line of its own. A value: events and times go in, lines come out. StatusLog owns one, on its queue.

import ByteStreams
import Glibc
import Logging
import StreamBroker

struct LogLimiter {
  /// Called for each line, in order; without a time it is of now.
  typealias Write = (LogLine, timespec?) -> Void

  /// Lines a second about connections that never got a place: of one address, and of all.
  static let mostOfOneAddress = 10
  static let mostRefusals = 100
  /// Lines a second about the ends of sessions, and as many about everything else that a session causes.
  static let mostEndings = 1000
  /// Opening lines a second that are written at once. Beyond that, and for a per-client link, a session has one when it is
  /// `openingAge` old: one that is over sooner has all of it in its end line.
  static let mostOpenings = 100
  static let openingAge: UInt64 = 1_000_000_000
  /// A device that stays absent for the same reason is logged again after this time.
  static let absencePause: UInt64 = 3_600_000_000_000
  /// Beyond this many, an opening line is written at once: they cost memory while they wait.
  static let mostHeld = 16_384
  private static let second: UInt64 = 1_000_000_000

  private(set) var repeats: Config.Log.Repeats
  // The second under way, and what it has seen so far. It begins with the first event that counts.
  private var windowEnd: UInt64 = 0
  private var refusals = Refusals()
  private var endings = Share("sessions ended")
  private var others = Share("lines left out")
  private var openings = Openings()
  private var openedNow = 0
  /// By route; those whose last try to open failed.
  private var absences: [String: Absence] = [:]

  init(_ repeats: Config.Log.Repeats) { self.repeats = repeats }

  mutating func set(_ repeats: Config.Log.Repeats, write: Write) {
    guard repeats != self.repeats else { return }
    finish(write: write)
    self = LogLimiter(repeats)
  }

  /// Whether it must see the event even when its line is below the level that is logged.
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
      begin(at: now)
      openedNow += 1
      if (label.hasOwnLink || openedNow > Self.mostOpenings) && openings.count < Self.mostHeld {
        openings.hold(number, event, time, until: now &+ Self.openingAge)
      } else {
        write(LogLine(event), time)
      }
    case .sessionEnded(let route, let number, let label, let report):
      let isOpeningHeld = openings.drop(number)
      begin(at: now)
      let (word, level) = (report.ending.word.rawValue, LogLine.level(of: event))
      let isAdmitted =
        report.wasNotServed
        ? refusals.admits(Refusals.Origin(label), word, level, of: route)
        : endings.admits(Self.mostEndings, word, level, of: route)
      if isAdmitted { write(LogLine(route, number, label, report, saysOpening: isOpeningHeld), time) }
    case .link(let route, let endpoint, let status, _):
      let verdict = heed(status, of: route, endpoint, at: now)
      if case .leaveOut = verdict { return }
      guard admits(event, at: now) else { return }
      var line = LogLine(event)
      if case .again(let count) = verdict { line.add([("count", .number(count))]) }
      write(line, time)
    case .requestRefused(let label, let fault):
      begin(at: now)
      let word = (fault as? any CountedRefusal)?.counter ?? "refused"
      if refusals.admits(Refusals.Origin(label), word, LogLine.level(of: event), of: "") { write(LogLine(event), time) }
    case .routeStopped(let route):
      absences[route] = nil
      write(LogLine(event), time)
    default: if admits(event, at: now) { write(LogLine(event), time) }
    }
  }

  /// Writes what is due: opening lines, and what the second that is over left out.
  mutating func advance(to now: UInt64, write: Write) {
    while let (event, time) = openings.next(at: now) { write(LogLine(event), time) }
    guard windowEnd != 0, now >= windowEnd else { return }
    closeWindow(write)
    // A second without any event is one in which nobody was over a limit.
    if now >= windowEnd &+ Self.second { refusals = Refusals() }
    windowEnd = refusals.isLimiting && now < windowEnd &+ Self.second ? windowEnd &+ Self.second : 0
  }

  /// When `advance` has something to write; nil when nothing waits.
  var due: UInt64? {
    let isLeftOut = !refusals.leftOut.isEmpty || !endings.leftOut.isEmpty || !others.leftOut.isEmpty
    return [openings.due, isLeftOut ? windowEnd : nil].compactMap(\.self).min()
  }

  /// Writes all that waits, before the end or another configuration.
  mutating func finish(write: Write) {
    while let (event, time) = openings.next(at: .max) { write(LogLine(event), time) }
    closeWindow(write)
  }

  private mutating func begin(at now: UInt64) { if windowEnd == 0 { windowEnd = now &+ Self.second } }

  private mutating func closeWindow(_ write: Write) {
    if let line = refusals.close() { write(line, nil) }
    if let line = endings.close() { write(line, nil) }
    if let line = others.close() { write(line, nil) }
    openedNow = 0
  }

  /// Lines that sessions cause beside their ends: a client that comes and goes on a shared link causes several.
  private mutating func admits(_ event: StatusEvent, at now: UInt64) -> Bool {
    guard let (word, route) = event.causedBySession else { return true }
    begin(at: now)
    return others.admits(Self.mostEndings, word, LogLine.level(of: event), of: route)
  }

  // MARK: - Absent devices

  private struct Absence {
    let reason: String
    var told: UInt64
    /// Tries that failed since it was told.
    var tries: UInt64 = 0
    var endpoint: String
  }

  private enum Verdict { case write, again(UInt64), leaveOut }

  private mutating func heed(_ status: LinkStatus, of route: String, _ endpoint: String, at now: UInt64) -> Verdict {
    switch status {
    case .open: absences[route] = nil
    // It never was open: clients came and went while it was away.
    case .closed where absences[route] != nil: return .leaveOut
    case .waiting(.openFailed(let failure)):
      let reason = failure.description
      guard var absence = absences[route], absence.reason == reason, absence.endpoint == endpoint else {
        absences[route] = Absence(reason: reason, told: now, endpoint: endpoint)
        return .write
      }
      absence.tries += 1
      defer { absences[route] = absence }
      guard now &- absence.told >= Self.absencePause else { return .leaveOut }
      defer { (absence.told, absence.tries) = (now, 0) }
      return .again(absence.tries)
    default: break
    }
    return .write
  }
}

/// What was left out, by a word each, and what all of it has in common.
private struct LeftOut {
  private var counts: [String: UInt64] = [:]
  private var route = Common<String>.nothing
  private var client = Common<LogLimiter.Refusals.Origin>.nothing
  private var level = Logger.Level.info

  var isEmpty: Bool { counts.isEmpty }

  mutating func note(_ word: String, _ level: Logger.Level, of route: String, _ client: LogLimiter.Refusals.Origin?) {
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

extension LogLimiter {
  /// So many lines a second; the rest is counted.
  fileprivate struct Share {
    private let summary: String
    private var lines = 0
    private(set) var leftOut = LeftOut()

    init(_ summary: String) { self.summary = summary }

    mutating func admits(_ most: Int, _ word: String, _ level: Logger.Level, of route: String) -> Bool {
      lines += 1
      if lines <= most { return true }
      leftOut.note(word, level, of: route, nil)
      return false
    }

    mutating func close() -> LogLine? {
      defer { self = Share(summary) }
      return leftOut.line(summary)
    }
  }

  /// Connections that end before they have a place. An address that was over its limit in one second has only its part of the
  /// summary in the next, until a second in which it stays within the limit; so has everybody together.
  fileprivate struct Refusals {
    /// Where a client connects from: an IPv4 address, an IPv6 network of 64 bits, a Bluetooth device, or a local user.
    enum Origin: Hashable {
      case address(SocketAddress), device(String), user(UInt32), unknown

      init(_ label: Arrival.Label) {
        self =
          label.address.map { .address($0.household) } ?? label.device.map { .device($0) }
          ?? label.process.map { .user($0.user) } ?? .unknown
      }

      var text: String? {
        switch self {
        case .address(let address): address.family == .ipv6 ? "\(address.host)/64" : address.host
        case .device(let device): device
        case .user(let user): "uid \(user)"
        case .unknown: nil
        }
      }
    }

    private struct Crowd {
      var lines = 0
      var isLimited = false
    }

    private var crowds: [Origin: Crowd] = [:]
    private var all = Crowd()
    private(set) var leftOut = LeftOut()
    /// Beyond this many, addresses have only the limit of all together.
    private static let mostRemembered = 256

    mutating func admits(_ origin: Origin, _ word: String, _ level: Logger.Level, of route: String) -> Bool {
      // What one address has too much does not use up the lines of the others.
      let isOver = isOverItsOwn(origin) || isOverAll()
      if isOver { leftOut.note(word, level, of: route, origin) }
      return !isOver
    }

    private mutating func isOverItsOwn(_ origin: Origin) -> Bool {
      guard var crowd = crowds[origin] ?? (crowds.count < Self.mostRemembered ? Crowd() : nil) else { return false }
      crowd.lines += 1
      crowds[origin] = crowd
      return crowd.isLimited || crowd.lines > mostOfOneAddress
    }

    private mutating func isOverAll() -> Bool {
      all.lines += 1
      return all.isLimited || all.lines > mostRefusals
    }

    /// Whether the next second begins with a limit in force.
    var isLimiting: Bool { all.isLimited || !crowds.isEmpty }

    mutating func close() -> LogLine? {
      let line = leftOut.line("connections not served")
      leftOut = LeftOut()
      all = Crowd(isLimited: all.lines > mostRefusals)
      crowds = crowds.compactMapValues { $0.lines > mostOfOneAddress ? Crowd(isLimited: true) : nil }
      return line
    }

    /// For tests: how many addresses are remembered.
    var remembered: Int { crowds.count }
  }

  var rememberedAddresses: Int { refusals.remembered }
}

/// Opening lines that wait until their sessions are old enough. Most sessions of a busy proxy are over before that.
private struct Openings {
  private var held: [UInt64: (event: StatusEvent, time: timespec)] = [:]
  // In the order they came; many have long ended.
  private var order: [(number: UInt64, due: UInt64)] = []
  private var first = 0

  var count: Int { held.count }

  mutating func hold(_ number: UInt64, _ event: StatusEvent, _ time: timespec, until due: UInt64) {
    held[number] = (event, time)
    order.append((number, due))
  }

  /// Whether there was one to drop.
  mutating func drop(_ number: UInt64) -> Bool {
    guard held.removeValue(forKey: number) != nil else { return false }
    skipEnded()
    return true
  }

  /// The first that is due.
  mutating func next(at now: UInt64) -> (StatusEvent, timespec)? {
    guard let due, now >= due else { return nil }
    let entry = held.removeValue(forKey: order[first].number)
    skipEnded()
    return entry.map { ($0.event, $0.time) }
  }

  var due: UInt64? { first < order.count ? order[first].due : nil }

  private mutating func skipEnded() {
    while first < order.count, held[order[first].number] == nil { first += 1 }
    if first == order.count {
      order.removeAll(keepingCapacity: order.capacity <= 1024)
      first = 0
    } else if first >= 1024, first * 2 >= order.count {
      order.removeFirst(first)
      first = 0
    }
  }
}

extension SessionReport {
  /// It had no place, was refused for its first bytes, or came and went at once without any.
  fileprivate var wasNotServed: Bool {
    if !wasOpened || ending.cause is any CountedRefusal { return true }
    let hasLeft = ending.word == .clientLeft || ending.word == .clientLost
    return hasLeft && up == 0 && down == 0 && nanoseconds < LogLimiter.openingAge
  }
}

extension StatusEvent {
  /// A word for it, and its route, where sessions cause it, so that clients decide how often it happens.
  fileprivate var causedBySession: (word: String, route: String)? {
    switch self {
    case .link(let route, _, let status, _): ("link-\(status.word)", route)
    case .writerChanged(let route, _, _): ("writer-changed", route)
    case .dropped(let route, _, _, _): ("session-drops", route)
    case .linkDropped(let route, _, _): ("link-drops", route)
    case .deviceKnown(let route, _, _): ("device-known", route)
    default: nil
    }
  }
}
