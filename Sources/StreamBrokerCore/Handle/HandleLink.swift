// Opens the endpoint of a handle, and opens it again by the rules of the gateway's links (`LinkStateMachine`). Lives on
// the lane; `HandleCore` owns it and gets each open stream.

import ByteStreams

final class HandleLink {
  /// False from the moment when the program ends its output.
  var reconnects: Bool
  let holdsOutput: Bool
  private let broker: Broker
  private let connector: any Connector
  private let request: OpenRequest
  private let timeout: Duration
  private let retriesFirst: Bool
  private let shared: HandleShared
  private let poller: Poller
  private weak var core: HandleCore?
  private var machine: LinkStateMachine
  private var opening: (any Opening)?
  private var watch: (any DeviceWatch)?
  private var retryTimer: Timers.Token?
  private var lastCause: SystemError?
  private var openedAt: UInt64 = 0
  /// Gets the result of the first opening.
  private var first: ((Result<Void, any Error>) -> Void)?

  init(
    _ connector: any Connector, of broker: Broker, timeout: Duration, _ reconnect: Reconnect, _ shared: HandleShared,
    on poller: Poller, first: @escaping (Result<Void, any Error>) -> Void
  ) {
    self.connector = connector
    self.broker = broker
    self.timeout = timeout
    self.shared = shared
    self.poller = poller
    self.first = first
    reconnects = reconnect.kind != .never
    retriesFirst = reconnect.kind == .always
    holdsOutput = reconnect.holdsOutput
    machine = LinkStateMachine(.init(retry: reconnect.kind == .never ? nil : reconnect.pauses))
    var request = OpenRequest()
    request.connectTimeout = timeout
    if let observer = shared.observer {
      request.report = { observer.report(.step($0)) }
      request.remark = { observer.report(.remark($0)) }
    }
    self.request = request
  }

  func start(_ core: HandleCore) {
    self.core = core
    follow(machine.handle(.wanted))
  }

  // MARK: - Opening

  private func follow(_ step: LinkStateMachine.Step) {
    switch step {
    case .open: open()
    case .wait(let pause): wait(pause)
    default: break
    }
  }

  private func open() {
    poller.timers.cancel(retryTimer)
    watch?.attemptBegins()
    core?.markCleanups()
    shared.note(.opening)
    var isOver = false
    let opening = broker.open(connector, named: shared.url, request, on: poller, timeout: timeout) {
      [weak self] result in
      isOver = true
      self?.opening = nil
      switch result {
      case .success(let stream): self?.opened(stream) ?? stream.close()
      case .failure(let failure): self?.failed(failure)
      }
    }
    if !isOver { self.opening = opening }
  }

  private func opened(_ stream: any ByteStream) {
    watch?.cancel()
    watch = nil
    openedAt = poller.timers.now
    _ = machine.handle(.opened)
    shared.note(.open)
    shared.observer?.report(.open)
    core?.attach(stream)
    first.take()?(.success(()))
  }

  private func failed(_ failure: OpenFailure) {
    lastCause = failure.cause
    watch?.attemptFailed(failure.cause)
    if let first, !retriesFirst {
      self.first = nil
      stop()
      return first(.failure(failure))
    }
    retry(.failed, .openFailed(failure))
  }

  /// The open stream is gone. Returns whether it is opened again.
  func lost(_ error: (any Error)?) -> Bool {
    let reason = LinkStatus.Reason(losingBy: error)
    shared.observer?.report(.lost(reason))
    guard reconnects else {
      stop()
      return false
    }
    lastCause = error as? SystemError
    retry(.lost, reason)
    return true
  }

  private func retry(_ event: LinkStateMachine.Event, _ reason: LinkStatus.Reason) {
    let now = poller.timers.now
    let elapsed = { (time: UInt64) in Duration.nanoseconds(Int64(clamping: now &- time)) }
    let use = LinkStateMachine.Use(
      openFor: elapsed(openedAt), tookFirst: core?.firstTakenAt.map(elapsed) ?? .zero)
    let step = machine.handle(event, jitter: .random(in: 0...1), use: use, now: now)
    shared.note(.waiting(reason))
    if case .wait(let pause) = step {
      // In whole milliseconds: the pause is a random one.
      shared.observer?.report(.waiting(reason, retryIn: .milliseconds(Int64(pause / .milliseconds(1)))))
    }
    follow(step)
  }

  private func wait(_ pause: Duration) {
    poller.timers.cancel(retryTimer)
    retryTimer = poller.timers.after(pause) { [weak self] in
      guard let self else { return }
      follow(machine.handle(.retryIsDue, now: poller.timers.now))
    }
    guard watch == nil else { return }
    watch = connector.watch(on: poller, after: lastCause) { [weak self] news in
      guard let self else { return }
      follow(machine.handle(news == .freed ? .freed : .nodeAppeared, now: poller.timers.now))
    }
  }

  // MARK: - The end

  /// No more tries. Safe to call twice.
  func stop() {
    _ = machine.handle(.dismissed)
    poller.timers.cancel(retryTimer)
    watch?.cancel()
    watch = nil
    opening?.cancel()
    opening = nil
    guard shared.status != .closed else { return }
    shared.note(.closed)
    shared.observer?.report(.closed)
  }
}
