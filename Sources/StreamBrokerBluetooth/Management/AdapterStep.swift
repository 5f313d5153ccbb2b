// The first step of every opening: the management channel, an adapter that is on, its bonds. The channel stays open
// until the opening is over, for events about links and pairing.

import ByteStreams
import Glibc
import StreamBrokerCore

/// Lives on the lane.
final class AdapterStep {
  struct Ready {
    let adapter: ManagedAdapter
    let standing: BondKeeper.Standing
  }

  private let poller: Poller
  private let keeper: BondKeeper?
  private var flow: AdapterFlow
  private var management: ManagementSocket?
  private var underWay: () -> Void = {}
  private var deadline: Timers.Token?
  private var whenReady: ((Ready) -> Void)?
  private let handle: (ManagementEvent) -> Void
  private let failed: (OpenFailure) -> Void
  private let make: ManagementSocket.Making

  /// The time limit for each thing done off the lane: loading the kernel's module, a disk, or another process of ours
  /// may hang.
  static let timeout = Duration.seconds(20)
  private static let betweenLooks = Duration.milliseconds(200)

  /// `handle` is called with the channel's events once the adapter is ready. `failed` is called once: with the reason why
  /// the adapter is not ready, or with what broke the channel later.
  init(
    _ flow: AdapterFlow, bonds keeper: BondKeeper?, on poller: Poller,
    making make: @escaping ManagementSocket.Making = { ManagementSocket.make(on: $0, $1) },
    handle: @escaping (ManagementEvent) -> Void,
    failed: @escaping (OpenFailure) -> Void
  ) {
    self.flow = flow
    self.keeper = keeper
    self.poller = poller
    self.make = make
    self.handle = handle
    self.failed = failed
  }

  /// `ready` is called once, later, unless the step fails or is closed before. The step keeps `ready` until then.
  func start(_ ready: @escaping (Ready) -> Void) {
    whenReady = ready
    setDeadline("open Bluetooth's management channel", "the kernel did not answer")
    let making = make(poller) { [self] result in
      underWay = {}
      switch result {
      case .failure(let failure): fail(failure)
      case .success(let socket): begin(socket)
      }
    }
    underWay = { making.cancel() }
  }

  private func setDeadline(_ attempt: String, _ advice: String) {
    poller.timers.cancel(deadline)
    deadline = poller.timers.after(Self.timeout) { [self] in
      underWay()
      underWay = {}
      fail(OpenFailure(attempt, SystemError("open", ETIMEDOUT), advice: "\(advice) within \(Self.timeout)"))
    }
  }

  private func begin(_ socket: DescriptorParcel) {
    let management = ManagementSocket(socket, on: poller) { [weak self] in self?.handle($0) }
    self.management = management
    poller.timers.cancel(deadline)
    deadline = poller.timers.after(AdapterFlow.timeout) { [self] in follow(flow.handleTimeout()) }
    management.start(flow.firstCommand)
  }

  private func handle(_ event: Result<ManagementEvent, SystemError>) {
    switch event {
    case .failure(let error): fail(OpenFailure("use Bluetooth's management channel", error))
    case .success(let event):
      if whenReady != nil { follow(flow.handle(event)) } else { handle(event) }
    }
  }

  private func follow(_ step: AdapterFlow.Step) {
    switch step {
    case .send(let command): send(command)
    case .giveUp(let fault): fail(OpenFailure("choose an adapter", fault.cause, advice: fault.advice))
    case .retryLater:
      let retry = poller.timers.after(Self.betweenLooks) { [self] in follow(flow.handleRetry()) }
      underWay = { [poller] in poller.timers.cancel(retry) }
    case .wait: break
    case .ready(let adapter): prepare(adapter)
    }
  }

  private func prepare(_ adapter: ManagedAdapter) {
    poller.timers.cancel(deadline)
    guard let keeper else { return succeed(Ready(adapter: adapter, standing: BondKeeper.Standing())) }
    setDeadline("load the bonds", "the disk or the kernel did not answer")
    let preparing = keeper.prepare(adapter, on: poller) { [self] standing in
      underWay = {}
      succeed(Ready(adapter: adapter, standing: standing))
    }
    underWay = { preparing.cancel() }
  }

  private func succeed(_ ready: Ready) { takeWhenReady()?(ready) }

  // `whenReady` may hold the last reference to the receiver of `failed`, so it is kept during the call.
  private func fail(_ failure: OpenFailure) { withExtendedLifetime(takeWhenReady()) { failed(failure) } }

  private func takeWhenReady() -> ((Ready) -> Void)? {
    poller.timers.cancel(deadline)
    let ready = whenReady
    whenReady = nil
    return ready
  }

  func send(_ command: ManagementCommand) { management?.send(command) }

  /// Call it before a scan begins, and when it is over: see ManagementSocket.
  func hearScans(_ isWanted: Bool) { management?.hearScans(isWanted) }

  /// Handles all events that are queued: why a link broke is reported before its socket hangs up.
  func readAll() { management?.readAll() }

  /// Nothing is called afterwards.
  func close() {
    whenReady = nil
    poller.timers.cancel(deadline)
    // Clear the properties first: a command that can't be sent calls this again.
    let (management, underWay) = (management, underWay)
    self.management = nil
    self.underWay = {}
    underWay()
    management?.close()
  }
}

extension AdapterFlow {
  static let mayNotSwitchOn = SystemError("power on", EPERM)
}

extension AdapterFlow.Fault {
  /// As the sockets report it.
  fileprivate var cause: SystemError? {
    switch self {
    case .none, .noSuch, .isGone: SystemError("connect", EHOSTUNREACH)
    case .mayNot: AdapterFlow.mayNotSwitchOn
    case .silent: SystemError("read", ETIMEDOUT)
    case .isBusy: SystemError("power on", EBUSY)
    case .noLE, .noClassic, .isBlocked, .refused: nil
    }
  }
}
