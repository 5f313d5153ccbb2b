// A route's sessions on one lane: all of them when the link is shared, this lane's part when each client has his own.
// Makes sessions of arrivals and tells the route of each ending.

import ByteStreams
import Glibc
import StreamBroker

final class SessionGroup: LinkDelegate {
  private var settings: RouteSettings
  private let poller: Poller
  private let status: StatusSink
  private let lingering: Lingering
  // Shared: one. Per client: each keyed by its session.
  private(set) var sharedLink: Link?
  private(set) var links: [UInt64: Link] = [:]
  /// Of sessions that have ended.
  private(set) var totals = Snapshot.Totals()
  /// Told on this lane, with the session's number.
  private let sessionEnded: (UInt64) -> Void
  private var whenEmpty: (() -> Void)?
  private let descriptors: DescriptorBudget
  /// For a shared link that is not open; and for each other one until it is.
  private var linkToCome: DescriptorReservation?
  private var linksToCome: [UInt64: DescriptorReservation] = [:]
  // At the end of a route, clients get so long to take leave; one who stays would only see a reset then.
  private static let lastLinger = Duration.seconds(1)

  /// Ends those whose certificates are good no longer.
  private(set) lazy var clientTrust = ClientTrust(on: poller, wallTime: wallTime) { [unowned self] number, ending in
    end(number, ending)  // it is the group's own
  }
  private let wallTime: () -> Int

  init(
    _ settings: RouteSettings, on poller: Poller, status: StatusSink, wallTime: @escaping () -> Int = { time(nil) },
    descriptors: DescriptorBudget = DescriptorBudget(), sessionEnded: @escaping (UInt64) -> Void
  ) {
    self.descriptors = descriptors
    self.settings = settings
    self.poller = poller
    self.status = status
    self.wallTime = wallTime
    self.sessionEnded = sessionEnded
    lingering = Lingering(on: poller)
    if settings.hub.isShared {
      let link = Link(settings, on: poller, lingering: lingering, delegate: self)
      sharedLink = link
      linkToCome = descriptors.reserve(settings.descriptorsNeeded)
      if settings.staysOpen { link.start() }
    }
  }

  // MARK: - Clients who come

  /// Begins session `number` with the client. `preface` is what it reads before anything else; `hasReadText` when it has read
  /// something already. `linkToCome` is for the link of one that has its own.
  func take(
    _ stream: any ByteStream, _ label: Arrival.Label, preface: [UInt8], hasReadText: Bool = false, _ number: UInt64,
    _ linkToCome: DescriptorReservation? = nil
  ) {
    var label = label
    label.hasOwnLink = sharedLink == nil
    let channel = (stream as? any DeskChannel).flatMap { $0.carriesTexts ? $0 : nil }
    let banner = settings.banner?.bytes(for: label) ?? []
    // Beside the bytes for those who can hear it there.
    var client = PrefacedStream.send(channel == nil ? preface + banner : preface, through: stream)
    if settings.refusesHTTP && label.isRawTCP { client = HTTPScreen(client, on: poller) }
    let link = sharedLink ?? Link(settings, on: poller, lingering: lingering, delegate: self)
    let session = Session(
      label, client: client, number: number, hub: link.hub, buffer: settings.hub.buffer, on: poller)
    session.hasReadText = hasReadText || !preface.isEmpty || !banner.isEmpty
    if let channel {
      let desk = Desk(channel)
      session.desk = desk
      let text = banner.isEmpty ? nil : String(decoding: banner, as: UTF8.self)
      desk.tell(
        .hello(route: settings.name, session: number, role: label.role, user: label.identity.name, banner: text))
    }
    if sharedLink == nil {
      links[number] = link
      link.number = number
      linksToCome[number] = linkToCome
    }
    status.tell(.sessionOpened(route: settings.name, number: number, label))
    link.join(session)
    if label.tls != nil || label.isWebSocket { poller.again(session.client) }
    watchIfIdle(session)
    if label.shown != nil, !session.isOver { clientTrust.joined(number, label) }
  }

  /// Ends a client who has no session yet: he reads `text`, and then our end. What he has sent is dropped and counted.
  /// `nanoseconds` is how long he waited. With `atOnce` its connection does not linger.
  func turnAway(
    _ stream: any ByteStream, _ label: Arrival.Label, _ number: UInt64, _ ending: Ending, text: [UInt8],
    nanoseconds: UInt64 = 0, atOnce: Bool = false
  ) {
    // The text first: what reading tells of an end would keep it back.
    if let channel = stream as? any DeskChannel, channel.carriesTexts { Desk(channel).tell(ending) }
    PrefacedStream.tell(ending, to: stream)
    let client = PrefacedStream.send(text, through: stream)
    // Lingering bears with so many; the others close at once, and what lies unread then would turn their FIN into a reset.
    let (dropped, error) = Self.dropUnread(of: stream)
    let left = Lingering.mostBeforeSession - Int(dropped)
    lingering.close(client, otherSideFinished: error != nil || atOnce, readingAtMost: left)
    let final = error is InternalFault ? Ending(.internal, error) : Ending(ending.word, ending.cause ?? error)
    let report = SessionReport(ending: final, dropped: dropped, nanoseconds: nanoseconds)
    tellEnd(of: number, label, report)
  }

  /// Reads what the client has sent so far. How much it was, and how it broke.
  private static func dropUnread(of stream: any ByteStream) -> (UInt64, (any Error)?) {
    withUnsafeTemporaryAllocation(byteCount: 16384, alignment: 1) { scratch in
      var dropped: UInt64 = 0
      do {
        for _ in 0..<Lingering.mostBeforeSession / scratch.count {
          let transfer = try stream.read(into: scratch).checked(of: scratch.count, at: "group.dropUnread")
          guard case .moved(let count) = transfer else { break }
          dropped += UInt64(count)
        }
        return (dropped, nil)
      } catch {
        return (dropped, error)
      }
    }
  }

  /// Clients of a shared link that have finished sending, and whose input is delivered, give up their place to
  /// somebody new: most of them have closed altogether, which TCP does not tell.
  func freePlaceOfHalfClosed(where isMeant: (Arrival.Label) -> Bool = { _ in true }) {
    guard let hub = sharedLink?.hub,
      let gone = hub.sessions.first(where: { $0.isHalfClosed && isMeant($0.arrival) })
    else { return }
    hub.end(gone, Ending(.clientLeft))
  }

  /// Whether clients wait for a place: then who has finished sending gives up his as soon as he has.
  var placesAreWanted = false {
    didSet { sharedLink?.hub.endsHalfClosed = placesAreWanted }
  }

  // MARK: - Ending sessions

  var sessions: [Session] { sharedLink?.hub.sessions ?? links.values.flatMap(\.hub.sessions) }

  /// Ends one now. What is kept of it is dropped and counted; what its socket has taken still arrives.
  func end(_ number: UInt64, _ ending: Ending) {
    let hub = sharedLink?.hub ?? links[number]?.hub
    guard let hub, let session = hub.sessions.first(where: { $0.number == number }) else { return }
    hub.end(session, ending)
  }

  /// Ends those whom a new configuration does not let in any more.
  func endForbidden(unless isAdmitted: (Arrival.Label) -> Bool) {
    for session in sessions where !isAdmitted(session.arrival) { session.hub.end(session, Ending(.denied)) }
  }

  /// From here on new values hold. A client with a link of his own keeps the endpoint he came to: the other side of
  /// a proxy is not to be exchanged under him.
  func update(_ settings: RouteSettings) {
    let before = self.settings
    self.settings = settings
    if settings.idleTimeout != before.idleTimeout { for session in sessions { watchIfIdle(session) } }
    if before.refusesHTTP && !settings.refusesHTTP { for session in sessions { session.screen?.giveUp() } }
    sharedLink?.update(settings)
    for link in links.values { link.hub.update(settings.hub) }
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
    sharedLink?.cutOff(ending)
    for link in Array(links.values) { link.cutOff(ending) }
    lingering.closeAll()
  }

  private func tellIfEmpty() {
    guard let done = whenEmpty, links.isEmpty else { return }
    if let sharedLink, !sharedLink.hub.sessions.isEmpty || sharedLink.status != .closed { return }
    whenEmpty = nil
    lingering.empty(within: Self.lastLinger, then: done)
  }

  // MARK: - Idle clients

  /// Ends the session once no byte has gone either way for as long as the route bears it. Costs a byte nothing: the timer
  /// compares counters, four times in that while, so the end comes at most a quarter late.
  private func watchIfIdle(_ session: Session) {
    poller.timers.cancel(session.idleTimer)
    session.idleTimer = nil
    guard !session.isOver, let limit = settings.idleTimeout else { return }
    look(at: session, every: max(limit / 4, Self.shortestLook), limit, since: poller.timers.now, session.activity)
  }

  private static let shortestLook = Duration.milliseconds(10)

  private func look(
    at session: Session, every pause: Duration, _ limit: Duration, since: UInt64, _ activity: UInt64
  ) {
    session.idleTimer = poller.timers.after(pause) { [weak self, weak session] in
      // Who is on his way out has a deadline of his own.
      guard let self, let session, !session.isOver, session.leaving == nil else { return }
      let now = poller.timers.now
      if session.activity != activity {
        look(at: session, every: pause, limit, since: now, session.activity)
      } else if now &- since < limit.nanoseconds {
        look(at: session, every: pause, limit, since: since, activity)
      } else {
        session.hub.end(session, Ending(.idle))
      }
    }
  }

  // MARK: - What links tell

  func link(_ link: Link, is linkStatus: LinkStatus, retry: Duration?) {
    reserve(for: link, linkStatus)
    if let number = link.number {
      return status.tell(
        .clientLink(route: settings.name, number: number, endpoint: settings.endpoint, linkStatus))
    }
    status.tell(.link(route: settings.name, endpoint: settings.endpoint, linkStatus, retry: retry))
  }

  private func reserve(for link: Link, _ status: LinkStatus) {
    if let number = link.number {
      if status == .open { linksToCome[number] = nil }
      return
    }
    switch status {
    case .open, .draining: linkToCome = nil
    case .closed, .opening, .waiting:
      if linkToCome == nil { linkToCome = descriptors.reserve(settings.descriptorsNeeded) }
    }
  }

  func link(_ link: Link, knows facts: DeviceFacts) {
    guard settings.hub.isShared else { return }
    status.tell(.deviceKnown(route: settings.name, endpoint: settings.endpoint, facts))
  }

  func link(_ link: Link, ended session: Session, _ ending: Ending) {
    session.screen?.forget()
    if ending.word == .tooSlow {
      session.client.abort()
    } else {
      session.desk?.tell(ending)
      PrefacedStream.tell(ending, to: session.client)
      let hasFinished = session.pump.sourceEnded && session.leaving == nil && !session.client.hasClosingHandshake
      let client = PrefacedStream.send(notice(of: ending, to: session), through: session.client)
      // What a request carries besides its line is nobody's; it is not read for long.
      let most = ending.cause is HTTPRequestFault ? Lingering.mostBeforeSession : nil
      lingering.close(client, otherSideFinished: hasFinished, readingAtMost: most)
    }
    tellEnd(
      of: session.number, session.arrival,
      SessionReport(
        ending: ending, up: session.up, down: session.down, dropped: session.dropped,
        nanoseconds: monotonicNanoseconds() &- session.began, wasOpened: true))
    poller.timers.cancel(session.idleTimer)
    if session.arrival.shown != nil { clientTrust.left(session.number) }
    links.removeValue(forKey: session.number)
    linksToCome[session.number] = nil
    sessionEnded(session.number)
  }

  /// The line for a client that has got a place and nothing else, since the device of a shared link is away (`absent: close`):
  /// for it this is a refusal. Bytes of a device must not be followed by words of ours.
  private func notice(of ending: Ending, to session: Session) -> [UInt8] {
    let label = session.arrival
    guard settings.sendsNotices, settings.hub.isShared, session.desk == nil, !label.isWebSocket, session.takesOutput,
      session.down == 0, !session.hasReadText
    else { return [] }
    let reason: String
    switch ending.word {
    case .openFailed:
      let why = (ending.cause as? OpenFailure)?.cause.map { ": \($0.text)" } ?? ""
      reason = "the device of \(settings.name) can't be opened\(why)"
    case .deviceLost: reason = "the device of \(settings.name) is gone"
    default: return []
    }
    return Array("baudway: \(reason)\r\n".utf8)
  }

  /// One of the route's who was greeted, and did not get as far as this.
  func report(_ label: Arrival.Label, _ number: UInt64, _ ending: Ending, nanoseconds: UInt64) {
    tellEnd(of: number, label, SessionReport(ending: ending, nanoseconds: nanoseconds))
  }

  private func tellEnd(of number: UInt64, _ label: Arrival.Label, _ report: SessionReport) {
    totals.count(report)
    status.tell(.sessionEnded(route: settings.name, number: number, label, report))
  }

  func link(_ link: Link, dropped count: UInt64) {
    totals.dropped &+= count
    status.tell(.linkDropped(route: settings.name, endpoint: settings.endpoint, bytes: count))
  }

  func link(_ link: Link, writerChangedFrom old: Session?, to new: Session?) {
    status.tell(.writerChanged(route: settings.name, from: old?.number, to: new?.number))
  }

  func link(_ link: Link, drops bytes: UInt64, of session: Session) {
    session.desk?.tell(.drops(bytes: bytes, total: session.dropped))
    status.tell(.dropped(route: settings.name, number: session.number, bytes: bytes, total: session.dropped))
  }

  func link(_ link: Link, met fault: InternalFault) {
    status.tell(.internalFault(route: settings.name, fault))
  }

  /// Only now: the endpoint of the last session lingers too, and is waited for.
  func linkHasSettled(_ link: Link) { tellIfEmpty() }
}
