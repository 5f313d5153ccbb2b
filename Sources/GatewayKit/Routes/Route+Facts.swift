// The facts that a route and its groups of sessions report for `status`, each on its own lane.

import ByteStreams
import StreamBroker

extension Route {
  var facts: RouteFacts { RouteFacts(queued: queue.count, groups: [LaneRef(group, on: lane)] + groupsElsewhere) }

  /// Listeners whose socket file was removed make it again. Calls `done` after that.
  func checkSocketFiles(then done: @escaping () -> Void) {
    guard !listeners.isEmpty else { return done() }
    var left = listeners.count
    for active in listeners {
      active.listener.checkSocketFile {
        left -= 1
        if left == 0 { done() }
      }
    }
  }
}

extension SessionGroup {
  /// Of ended and of present sessions.
  var totalsNow: Snapshot.Totals {
    var now = totals
    for session in sessions {
      now.add(up: session.up.bytes, down: session.down.bytes, dropped: session.dropped)
    }
    return now
  }

  /// Before the first page, asks the device of the shared link for values that change by themselves.
  func refreshed(after last: UInt64, _ done: @escaping () -> Void) {
    guard last == 0, let refresh = sharedLink?.refresh else { return done() }
    refresh(done)
  }

  /// At most `limit` clients with numbers above `last`. Link and totals only on the first page, when `last` is 0.
  func facts(after last: UInt64, atMost limit: Int) -> GroupFacts {
    var facts = GroupFacts()
    let sessions = sessions
    if last == 0 {
      facts.totals = totalsNow
      facts.state = sharedLink.map { $0.state }
      facts.capture = recording.facts
      for link in links.values { facts.links[link.status.word, default: 0] += 1 }
    }
    let later = sessions.filter { $0.number > last }.sorted { $0.number < $1.number }
    facts.clients = later.prefix(limit).map { Snapshot.Client($0) }
    facts.hasMore = later.count > limit
    return facts
  }
}

extension Link {
  fileprivate var refresh: ((@escaping () -> Void) -> Void)? {
    guard status == .open else { return nil }
    guard let meter = hub.upstream.lineMeter else { return hub.endpoint?.metadata?.refresh }
    return { meter.refresh($0) }
  }

  fileprivate var state: Snapshot.LinkState {
    let now = poller.timers.now
    var reason: String?
    if case .waiting(let why) = status {
      reason = why == .released ? "released; 'baudway reopen \(settings.name)' opens it again" : why.description
    }
    let line = status == .open ? hub.endpoint?.serialLine?.settings.description : nil
    let facts = status == .open ? hub.endpoint?.metadata?.facts : nil
    return Snapshot.LinkState(
      word: status.word, nanoseconds: now &- since, line: line, device: facts.flatMap { $0.isEmpty ? nil : $0 },
      reason: reason, isReleased: status == .waiting(.released),
      retry: retryAt.map { .nanoseconds(Int64(clamping: $0 > now ? $0 - now : 0)) },
      hold: hub.upstream.lineMeter?.hold.map {
        Snapshot.Hold(cause: $0.cause, nanoseconds: now &- $0.since)
      }, overruns: hub.upstream.lineMeter?.overruns)
  }
}

extension Snapshot.Client {
  fileprivate init(_ session: Session) {
    self.init(
      number: session.number, address: session.accepted.client, user: session.accepted.identity.name,
      tls: session.accepted.tls,
      listener: session.accepted.listener,
      role: session.accepted.role, nanoseconds: session.hub.poller.timers.now &- session.began, up: session.up.bytes,
      down: session.down.bytes, dropped: session.dropped, queuedUp: UInt64(session.pump.count),
      queuedDown: session.down.takesOutput ? session.hub.head &- session.down.cursor : 0,
      isWriter: session.hub.policy.writers == .one ? session.hub.upstream.writer === session : nil,
      phase: session.phase,
      closingNanoseconds: session.closingSince.map { session.hub.poller.timers.now &- $0 })
  }
}

extension Session {
  fileprivate var phase: Snapshot.Client.Phase {
    if isLeaving { return .leaving }
    if isHalfClosed { return .halfClosed }
    return ending.finishedAt == nil ? .open : .closing
  }

  /// When its FIN came or the gateway began to end it, whichever was first.
  fileprivate var closingSince: UInt64? { [ending.finishedAt, ending.leavingSince].compactMap(\.self).min() }
}
