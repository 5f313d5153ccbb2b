// The open stream to an endpoint, shared by all clients of a route or one per client, with the hub that moves its
// bytes. Carries out what `LinkStateMachine` decides: opens, waits, tries again, closes. Link+Absence.swift is about an
// endpoint that is absent, Link+Reload.swift about reloads.

import ByteStreams
import StreamBroker

protocol LinkDelegate: AnyObject {
  /// `retry` is the pause before the next try, if there is one.
  func link(_ link: Link, is status: LinkStatus, retry: Duration?)
  func link(_ link: Link, ended session: Session, _ ending: Ending)
  /// Bytes were dropped that no session counts.
  func link(_ link: Link, dropped count: UInt64)
  func link(_ link: Link, writerChangedFrom old: Session?, to new: Session?)
  func link(_ link: Link, drops bytes: UInt64, of session: Session)
  func link(_ link: Link, wasAsked request: ControlChannelRequest, refusal: String?, by session: Session)
  func link(_ link: Link, wasResetBy recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>)
  /// `hub.lineSettings` may have changed. Do not change the link in this call.
  func linkLineChanged(_ link: Link)
  /// Facts about the device of the open endpoint.
  func link(_ link: Link, knows facts: DeviceFacts)
  /// A mistake of ours that ends nothing, because the link is closing.
  func link(_ link: Link, met fault: InternalFault)
  /// Everything that follows from a session's end is done; a link that is no longer needed is closed.
  func linkHasEvaluated(_ link: Link)
}

final class Link: HubDelegate {
  var settings: RouteSettings
  let poller: Poller
  let closing: ClosingStreams
  unowned let delegate: any LinkDelegate  // the group of sessions, which owns the link
  private(set) lazy var hub = Hub(settings.hubPolicy, on: poller, delegate: self)

  /// The session's number, for a per-client link.
  var number: UInt64?
  var machine: LinkStateMachine
  private var opening: (any Opening)?
  /// The connection to the endpoint: while it opens, and while it is open if it may lead back to this gateway.
  private var dial: OwnConnections.Dial?
  private var deadline: Timers.Token?
  private var retryTimer: Timers.Token?
  private var lingerTimer: Timers.Token?
  private var watch: (any DeviceWatch)?
  private var endpointDrain: OrderlyClose?
  /// When the endpoint was opened, and when it could not be opened or was lost.
  var openedAt: UInt64 = 0
  private var readersLookedForAt: UInt64 = 0
  var failedAt: UInt64 = 0
  /// The system's error at that time, if there was one.
  var lastCause: SystemError?
  /// Until this time clients stay even if opening fails, because the configuration has just changed.
  var heldUntil: UInt64 = 0
  /// The `on-close` bytes for the endpoint that is being replaced; nil = those of the current settings.
  var oldOnClose: [UInt8]?
  /// Before the endpoint was closed last, or its opening cancelled.
  private(set) var closeMark: PendingCleanups.Mark
  /// Answers to `baudway release` that are due.
  var releases: [(Result<String, LinkRefusal>) -> Void] = []
  // Each attempt has a number, so that the result of a cancelled one is ignored.
  private var attempt = 0
  private(set) var isStopping = false
  /// Per-client link: input was cut short. Reset the endpoint instead of sending a clean FIN.
  private var breaksOff = false
  /// A random number from 0 to 1 that shortens each pause before a retry. Tests set their own, to repeat a run.
  var jitter: () -> Double = { .random(in: 0...1) }
  private(set) var status = LinkStatus.closed
  /// Start of the current status, and time of the next try, on the lane's clock.
  private(set) var since: UInt64
  private(set) var retryAt: UInt64?
  private var waitingSince: UInt64?

  init(_ settings: RouteSettings, on poller: Poller, closing: ClosingStreams, delegate: any LinkDelegate) {
    self.settings = settings
    self.poller = poller
    self.closing = closing
    self.delegate = delegate
    machine = LinkStateMachine(settings.devicePolicy)
    since = poller.timers.now
    closeMark = poller.closings.mark
  }

  /// For a link that stays open without clients.
  func start() { follow(machine.handle(.wanted)) }

  func join(_ session: Session) {
    hub.join(session)
    lookForOtherReaders()
    follow(machine.handle(.wanted, restedFor: elapsed(since: failedAt), now: poller.timers.now))
    if machine.state == .released { treatClients(leavingWith: Ending(.openFailed, PortReleased())) }
  }

  /// Ends all sessions, each after everything kept for the client is sent, and closes. Calls the delegate for each.
  func stop(_ ending: Ending) {
    isStopping = true
    hub.leaveAll(ending)
    closeIfUnneeded()
  }

  /// Ends at once what is left after `stop`.
  func cutOff(_ ending: Ending) {
    for session in hub.sessions { hub.end(session, ending) }
    endpointDrain?.cutOff()
  }

  func sessionIsOver(_ session: Session, _ ending: Ending) {
    delegate.link(self, ended: session, ending)
    if session.down.bytes == 0 { lookForOtherReaders() }
    breaksOff = !settings.hub.isShared && session.ending.isInputCut
    if hub.sessions.isEmpty && settings.device.flush.atDisconnect { flush(.both) }
    closeIfUnneeded()
    delegate.linkHasEvaluated(self)
  }

  func closeIfUnneeded() {
    if !isNeeded { follow(machine.handle(isStopping ? .dismissed : .unwanted)) }
  }

  var isNeeded: Bool {
    if settings.staysOpen && !isStopping { return true }
    switch machine.state {
    // Sessions that are ending may still have input for the device.
    case .open, .lingering: return !hub.sessions.isEmpty
    default: return hub.sessions.contains { $0.leaving == nil }
    }
  }

  /// How the endpoint that is open, or was open last, was used.
  var use: LinkStateMachine.Use {
    LinkStateMachine.Use(
      openFor: elapsed(since: openedAt), tookFirst: hub.upstream.firstTakenAt.map { elapsed(since: $0) } ?? .zero)
  }

  func elapsed(since time: UInt64) -> Duration { .nanoseconds(Int64(clamping: poller.timers.now &- time)) }

  // MARK: - Steps of the state machine

  func follow(_ step: LinkStateMachine.Step) {
    switch step {
    case .open: open()
    case .cancelOpening:
      cancelOpening()
      stopTrying()
    case .linger(let time): linger(time)
    case .stopLingering: stopLingering()
    case .drain: drain()
    case .close: nothingIsOpen()
    case .wait(let pause): wait(pause)
    case .stopWaiting: stopTrying()
    case .giveUp, .nothing: break
    }
  }

  private func open() {
    cancelOpening()
    stopWaiting()
    let attempt = attempt
    watch?.attemptBegins()
    setStatus(.opening)
    var request = OpenRequest(discardsInput: settings.discardsInput)
    request.connectTimeout = settings.connectTimeout
    request.remark = settings.remark
    dial = settings.dial()
    request.dial = dial
    let opening = settings.connector.open(request, on: poller) { [weak self] result in
      guard let self, self.attempt == attempt else { return }
      poller.timers.cancel(deadline)
      self.opening = nil
      switch result {
      case .success(let stream):
        if let loop {
          stream.close()
          failed(loop)
        } else {
          opened(stream)
        }
      case .failure(let failure): failed(loop ?? failure)
      }
    }
    guard self.attempt == attempt, status == .opening else { return }  // it ended during the call
    self.opening = opening
    guard settings.longestOpening == nil else { return }  // each of its steps has its own timeout
    deadline = poller.timers.after(settings.connectTimeout) { [weak self] in
      guard let self, self.attempt == attempt else { return }
      cancelOpening()
      failed(OpenFailure("open \(settings.endpoint)", nil, advice: "no answer within \(settings.connectTimeout)"))
    }
  }

  /// Set if the connection came back to this route.
  var loop: OpenFailure? {
    dial?.loop.map { OpenFailure("open \(settings.endpoint)", nil, advice: $0.description) }
  }

  private func cancelOpening() {
    closesNow()
    attempt += 1
    poller.timers.cancel(deadline)
    opening?.cancel()
    opening = nil
  }

  private func opened(_ stream: any ByteStream) {
    openedAt = poller.timers.now
    readersLookedForAt = openedAt  // the connector does it when it opens a port
    stopWatching()
    if dial?.comesBack == false { dial = nil }
    setStatus(.open)
    publishFacts(of: stream)
    follow(machine.handle(.opened))
    hub.attach(stream, saying: settings.device.onOpen)
  }

  /// When a client comes, or has received nothing: a program without a lock may have opened the port since, and read the
  /// bytes. The look runs elsewhere, and its result is a fact of the device.
  private func lookForOtherReaders() {
    guard status == .open, let stream = hub.endpoint, stream.serialLine != nil, let look = stream.metadata?.refresh,
      poller.timers.now &- readersLookedForAt >= Self.pauseOfLooks
    else { return }
    readersLookedForAt = poller.timers.now
    look {}
  }

  private static let pauseOfLooks: UInt64 = 10_000_000_000

  /// Reports the facts now, and when more are known.
  private func publishFacts(of stream: any ByteStream) {
    guard let metadata = stream.metadata else { return }
    let report = { [weak self, weak stream, weak metadata] in
      guard let self, let metadata, status == .open, hub.endpoint.map({ $0 === stream }) ?? true else { return }
      if metadata.facts.isEmpty { return }
      delegate.link(self, knows: metadata.facts)
    }
    metadata.changed = report
    report()
  }

  private func wait(_ pause: Duration) {
    poller.timers.cancel(retryTimer)
    retryAt = poller.timers.now &+ pause.nanoseconds
    retryTimer = poller.timers.after(pause) { [weak self] in
      guard let self else { return }
      follow(machine.handle(.retryIsDue, now: poller.timers.now))
    }
    guard watch == nil else { return }
    watch = settings.connector.watch(on: poller, after: lastCause) { [weak self] news in
      guard let self else { return }
      follow(machine.handle(news == .freed ? .freed : .nodeAppeared, now: poller.timers.now))
    }
  }

  private func stopWaiting() {
    poller.timers.cancel(retryTimer)
    retryTimer = nil
    if machine.state == .closed || machine.state == .released { stopWatching() }
  }

  private func stopTrying() {
    stopWaiting()
    hub.upstream.setDropsInput(false)  // the next try finds out whether it is still absent
    nothingIsOpen()
  }

  private func nothingIsOpen() {
    guard machine.state == .released else {
      refuseReleases()
      return setStatus(.closed)
    }
    setStatus(.waiting(.released))
    isReleased()
  }

  func closesNow() { closeMark = poller.closings.mark }

  func notifyWatch(_ cause: SystemError?) { watch?.attemptFailed(cause) }

  func stopWatching() {
    watch?.cancel()
    watch = nil
  }

  // MARK: - Closing

  private func linger(_ time: Duration) {
    lingerTimer = poller.timers.after(time) { [weak self] in
      guard let self else { return }
      follow(machine.handle(.lingerIsOver))
    }
  }

  func stopLingering() {
    poller.timers.cancel(lingerTimer)
    lingerTimer = nil
  }

  /// Closes after the last output.
  private func drain() {
    stopLingering()
    hub.downstream.dropWithoutClients()
    let silence = hub.upstream.queue.silenceEnds
    guard let stream = hub.detach() else { return follow(machine.handle(.drained, use: use)) }
    let words = oldOnClose ?? settings.device.onClose
    guard EndpointDrain.areNeeded(for: stream, words) else { return part(from: stream) }
    setStatus(.draining)
    let base = hub.lineControl?.settingsToRestore(of: stream.serialLine)
    let endpointDrain = EndpointDrain(
      words, to: stream, at: base, after: silence, timeout: settings.device.drain, on: poller)
    self.endpointDrain = OrderlyClose(endpointDrain) { [weak self] end in
      guard let self else { return stream.close() }
      self.endpointDrain = nil
      if end.unsent > 0 { delegate.link(self, dropped: UInt64(end.unsent)) }
      if let fault = end.fault { delegate.link(self, met: fault) }
      part(from: stream)
    }
    self.endpointDrain?.start()
  }

  private func part(from stream: any ByteStream) {
    closesNow()
    if breaksOff {
      closing.breakOff(stream)
    } else {
      closing.close(stream, otherSideFinished: hub.endpointHasEnded)
    }
    follow(machine.handle(.drained, use: use))
    delegate.linkHasEvaluated(self)
  }

  func setStatus(_ status: LinkStatus, retry: LinkStateMachine.Step = .nothing) {
    var pause: Duration?
    if case .wait(let length) = retry { pause = length }
    retryAt = pause.map { poller.timers.now &+ $0.nanoseconds }
    guard status != self.status else { return }
    note(status)
    self.status = status
    hub.lineControl?.linkIs(status)
    delegate.link(self, is: status, retry: pause)
  }

  func writerChanged(from old: Session?, to new: Session?) { delegate.link(self, writerChangedFrom: old, to: new) }
  func lineWasAsked(_ request: ControlChannelRequest, refusal: String?, by session: Session) {
    delegate.link(self, wasAsked: request, refusal: refusal, by: session)
  }
  func lineChanged() { delegate.linkLineChanged(self) }
  func sessionDrops(_ session: Session, bytes: UInt64) { delegate.link(self, drops: bytes, of: session) }

  /// Tries in between do not restart the waiting time that is reported.
  private func note(_ status: LinkStatus) {
    let now = poller.timers.now
    switch status {
    case .waiting:
      dial = nil
      since = waitingSince ?? now
      waitingSince = since
    case .opening: since = now
    case .open, .closed, .draining:
      if status == .closed { dial = nil }
      since = now
      waitingSince = nil
    }
  }
}
