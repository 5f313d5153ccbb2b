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
  private var done: ((Result<Ready, OpenFailure>) -> Void)?
  /// What is told once the adapter is ready.
  private let hear: (ManagementEvent) -> Void
  private let broke: (OpenFailure) -> Void
  typealias Making = (Poller, @escaping (Result<DescriptorParcel, OpenFailure>) -> Void) -> any Opening
  private let make: Making

  /// For what is done off the lane, each: the loading of the kernel's module, a disk and another process of ours may hang.
  static let patience = Duration.seconds(20)
  private static let betweenLooks = Duration.milliseconds(200)

  init(
    _ flow: AdapterFlow, bonds keeper: BondKeeper?, on poller: Poller,
    making make: @escaping Making = { ManagementSocket.make(on: $0, $1) },
    hear: @escaping (ManagementEvent) -> Void,
    broke: @escaping (OpenFailure) -> Void
  ) {
    self.flow = flow
    self.keeper = keeper
    self.poller = poller
    self.make = make
    self.hear = hear
    self.broke = broke
  }

  /// `done` is called once, later, unless it is cancelled before.
  func start(_ done: @escaping (Result<Ready, OpenFailure>) -> Void) {
    self.done = done
    setDeadline("open Bluetooth's management channel", "the kernel did not answer")
    let making = make(poller) { [self] result in
      underWay = {}
      switch result {
      case .failure(let failure): finish(.failure(failure))
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
      finish(
        .failure(OpenFailure(attempt, SystemError("open", ETIMEDOUT), advice: "\(advice) within \(Self.patience)")))
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
    case .failure(let error):
      let failure = OpenFailure("use Bluetooth's management channel", error)
      if done != nil { finish(.failure(failure)) } else { broke(failure) }
    case .success(let event):
      if done != nil { follow(flow.handle(event)) } else { hear(event) }
    }
  }

  private func follow(_ step: AdapterFlow.Step) {
    switch step {
    case .send(let command): send(command)
    case .giveUp(let fault):
      finish(.failure(OpenFailure("choose an adapter", fault.cause, advice: fault.advice)))
    case .retryLater:
      let retry = poller.timers.after(Self.betweenLooks) { [self] in follow(flow.handleRetry()) }
      underWay = { [poller] in poller.timers.cancel(retry) }
    case .wait: break
    case .ready(let adapter): prepare(adapter)
    }
  }

  private func prepare(_ adapter: ManagedAdapter) {
    poller.timers.cancel(deadline)
    guard let keeper else { return finish(.success(Ready(adapter: adapter, standing: BondKeeper.Standing()))) }
    setDeadline("load the bonds", "the disk or the kernel did not answer")
    let preparing = keeper.prepare(adapter, on: poller) { [self] standing in
      underWay = {}
      finish(.success(Ready(adapter: adapter, standing: standing)))
    }
    underWay = { preparing.cancel() }
  }

  private func finish(_ result: Result<Ready, OpenFailure>) {
    poller.timers.cancel(deadline)
    let done = done
    self.done = nil
    done?(result)
  }

  func send(_ command: ManagementCommand) { management?.send(command) }

  /// Before a scan begins, and when it is over: see ManagementSocket.
  func hearScans(_ isWanted: Bool) { management?.hearScans(isWanted) }

  /// Hears what has been told already: why a link broke is told before its socket says that it did.
  func readAll() { management?.readAll() }

  /// Nothing is told afterwards.
  func close() {
    done = nil
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
