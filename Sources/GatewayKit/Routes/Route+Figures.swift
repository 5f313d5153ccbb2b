// The figures of a route for metrics: sums only, no clients. Each lane counts its part, in one pass over its sessions.

import ByteStreams
import StreamBroker

/// How often links were opened, lost and could not be opened.
struct LinkCounts: Hashable, Sendable {
  var opened: UInt64 = 0
  var lost: UInt64 = 0
  var failed: UInt64 = 0

  mutating func count(_ status: LinkStatus) {
    switch status {
    case .open: opened += 1
    case .waiting(.openFailed): failed += 1
    case .waiting(.released), .opening, .draining, .closed: break
    case .waiting: lost += 1
    }
  }

  mutating func add(_ other: LinkCounts) {
    opened += other.opened
    lost += other.lost
    failed += other.failed
  }
}

/// What one lane knows of a route, or all of them together.
struct RouteFigures: Sendable {
  var totals = Snapshot.Totals()
  var clients = 0
  /// Bytes kept from clients, and for them.
  var queuedUp: UInt64 = 0
  var queuedDown: UInt64 = 0
  /// Links by the word of their status; a shared link is one.
  var links: [String: Int] = [:]
  var linkCounts = LinkCounts()
  /// Of the port of a shared link.
  var line: LineCounts?
  /// Of a route that is recorded.
  var capture: Snapshot.Capture?
  /// Clients that wait for a slot.
  var waiting = 0
  /// A lane did not answer: its part is missing.
  var isStuck = false

  mutating func add(_ part: RouteFigures) {
    totals.add(part.totals)
    clients += part.clients
    queuedUp &+= part.queuedUp
    queuedDown &+= part.queuedDown
    links.merge(part.links, uniquingKeysWith: +)
    linkCounts.add(part.linkCounts)
    line = line ?? part.line
    capture = capture ?? part.capture
  }
}

extension SessionGroup {
  /// The driver of a port may be slow; after this time the counters of the last answer are used.
  private static let lineLimit = Duration.milliseconds(200)

  /// Calls `done` once, now or after asking the port for its error counters.
  func figures(_ done: @escaping (RouteFigures) -> Void) {
    guard let line = sharedLink?.hub.endpoint?.serialLine else { return done(figures) }
    var done: ((RouteFigures) -> Void)? = done
    let answer = { [self] in
      done?(figures)
      done = nil
    }
    let timer = poller.timers.after(Self.lineLimit, answer)
    line.condition { [self] result in
      poller.timers.cancel(timer)
      if case .success(let condition) = result { note(condition.counts) }
      answer()
    }
  }

  private var figures: RouteFigures {
    var figures = RouteFigures()
    figures.totals = totalsNow
    figures.line = lineCounts
    figures.capture = recording.facts
    figures.linkCounts = linkCounts
    for session in sessions {
      figures.clients += 1
      figures.queuedUp &+= UInt64(session.pump.count)
      if session.down.takesOutput { figures.queuedDown &+= session.hub.head &- session.down.cursor }
    }
    for link in [sharedLink].compactMap(\.self) + links.values { figures.links[link.status.word, default: 0] += 1 }
    return figures
  }
}
