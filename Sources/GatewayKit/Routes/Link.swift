// The open stream to an endpoint, shared by all clients of a route or one per client, with the hub that moves its bytes.
// Does what `Device` decides: opens, waits, tries again, closes.

import ByteStreams
import StreamBroker

protocol LinkDelegate: AnyObject {
  /// `retry` is the pause before the next try, where there is one.
  func link(_ link: Link, is status: LinkStatus, retry: Duration?)
  func link(_ link: Link, ended session: Session, _ ending: Ending)
  /// What followed from a session's end is done: a link that nobody needs any more is closed.
  func linkHasSettled(_ link: Link)
}

final class Link: HubDelegate {
  private let settings: RouteSettings
  private let poller: Poller
  private let lingering: Lingering
  private unowned let delegate: any LinkDelegate  // the group of sessions, which owns the link
  private(set) lazy var hub = Hub(settings.hub, on: poller, delegate: self)

  private var device: Device
  private var opening: (any Opening)?
  private var deadline: Timers.Token?
  private var retryTimer: Timers.Token?
  private var watch: NodeWatch?
  private var openedAt: UInt64 = 0
  // Each attempt has a number, so that the answer of one that was given up means nothing.
  private var attempt = 0
  private var isStopping = false
  private(set) var status = LinkStatus.closed

  init(_ settings: RouteSettings, on poller: Poller, lingering: Lingering, delegate: any LinkDelegate) {
    self.settings = settings
    self.poller = poller
    self.lingering = lingering
    self.delegate = delegate
    device = Device(retry: settings.retry)
  }

  /// For a link that is to be open without clients.
  func start() { follow(device.handle(.wanted)) }

  func join(_ session: Session) {
    hub.join(session)
    follow(device.handle(.wanted))
  }

  /// Sends all clients away, each after what is kept for him, and closes. The delegate hears of each.
  func stop(_ ending: Ending) {
    isStopping = true
    hub.leaveAll(ending)
    closeIfUnneeded()
  }

  // MARK: - What the device decides

  private func follow(_ step: Device.Step) {
    switch step {
    case .open: open()
    case .cancelOpening:
      cancelOpening()
      stopWaiting()
      say(.closed)
    case .close: close()
    case .wait(let pause): wait(pause)
    case .stopWaiting:
      stopWaiting()
      say(.closed)
    case .giveUp, .nothing: break
    }
  }

  private func open() {
    stopWaiting()
    attempt += 1
    let attempt = attempt
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
    watch?.cancel()
    watch = nil
    say(.open)
    follow(device.handle(.opened))
    hub.attach(stream)
  }

  private func failed(_ failure: OpenFailure) {
    let step = device.handle(.failed, jitter: .random(in: 0...1))
    if step == .giveUp {
      say(.closed)
      hub.leaveAll(Ending(.openFailed, failure))
    } else {
      say(.waiting(.openFailed(failure)), retry: step)
      follow(step)
    }
  }

  private func wait(_ pause: Duration) {
    retryTimer = poller.timers.after(pause) { [weak self] in
      guard let self else { return }
      follow(device.handle(.retryIsDue))
    }
    guard watch == nil, let node = settings.connector.node else { return }
    watch = NodeWatch(path: node, on: poller) { [weak self] in
      guard let self else { return }
      follow(device.handle(.nodeAppeared))
    }
  }

  private func stopWaiting() {
    poller.timers.cancel(retryTimer)
    retryTimer = nil
    if device.state == .closed {
      watch?.cancel()
      watch = nil
    }
  }

  private func close() {
    if let stream = hub.detach() { lingering.close(stream, otherSideFinished: hub.endpointHasEnded) }
    hub.dropUnheard()
    say(.closed)
  }

  private func say(_ status: LinkStatus, retry: Device.Step = .nothing) {
    guard status != self.status else { return }
    self.status = status
    var pause: Duration?
    if case .wait(let length) = retry { pause = length }
    delegate.link(self, is: status, retry: pause)
  }

  // MARK: - What the hub tells

  func endpointIsGone(_ cause: (any Error)?) {
    if !settings.hub.isShared && cause == nil {
      hub.endpointHasEnded = true
      for session in hub.sessions { hub.settle(session) }
      return
    }
    if hub.endpointHasEnded {
      // It had said its last word in order; that it takes no more is its leave, not its failure.
      hub.endpointHungUp()
      return
    }
    hub.detach()?.close()
    let held = Duration.nanoseconds(Int64(clamping: poller.timers.now &- openedAt))
    let step = device.handle(.lost, jitter: .random(in: 0...1), heldFor: held)
    if step == .giveUp {
      say(.closed)
      hub.leaveAll(Ending(.deviceLost, cause))
    } else {
      say(.waiting(.lost(cause as? SystemError)), retry: step)
      follow(step)
      closeIfUnneeded()
    }
  }

  func sessionIsOver(_ session: Session, _ ending: Ending) {
    delegate.link(self, ended: session, ending)
    closeIfUnneeded()
    delegate.linkHasSettled(self)
  }

  private func closeIfUnneeded() {
    if hub.sessions.isEmpty && (!settings.staysOpen || isStopping) { follow(device.handle(.unwanted)) }
  }
}
