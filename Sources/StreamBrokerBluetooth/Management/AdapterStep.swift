// The first step of every opening: the management channel, an adapter that is on, its bonds. The channel stays until the opening is
// over, for what is told of links and pairing meanwhile.

import ByteStreams
import Glibc
import StreamBroker

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
  private let hear: (ManagementEvent) -> Void
  private let failed: (OpenFailure) -> Void
  private let make: ManagementSocket.Making

  /// For what is done off the lane, each: the loading of the kernel's module, a disk and another process of ours may hang.
  static let patience = Duration.seconds(20)
  private static let betweenLooks = Duration.milliseconds(200)

  /// `hear` is told what the channel tells once the adapter is ready; `failed`, once, why it is not, or what broke the channel later.
  init(
    _ flow: AdapterFlow, bonds keeper: BondKeeper?, on poller: Poller,
    making make: @escaping ManagementSocket.Making = { ManagementSocket.make(on: $0, $1) },
    hear: @escaping (ManagementEvent) -> Void,
    failed: @escaping (OpenFailure) -> Void
  ) {
    self.flow = flow
    self.keeper = keeper
    self.poller = poller
    self.make = make
    self.hear = hear
    self.failed = failed
  }

  /// `ready` is called once, later, unless it fails or is closed before; what it holds is kept until then.
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
    deadline = poller.timers.after(Self.patience) { [self] in
      underWay()
      underWay = {}
      fail(OpenFailure(attempt, SystemError("open", ETIMEDOUT), advice: "\(advice) within \(Self.patience)"))
    }
  }

  private func begin(_ socket: DescriptorParcel) {
    let management = ManagementSocket(socket, on: poller) { [weak self] in self?.handle($0) }
    self.management = management
    poller.timers.cancel(deadline)
    deadline = poller.timers.after(AdapterFlow.patience) { [self] in follow(flow.handleTimeout()) }
    management.start(flow.firstCommand)
  }

  private func handle(_ event: Result<ManagementEvent, SystemError>) {
    switch event {
    case .failure(let error): fail(OpenFailure("use Bluetooth's management channel", error))
    case .success(let event):
      if whenReady != nil { follow(flow.handle(event)) } else { hear(event) }
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

  // What waits to be ready may be all that keeps the one who hears that it failed.
  private func fail(_ failure: OpenFailure) { withExtendedLifetime(takeWhenReady()) { failed(failure) } }

  private func takeWhenReady() -> ((Ready) -> Void)? {
    poller.timers.cancel(deadline)
    let ready = whenReady
    whenReady = nil
    return ready
  }

  func send(_ command: ManagementCommand) { management?.send(command) }

  /// Before a scan begins, and when it is over: see ManagementSocket.
  func hearScans(_ isWanted: Bool) { management?.hearScans(isWanted) }

  /// Hears what has been told already: why a link broke is told before its socket says that it did.
  func readAll() { management?.readAll() }

  /// Nothing is told afterwards.
  func close() {
    whenReady = nil
    poller.timers.cancel(deadline)
    // Let go of first: a command that can't be sent comes back here.
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
  /// As the sockets say it.
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
