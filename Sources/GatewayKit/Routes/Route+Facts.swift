// What a route and its groups of sessions say of themselves when they are asked, each on its own lane.

import ByteStreams
import StreamBroker

extension Route {
  var facts: RouteFacts { RouteFacts(queued: queue.count, groups: [Resident(group, on: lane)] + groupsElsewhere) }

  /// Listeners whose name in the file system somebody has removed take it anew. Calls `done` when that is over.
  func lookAfterPlaces(then done: @escaping () -> Void) {
    guard !doors.isEmpty else { return done() }
    var left = doors.count
    for door in doors {
      door.listener.lookAfterPlace {
        left -= 1
        if left == 0 { done() }
      }
    }
  }
}

extension SessionGroup {
  /// Before the first facts the device behind the shared link is asked for what changes by itself.
  func refreshed(after last: UInt64, _ done: @escaping () -> Void) {
    guard last == 0, let refresh = sharedLink?.refresh else { return done() }
    refresh(done)
  }

  /// `limit` clients whose numbers come behind `last`; link and totals only at the first time, when that is 0.
  func facts(after last: UInt64, atMost limit: Int) -> GroupFacts {
    var facts = GroupFacts()
    let sessions = sessions
    if last == 0 {
      facts.totals = totals
      for session in sessions { facts.totals.add(up: session.up, down: session.down, dropped: session.dropped) }
      facts.state = sharedLink.map { $0.state }
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
    status == .open ? hub.endpoint?.metadata?.refresh : nil
  }

  fileprivate var state: Snapshot.LinkState {
    let now = monotonicNanoseconds()
    var reason: String?
    if case .waiting(let why) = status { reason = why.description }
    let line = status == .open ? hub.endpoint?.serialLine?.settings.description : nil
    let facts = status == .open ? hub.endpoint?.metadata?.facts : nil
    return Snapshot.LinkState(
      word: status.word, nanoseconds: now &- since, line: line, device: facts.flatMap { $0.isEmpty ? nil : $0 },
      reason: reason,
      retry: retryAt.map { .nanoseconds(Int64(clamping: $0 > now ? $0 - now : 0)) })
  }
}

extension Snapshot.Client {
  fileprivate init(_ session: Session) {
    self.init(
      number: session.number, address: session.arrival.client, user: session.arrival.identity.name,
      tls: session.arrival.tls,
      listener: session.arrival.listener,
      role: session.arrival.role, nanoseconds: monotonicNanoseconds() &- session.began, up: session.up,
      down: session.down, dropped: session.dropped, queuedUp: UInt64(session.pump.count),
      queuedDown: session.takesOutput ? session.hub.head &- session.cursor : 0,
      hasPen: session.hub.policy.writers == .one ? session.hub.pen === session : nil,
      phase: session.phase,
      closingNanoseconds: session.closingSince.map { session.hub.poller.timers.now &- $0 })
  }
}

extension Session {
  fileprivate var phase: Snapshot.Client.Phase {
    if leaving != nil { return .leaving }
    if isHalfClosed { return .halfClosed }
    return finishedAt == nil ? .open : .closing
  }

  /// When its FIN came or it was told to go, whichever was first.
  fileprivate var closingSince: UInt64? { [finishedAt, leavingSince].compactMap(\.self).min() }
}
