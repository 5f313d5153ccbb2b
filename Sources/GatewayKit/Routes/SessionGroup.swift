// A route's sessions on one lane: all of them for a shared link, this lane's part for per-client links. Makes sessions
// from accepted connections, and reports each ending to the route.

import ByteStreams
import Glibc
import StreamBroker

final class SessionGroup: LinkDelegate {
  private(set) var settings: RouteSettings
  let poller: Poller
  private let status: StatusSink
  private let closing: ClosingStreams
  private let idleWatch: IdleWatch
  // Shared: one link. Per client: links by the number of their session, each until it is closed.
  private(set) var sharedLink: Link?
  let recording: GroupRecording
  private(set) var links: [UInt64: Link] = [:]
  /// Totals of sessions that have ended.
  private(set) var totals = Snapshot.Totals()
  /// Since the route started, of all its links on this lane.
  private(set) var linkCounts = LinkCounts()
  /// The error counters of the shared link's port when they were last asked for.
  private(set) var lineCounts: LineCounts?
  /// Called on this lane, with the session's number and its client's address.
  private let sessionEnded: (UInt64, SocketAddress?) -> Void
  private var whenEmpty: (() -> Void)?
  /// The settings of a link's line may have changed.
  private let lineChanged: () -> Void
  private let descriptors: DescriptorBudget
  /// Descriptors for a shared link that is not open, and for each per-client link until it is.
  private var linkToCome: DescriptorReservation?
  private var linksToCome: [UInt64: DescriptorReservation] = [:]
  // When a route stops, connections linger this long at most; after that they are reset.
  private static let lastLinger = Duration.seconds(1)

  /// Ends sessions whose certificates are no longer valid.
  private(set) lazy var clientTrust = ClientTrust(on: poller, wallTime: wallTime) { [unowned self] number, ending in
    end(number, ending)  // the group owns `clientTrust`
  }
  private let wallTime: () -> Int

  init(
    _ settings: RouteSettings, on poller: Poller, status: StatusSink, wallTime: @escaping () -> Int = { time(nil) },
    descriptors: DescriptorBudget = DescriptorBudget(), captures: CaptureEnvironment = CaptureEnvironment(),
    lineChanged: @escaping () -> Void = {}, sessionEnded: @escaping (UInt64, SocketAddress?) -> Void
  ) {
    self.descriptors = descriptors
    self.lineChanged = lineChanged
    idleWatch = IdleWatch(poller.timers)
    self.settings = settings
    self.poller = poller
    self.status = status
    self.wallTime = wallTime
    self.sessionEnded = sessionEnded
    closing = ClosingStreams(on: poller)
    recording = GroupRecording(captures, on: poller, status)
    if settings.hub.isShared {
      let link = Link(settings, on: poller, closing: closing, delegate: self)
      sharedLink = link
      linkToCome = descriptors.reserve(settings.descriptorsNeeded)
      recording.follow(settings, of: link)
      if settings.staysOpen { link.start() }
    }
  }

  // MARK: - New clients

  /// Begins session `number` with the client. `preface` is sent to it before anything else; `hasReadText` means that it
  /// has got text already. `linkToCome` reserves descriptors for a per-client link.
  func take(
    _ stream: any ByteStream, _ label: AcceptedConnection.Label, preface: [UInt8], hasReadText: Bool = false,
    _ number: UInt64,
    _ linkToCome: DescriptorReservation? = nil, whenOver: ((SessionReport) -> Void)? = nil
  ) {
    var label = label
    label.hasOwnLink = sharedLink == nil
    let channel = ControlChannel(of: stream, sendsNotices: settings.sendsNotices)
    let banner = settings.banner?.bytes(for: label) ?? []
    // A client with a control channel of texts gets the banner there, not among the bytes.
    let hasTexts = channel?.hasTexts ?? false
    var client = PrefacedStream.send(hasTexts ? preface : preface + banner, through: stream)
    if settings.refusesHTTP && label.isRawTCP { client = HTTPRequestGuard(client, on: poller) }
    let link = sharedLink ?? Link(settings, on: poller, closing: closing, delegate: self)
    let session = Session(
      label, client: client, controlChannel: channel,
      hasReadText: hasReadText || !preface.isEmpty || !banner.isEmpty, number: number, hub: link.hub,
      buffer: settings.hub.buffer, on: poller)
    let text = banner.isEmpty ? nil : String(decoding: banner, as: UTF8.self)
    channel?.report(
      .hello(route: settings.name, session: number, role: label.role, user: label.identity.name, banner: text))
    if sharedLink == nil {
      links[number] = link
      link.number = number
      linksToCome[number] = linkToCome
    }
    status.publish(.sessionOpened(route: settings.name, number: number, label))
    session.whenOver = whenOver
    link.join(session)
    if label.tls != nil || label.isWebSocket || session.client.hasBufferedInput { poller.again(session.client) }
    idleWatch.watch(session, settings.idleTimeout)
    if label.shown != nil, !session.isOver { clientTrust.joined(number, label) }
  }

  /// Ends a client without a session: it gets `text`, then a close. Its input is dropped and counted. `nanoseconds` is
  /// how long it waited. With `atOnce` its connection does not linger.
  func refuse(
    _ stream: any ByteStream, _ label: AcceptedConnection.Label, _ number: UInt64, _ ending: Ending, text: [UInt8],
    nanoseconds: UInt64 = 0, atOnce: Bool = false
  ) {
    // Send the text first: if a read found an end before, the text would not be sent.
    ControlChannel(of: stream)?.report(ending)
    PrefacedStream.report(ending, to: stream)
    let client = PrefacedStream.send(text, through: stream)
    let (dropped, error) = closing.refuse(client, atOnce: atOnce)
    let final = error is InternalFault ? Ending(.internal, error) : Ending(ending.word, ending.cause ?? error)
    let report = SessionReport(ending: final, dropped: dropped, nanoseconds: nanoseconds)
    reportEnd(of: number, label, report)
  }

  /// Ends a client of a shared link that has finished sending and whose input is delivered, to give its slot to a new
  /// client. Most such clients have closed altogether, which TCP does not report.
  func freeSlotOfHalfClosed(where isMeant: (AcceptedConnection.Label) -> Bool = { _ in true }) {
    guard let hub = sharedLink?.hub,
      let gone = hub.sessions.first(where: { $0.isHalfClosed && isMeant($0.accepted) })
    else { return }
    hub.end(gone, Ending(.clientLeft))
  }

  /// Whether clients wait for a slot: then a client that finishes sending loses its slot at once.
  func slotsAreWanted(_ areWanted: Bool) { sharedLink?.hub.endHalfClosed(areWanted) }

  func note(_ counts: LineCounts?) { lineCounts = counts }

  // MARK: - Ending sessions

  var sessions: [Session] { sharedLink?.hub.sessions ?? links.values.flatMap(\.hub.sessions) }

  /// Ends one session now. Bytes kept for it or from it are dropped and counted; bytes that its socket has taken still
  /// arrive.
  func end(_ number: UInt64, _ ending: Ending) {
    let hub = sharedLink?.hub ?? links[number]?.hub
    guard let hub, let session = hub.sessions.first(where: { $0.number == number }) else { return }
    hub.end(session, ending)
  }

  /// Ends sessions that a new configuration forbids.
  func endForbidden(unless isAdmitted: (AcceptedConnection.Label) -> Bool) {
    for session in sessions where !isAdmitted(session.accepted) { session.hub.end(session, Ending(.denied)) }
  }

  /// Uses the new settings from now on. A per-client link keeps its endpoint: the other side of a proxy must not change
  /// during a session.
  func update(_ settings: RouteSettings) {
    let before = self.settings
    self.settings = settings
    if settings.idleTimeout != before.idleTimeout {
      for session in sessions { idleWatch.watch(session, settings.idleTimeout) }
    }
    if before.refusesHTTP && !settings.refusesHTTP { for session in sessions { session.requestGuard?.giveUp() } }
    sharedLink?.update(settings)
    recording.follow(settings, of: sharedLink)
    for link in links.values { link.hub.update(settings.hubPolicy) }
  }

  /// A reload: a recording that has stopped begins again.
  func retryRecording() { recording.retry(sharedLink) }

  /// Ends all sessions, each after everything kept for its client is sent, and closes the links. Calls `done` when
  /// nothing is left.
  func stop(_ ending: Ending, then done: @escaping () -> Void) {
    whenEmpty = done
    sharedLink?.stop(ending)
    for link in Array(links.values) { link.stop(ending) }
    reportIfEmpty()
  }

  /// Closes at once everything left after `stop`.
  func cutOff(_ ending: Ending) {
    sharedLink?.cutOff(ending)
    for link in Array(links.values) { link.cutOff(ending) }
    closing.closeAll()
  }

  private func reportIfEmpty() {
    guard let done = whenEmpty, links.isEmpty else { return }
    if let sharedLink, !sharedLink.hub.sessions.isEmpty || sharedLink.status != .closed { return }
    whenEmpty = nil
    closing.empty(within: Self.lastLinger) { [self] in recording.end(of: sharedLink, then: done) }
  }

  // MARK: - Events of links

  func link(_ link: Link, is linkStatus: LinkStatus, retry: Duration?) {
    linkCounts.count(linkStatus)
    reserve(for: link, linkStatus)
    // After the last bytes of the earlier endpoint, and before the first ones of another.
    if linkStatus == .opening { recording.follow(settings, of: sharedLink) }
    if let number = link.number {
      return status.publish(
        .clientLink(route: settings.name, number: number, endpoint: settings.endpoint, linkStatus))
    }
    status.publish(.link(route: settings.name, endpoint: settings.endpoint, linkStatus, retry: retry))
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
    if let others = facts.sharedWith {
      status.publish(.portShared(route: settings.name, endpoint: settings.endpoint, with: others))
    } else if settings.hub.isShared {
      status.publish(.deviceKnown(route: settings.name, endpoint: settings.endpoint, facts))
    }
  }

  func link(_ link: Link, ended session: Session, _ ending: Ending) {
    session.requestGuard?.forget()
    if ending.word == .tooSlow {
      session.client.abort()
    } else {
      session.controlChannel?.report(ending)
      PrefacedStream.report(ending, to: session.client)
      // Input that was given up is unread, and so is the client's end.
      let hasFinished =
        session.pump.sourceEnded && session.leaving == nil && !session.ending.isGivenUp
        && !session.client.closeBehavior.hasClosingHandshake
      let client = PrefacedStream.send(notice(of: ending, to: session), through: session.client)
      // The rest of a refused HTTP request is not needed; it is read only for a short time.
      let most = ending.cause is HTTPRequestFault ? ClosingStreams.mostBeforeSession : nil
      closing.close(client, otherSideFinished: hasFinished, readingAtMost: most)
    }
    let report = SessionReport(
      ending: ending, up: session.up.bytes, down: session.down.bytes, dropped: session.dropped,
      nanoseconds: poller.timers.now &- session.began, wasOpened: true)
    reportEnd(of: session.number, session.accepted, report)
    session.whenOver?(report)
    idleWatch.stop(session)
    if session.accepted.shown != nil { clientTrust.left(session.number) }
    linksToCome[session.number] = nil
    sessionEnded(session.number, session.accepted.address)
  }

  /// The notice for a client that got a slot and nothing else, because the device of a shared link is absent (`absent:
  /// close`): for the client this is a refusal. Text of ours must not follow bytes of a device.
  private func notice(of ending: Ending, to session: Session) -> [UInt8] {
    let label = session.accepted
    guard settings.sendsNotices, settings.hub.isShared, session.controlChannel?.showsEvents != true, !label.isWebSocket,
      session.down.takesOutput,
      session.down.bytes == 0, !session.hasReadText
    else { return [] }
    let reason: String
    switch ending.word {
    case .openFailed where ending.cause is PortReleased, .deviceLost where ending.cause is PortReleased:
      reason = "the device of \(settings.name) is released"
    case .openFailed:
      let why = (ending.cause as? OpenFailure)?.cause.map { ": \($0.text)" } ?? ""
      reason = "the device of \(settings.name) can't be opened\(why)"
    case .deviceLost: reason = "the device of \(settings.name) is gone"
    default: return []
    }
    return Array("baudway: \(reason)\r\n".utf8)
  }

  /// Reports the end of a client that got no further than its handshake.
  func report(_ label: AcceptedConnection.Label, _ number: UInt64, _ ending: Ending, nanoseconds: UInt64) {
    reportEnd(of: number, label, SessionReport(ending: ending, nanoseconds: nanoseconds))
  }

  private func reportEnd(of number: UInt64, _ label: AcceptedConnection.Label, _ report: SessionReport) {
    totals.count(report)
    status.publish(.sessionEnded(route: settings.name, number: number, label, report))
  }

  func link(_ link: Link, dropped count: UInt64) {
    totals.dropped &+= count
    status.publish(.linkDropped(route: settings.name, endpoint: settings.endpoint, bytes: count))
  }

  func link(_ link: Link, writerChangedFrom old: Session?, to new: Session?) {
    status.publish(.writerChanged(route: settings.name, from: old?.number, to: new?.number))
  }

  func link(_ link: Link, drops bytes: UInt64, of session: Session) {
    session.controlChannel?.report(.drops(bytes: bytes, total: session.dropped))
    status.publish(.dropped(route: settings.name, number: session.number, bytes: bytes, total: session.dropped))
  }

  func link(_ link: Link, wasAsked request: ControlChannelRequest, refusal: String?, by session: Session) {
    totals.countLine(refused: refusal != nil)
    status.publish(
      .lineAsked(route: settings.name, number: session.number, request: request.description, refusal: refusal))
  }

  func link(_ link: Link, wasResetBy recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>) {
    let error: SystemError? = if case .failure(let error) = result { error } else { nil }
    status.publish(.lineReset(route: settings.name, number: session, recipe: recipe.name, error))
  }

  func linkLineChanged(_ link: Link) { lineChanged() }

  func link(_ link: Link, met fault: InternalFault) {
    status.publish(.internalFault(route: settings.name, fault))
  }

  /// A per-client link may still send its endpoint the last bytes; it is kept until that is done. Report only now: the
  /// endpoint of the last session also lingers, and the report has to wait for it.
  func linkHasEvaluated(_ link: Link) {
    if let number = link.number, link.status == .closed { links[number] = nil }
    reportIfEmpty()
  }
}
