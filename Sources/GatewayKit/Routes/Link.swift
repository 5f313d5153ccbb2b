// The open stream to an endpoint, shared by all clients of a route or one per client, with the hub that moves its bytes.
// Does what `Device` decides: opens, waits, tries again, closes. What its clients meet while it is away stands in
// Link+Absence.swift, what a reload changes in Link+Update.swift.

import ByteStreams
import StreamBroker

protocol LinkDelegate: AnyObject {
  /// `retry` is the pause before the next try, where there is one.
  func link(_ link: Link, is status: LinkStatus, retry: Duration?)
  func link(_ link: Link, ended session: Session, _ ending: Ending)
  /// Bytes were thrown away that are in no session's account.
  func link(_ link: Link, dropped count: UInt64)
  func link(_ link: Link, writerChangedFrom old: Session?, to new: Session?)
  func link(_ link: Link, drops bytes: UInt64, of session: Session)
  /// What is known of the device behind the endpoint that is open now.
  func link(_ link: Link, knows facts: DeviceFacts)
  /// A fault of ours that ends nothing, for the link is closing.
  func link(_ link: Link, met fault: InternalFault)
  /// What followed from a session's end is done: a link that nobody needs any more is closed.
  func linkHasSettled(_ link: Link)
}

final class Link: HubDelegate {
  var settings: RouteSettings
  let poller: Poller
  let lingering: Lingering
  unowned let delegate: any LinkDelegate  // the group of sessions, which owns the link
  private(set) lazy var hub = Hub(settings.hub, on: poller, delegate: self)

  /// Of the session, where the link is one client's own.
  var number: UInt64?
  var device: Device
  private var opening: (any Opening)?
  private var deadline: Timers.Token?
  private var retryTimer: Timers.Token?
  private var lingerTimer: Timers.Token?
  private var watch: (any DeviceWatch)?
  private var farewell: Farewell?
  /// When it was opened, and when it could not be, or was lost.
  var openedAt: UInt64 = 0
  var failedAt: UInt64 = 0
  /// Why, where the system said so.
  var lastCause: SystemError?
  /// Until then clients stay although it can't be opened: the configuration has just changed.
  var heldUntil: UInt64 = 0
  /// What the endpoint that is left hears last, where that is not what the settings say now.
  var oldLastWords: [UInt8]?
  /// The client of a link of his own broke off, or what he sent was given up: his endpoint must not take it for all of it.
  private var breaksOff = false
  // Each attempt has a number, so that the answer of one that was given up means nothing.
  private var attempt = 0
  private var isStopping = false
  /// From 0 to 1: how much of each pause before a retry is random. Tests give their own, so that a run can be repeated.
  var jitter: () -> Double = { .random(in: 0...1) }
  private(set) var status = LinkStatus.closed
  /// When it came to be what its status says, and when it is tried next; on the lane's clock.
  private(set) var since: UInt64
  private(set) var retryAt: UInt64?
  private var waitingSince: UInt64?

  init(_ settings: RouteSettings, on poller: Poller, lingering: Lingering, delegate: any LinkDelegate) {
    self.settings = settings
    self.poller = poller
    self.lingering = lingering
    self.delegate = delegate
    device = Device(settings.devicePolicy)
    since = poller.timers.now
  }

  /// For a link that is to be open without clients.
  func start() { follow(device.handle(.wanted)) }

  func join(_ session: Session) {
    hub.join(session)
    follow(device.handle(.wanted, restedFor: elapsed(since: failedAt), now: poller.timers.now))
  }

  /// Sends all clients away, each after what is kept for him, and closes. The delegate hears of each.
  func stop(_ ending: Ending) {
    isStopping = true
    hub.leaveAll(ending)
    closeIfUnneeded()
  }

  /// Ends at once what is left after `stop`.
  func cutOff(_ ending: Ending) {
    for session in hub.sessions { hub.end(session, ending) }
    farewell?.cutOff()
  }

  func sessionIsOver(_ session: Session, _ ending: Ending) {
    delegate.link(self, ended: session, ending)
    breaksOff = !settings.hub.isShared && session.isInputCut
    if hub.sessions.isEmpty && settings.device.flush.atDisconnect { flush(.both) }
    closeIfUnneeded()
    delegate.linkHasSettled(self)
  }

  func closeIfUnneeded() {
    if !isNeeded { follow(device.handle(isStopping ? .dismissed : .unwanted)) }
  }

  private var isNeeded: Bool {
    if settings.staysOpen && !isStopping { return true }
    switch device.state {
    // Those who are on their way out may have left something for the device still.
    case .open, .lingering: return !hub.sessions.isEmpty
    default: return hub.sessions.contains { $0.leaving == nil }
    }
  }

  func elapsed(since time: UInt64) -> Duration { .nanoseconds(Int64(clamping: poller.timers.now &- time)) }

  // MARK: - What the device decides

  func follow(_ step: Device.Step) {
    switch step {
    case .open: open()
    case .cancelOpening:
      cancelOpening()
      stopTrying()
    case .linger(let time): linger(time)
    case .stopLingering: stopLingering()
    case .drain: drain()
    case .close: say(.closed)
    case .wait(let pause): wait(pause)
    case .stopWaiting: stopTrying()
    case .giveUp, .nothing: break
    }
  }

  private func open() {
    cancelOpening()
    stopWaiting()
    let attempt = attempt
    watch?.tryBegins()
    say(.opening)
    let opening = settings.connector.open(on: poller, discardingInput: settings.discardsInput) { [weak self] result in
      guard let self, self.attempt == attempt else { return }
      poller.timers.cancel(deadline)
      self.opening = nil
      switch result {
      case .success(let stream): opened(stream)
      case .failure(let failure): failed(failure)
      }
    }
    guard self.attempt == attempt, status == .opening else { return }  // it was over at once
    self.opening = opening
    guard !(settings.connector is any SteppedConnector) else { return }  // it ends each of its steps itself
    deadline = poller.timers.after(settings.connectTimeout) { [weak self] in
      guard let self, self.attempt == attempt else { return }
      cancelOpening()
      failed(OpenFailure("open \(settings.endpoint)", nil, advice: "no answer within \(settings.connectTimeout)"))
    }
  }

  private func cancelOpening() {
    attempt += 1
    poller.timers.cancel(deadline)
    opening?.cancel()
    opening = nil
  }

  private func opened(_ stream: any ByteStream) {
    openedAt = poller.timers.now
    stopWatching()
    say(.open)
    tellFacts(of: stream)
    follow(device.handle(.opened))
    hub.attach(stream, saying: settings.device.onOpen)
  }

  /// Now, and when more is known.
  private func tellFacts(of stream: any ByteStream) {
    guard let metadata = stream.metadata else { return }
    let tell = { [weak self, weak stream, weak metadata] in
      guard let self, let metadata, status == .open, hub.endpoint.map({ $0 === stream }) ?? true else { return }
      if metadata.facts.isEmpty { return }
      delegate.link(self, knows: metadata.facts)
    }
    metadata.changed = tell
    tell()
  }

  private func wait(_ pause: Duration) {
    poller.timers.cancel(retryTimer)
    retryAt = poller.timers.now &+ pause.nanoseconds
    retryTimer = poller.timers.after(pause) { [weak self] in
      guard let self else { return }
      follow(device.handle(.retryIsDue, now: poller.timers.now))
    }
    guard watch == nil else { return }
    watch = settings.connector.watch(on: poller, after: lastCause) { [weak self] news in
      guard let self else { return }
      follow(device.handle(news == .freed ? .freed : .nodeAppeared, now: poller.timers.now))
    }
  }

  private func stopWaiting() {
    poller.timers.cancel(retryTimer)
    retryTimer = nil
    if device.state == .closed { stopWatching() }
  }

  private func stopTrying() {
    stopWaiting()
    hub.setDropsInput(false)  // whether it is away still the next one will see
    say(.closed)
  }

  func tellWatch(_ cause: SystemError?) { watch?.tryFailed(cause) }

  func stopWatching() {
    watch?.cancel()
    watch = nil
  }

  // MARK: - Parting

  private func linger(_ time: Duration) {
    lingerTimer = poller.timers.after(time) { [weak self] in
      guard let self else { return }
      follow(device.handle(.lingerIsOver))
    }
  }

  func stopLingering() {
    poller.timers.cancel(lingerTimer)
    lingerTimer = nil
  }

  /// Closes behind the last words.
  private func drain() {
    stopLingering()
    hub.dropUnheard()
    guard let stream = hub.detach() else { return follow(device.handle(.drained)) }
    let words = oldLastWords ?? settings.device.onClose
    guard Farewell.isNeeded(for: stream, words) else { return part(from: stream) }
    say(.draining)
    let base = words.isEmpty ? nil : hub.settingsToRestore(of: stream.serialLine)
    farewell = Farewell(
      to: stream, saying: words, at: base, patience: settings.device.drain, on: poller
    ) { [weak self] unsent, fault in
      guard let self else { return stream.close() }
      farewell = nil
      if unsent > 0 { delegate.link(self, dropped: UInt64(unsent)) }
      if let fault { delegate.link(self, met: fault) }
      part(from: stream)
    }
    farewell?.start()
  }

  private func part(from stream: any ByteStream) {
    if breaksOff {
      lingering.breakOff(stream)
    } else {
      lingering.close(stream, otherSideFinished: hub.endpointHasEnded)
    }
    follow(device.handle(.drained))
    delegate.linkHasSettled(self)
  }

  func say(_ status: LinkStatus, retry: Device.Step = .nothing) {
    var pause: Duration?
    if case .wait(let length) = retry { pause = length }
    retryAt = pause.map { poller.timers.now &+ $0.nanoseconds }
    guard status != self.status else { return }
    note(status)
    self.status = status
    hub.linkIs(status)
    delegate.link(self, is: status, retry: pause)
  }

  func writerChanged(from old: Session?, to new: Session?) { delegate.link(self, writerChangedFrom: old, to: new) }
  func sessionDrops(_ session: Session, bytes: UInt64) { delegate.link(self, drops: bytes, of: session) }

  /// Tries in between do not make the time shorter that it has been waiting.
  private func note(_ status: LinkStatus) {
    let now = poller.timers.now
    switch status {
    case .waiting:
      since = waitingSince ?? now
      waitingSince = since
    case .opening: since = now
    case .open, .closed, .draining:
      since = now
      waitingSince = nil
    }
  }
}
