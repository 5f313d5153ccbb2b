// Limits the lines about links that are away or lost again and again, so that none of them fills a disk. A value:
// LogLimiter owns one and asks it about each change of a link.

import Glibc
import StreamBroker

struct LinkLineLimiter {
  enum Verdict {
    case write
    /// Write it, with how often it has happened since it was written last.
    case again(UInt64)
    case leaveOut
  }

  /// A link that stays away for the same reason is logged again after this time.
  static let pause: UInt64 = 3_600_000_000_000
  /// Lines with the same reason before that if the link was open in between, or away for another reason.
  static let most = 3
  /// After that many the line that it is open is written once it was open for this long.
  static let settledAfter: UInt64 = 60_000_000_000
  /// The most reasons remembered for a route.
  private static let mostReasons = 8

  private struct Reason {
    let text: String
    var reported: UInt64
    /// When it happened last.
    var latest: UInt64
    var lines = 1
    /// How often it happened since its last line.
    var count: UInt64 = 0
  }

  private struct Route {
    var endpoint: String
    var reasons: [Reason] = []
    /// Why the link is away now; nil once it was open again.
    var current: String?
    /// It could not be opened.
    var isAbsent = false
    /// The log says that it is away, so it has to say when it is open.
    var isShownAway = false
    /// The line that it is open.
    var held: (event: StatusEvent, time: timespec, due: UInt64)?

    func isLimited(at now: UInt64) -> Bool {
      reasons.contains { $0.lines >= LinkLineLimiter.most && now &- $0.latest < LinkLineLimiter.pause }
    }
  }

  private var routes: [String: Route] = [:]
  /// When the first held line is due.
  private(set) var due: UInt64?

  /// `event` is the change to `status`.
  mutating func take(
    _ event: StatusEvent, _ status: LinkStatus, of name: String, _ endpoint: String, _ time: timespec, at now: UInt64
  ) -> Verdict {
    switch status {
    case .waiting(.released):
      routes[name]?.held = nil
      routes[name]?.isShownAway = true
      setDue()
      return .write
    case .waiting(let reason):
      var text = reason.description
      if case .openFailed = reason {} else { text = "lost: " + text }
      return isAway(text, isAbsent: text == reason.description, of: name, endpoint, at: now)
    case .open:
      guard var route = routes[name], route.endpoint == endpoint else {
        forget(name)
        return .write
      }
      let isLimited = route.isLimited(at: now) && !route.isShownAway
      (route.current, route.isAbsent, route.isShownAway) = (nil, false, false)
      route.held = isLimited ? (event, time, now &+ Self.settledAfter) : nil
      routes[name] = route
      setDue()
      return isLimited ? .leaveOut : .write
    case .closed:
      guard let route = routes[name] else { return .write }
      // It was never open, or it was for a short time again.
      if route.held == nil && !route.isAbsent && !(route.current != nil && route.isLimited(at: now)) { return .write }
      routes[name]?.held = nil
      setDue()
      return .leaveOut
    case .opening, .draining: return .write
    }
  }

  private mutating func isAway(
    _ text: String, isAbsent: Bool, of name: String, _ endpoint: String, at now: UInt64
  ) -> Verdict {
    var route = routes[name] ?? Route(endpoint: endpoint)
    if route.endpoint != endpoint { route = Route(endpoint: endpoint) }
    let isSame = route.current == text
    (route.current, route.isAbsent, route.held) = (text, isAbsent, nil)
    let verdict = verdict(text, isSame: isSame, of: &route, at: now)
    if case .leaveOut = verdict {} else { route.isShownAway = true }
    routes[name] = route
    setDue()
    return verdict
  }

  private func verdict(_ text: String, isSame: Bool, of route: inout Route, at now: UInt64) -> Verdict {
    guard let place = route.reasons.firstIndex(where: { $0.text == text }) else {
      if route.reasons.count == Self.mostReasons { route.reasons.removeFirst() }
      route.reasons.append(Reason(text: text, reported: now, latest: now))
      return .write
    }
    route.reasons[place].latest = now
    route.reasons[place].count += 1
    let count = route.reasons[place].count
    if now &- route.reasons[place].reported >= Self.pause {
      // It goes on as before, unless this is the only time in an hour.
      let lines = count > 1 ? route.reasons[place].lines : 1
      route.reasons[place] = Reason(text: text, reported: now, latest: now, lines: lines)
      return count > 1 ? .again(count) : .write
    }
    guard !isSame, route.reasons[place].lines < Self.most else { return .leaveOut }
    route.reasons[place].lines += 1
    route.reasons[place].count = 0
    return .write
  }

  /// Whether lines about the link's openings are left out now.
  func isLimited(_ name: String, at now: UInt64) -> Bool { routes[name]?.isLimited(at: now) ?? false }

  /// Removes and returns a held line that is due.
  mutating func next(at now: UInt64) -> (StatusEvent, timespec)? {
    guard let due, due <= now, let name = routes.first(where: { $0.value.held?.due == due })?.key else { return nil }
    defer { setDue() }
    guard let held = routes[name]?.held else { return nil }
    routes[name]?.held = nil
    return (held.event, held.time)
  }

  mutating func forget(_ name: String) {
    guard routes.removeValue(forKey: name)?.held != nil else { return }
    setDue()
  }

  private mutating func setDue() { due = routes.values.compactMap(\.held?.due).min() }
}
