// A route's sessions on one lane: all of them when the link is shared, this lane's part when each client has his own.
// Makes sessions of arrivals and tells the route of each ending.

import ByteStreams
import StreamBroker
import Synchronization

/// Numbers sessions, for log and status.
private let lastSession = Atomic<UInt64>(0)

final class SessionGroup: LinkDelegate {
  private let settings: RouteSettings
  private let poller: Poller
  private let status: StatusSink
  private let lingering: Lingering
  // Shared: one. Per client: each keyed by its session.
  private var sharedLink: Link?
  private var links: [UInt64: Link] = [:]
  /// Told on this lane.
  private let sessionEnded: () -> Void
  private var whenEmpty: (() -> Void)?
  // At the end of a route, clients get so long to take leave; one who stays would only see a reset then.
  private static let lastLinger = Duration.seconds(1)

  init(_ settings: RouteSettings, on poller: Poller, status: StatusSink, sessionEnded: @escaping () -> Void) {
    self.settings = settings
    self.poller = poller
    self.status = status
    self.sessionEnded = sessionEnded
    lingering = Lingering(on: poller)
    if settings.hub.isShared {
      let link = Link(settings, on: poller, lingering: lingering, delegate: self)
      sharedLink = link
      if settings.staysOpen { link.start() }
    }
  }

  /// Begins a session with the client.
  func take(_ arrival: consuming Arrival) {
    let number = lastSession.add(1, ordering: .relaxed).newValue
    let label = arrival.label
    let link = sharedLink ?? Link(settings, on: poller, lingering: lingering, delegate: self)
    let session = Session(
      label, client: arrival.stream(on: poller), number: number, hub: link.hub, buffer: settings.hub.buffer, on: poller)
    if sharedLink == nil { links[number] = link }
    status.tell(.sessionOpened(route: settings.name, number: number, label))
    link.join(session)
  }

  /// Turns a client away with a line that says why.
  func refuse(_ arrival: consuming Arrival, _ ending: Ending, notice: String) {
    let label = arrival.label
    let stream = arrival.stream(on: poller)
    if settings.sendsNotices {
      let line = notice + "\r\n"
      _ = line.utf8.withContiguousStorageIfAvailable { try? stream.write(UnsafeRawBufferPointer($0)) }
    }
    lingering.close(stream, otherSideFinished: false)
    let number = lastSession.add(1, ordering: .relaxed).newValue
    status.tell(.sessionEnded(route: settings.name, number: number, label, SessionReport(ending: ending)))
  }

  /// Clients of a shared link that have finished sending, and whose input is delivered, give up their place to
  /// somebody new: most of them have closed altogether, which TCP does not tell.
  func freePlaceOfHalfClosed() {
    guard let hub = sharedLink?.hub, let gone = hub.sessions.first(where: \.isHalfClosed) else { return }
    hub.end(gone, Ending(.clientLeft))
  }

  /// Ends all sessions, each after what is kept for it, and closes the links; calls `done` when nothing is left.
  func stop(_ ending: Ending, then done: @escaping () -> Void) {
    whenEmpty = done
    sharedLink?.stop(ending)
    for link in Array(links.values) { link.stop(ending) }
    tellIfEmpty()
  }

  /// Closes at once whatever is left after `stop`.
  func cutOff(_ ending: Ending) {
    let hubs = [sharedLink].compactMap(\.self).map(\.hub) + links.values.map(\.hub)
    for hub in hubs { for session in hub.sessions { hub.end(session, ending) } }
    lingering.closeAll()
  }

  private func tellIfEmpty() {
    guard let done = whenEmpty, links.isEmpty, sharedLink?.hub.sessions.isEmpty ?? true else { return }
    whenEmpty = nil
    lingering.empty(within: Self.lastLinger, then: done)
  }

  // MARK: - What links tell

  func link(_ link: Link, is linkStatus: LinkStatus, retry: Duration?) {
    // A client's own link comes and goes with him; his session's lines tell of it.
    guard settings.hub.isShared else { return }
    status.tell(.link(route: settings.name, endpoint: settings.endpoint, linkStatus, retry: retry))
  }

  func link(_ link: Link, ended session: Session, _ ending: Ending) {
    if ending.word == .tooSlow {
      session.client.abort()
    } else {
      let hasFinished = session.pump.sourceEnded && session.leaving == nil
      lingering.close(session.client, otherSideFinished: hasFinished)
    }
    status.tell(
      .sessionEnded(
        route: settings.name, number: session.number, session.arrival,
        SessionReport(
          ending: ending, up: session.up, down: session.down, dropped: session.dropped,
          nanoseconds: monotonicNanoseconds() &- session.began, wasOpened: true)))
    links.removeValue(forKey: session.number)
    sessionEnded()
  }

  /// Only now: the endpoint of the last session lingers too, and is waited for.
  func linkHasSettled(_ link: Link) { tellIfEmpty() }
}
