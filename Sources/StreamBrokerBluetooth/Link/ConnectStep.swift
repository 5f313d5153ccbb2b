// The step of connecting: a socket is made, off the lane, and connects within the flow's time.

import ByteStreams
import Glibc
import StreamBroker

/// Lives on the lane; kept by what is under way until it is over.
final class ConnectStep {
  enum Failure: Error {
    /// There was no socket to connect.
    case unmade(OpenFailure)
    case fault(ConnectFlow.Fault)
  }

  private let poller: Poller
  private var flow: ConnectFlow
  private var underWay: () -> Void = {}
  private var deadline: Timers.Token?
  private var socket: DescriptorParcel?
  private var done: ((Result<DescriptorParcel, Failure>) -> Void)?

  // Where sockets are made. One for all: what can hang there is the loading of the kernel's module, and that hangs for all.
  private let queue: DeviceQueue
  private static let mostAttempts = 1024

  init(_ flow: ConnectFlow, on poller: Poller, via queue: DeviceQueue = .of("bluetooth")) {
    self.flow = flow
    self.queue = queue
    self.poller = poller
  }

  /// `prepare` makes a socket and may block, `dial` is connect(2). `done` is called once, unless it is cancelled before. A `target`
  /// that is given up goes on connecting for a while, and who opens it next goes on with that, or ends it.
  func start(
    _ what: String, _ prepare: @escaping @Sendable () -> Result<DescriptorParcel, OpenFailure>,
    dialling dial: @escaping (Int32) throws(SystemError) -> Bool, to target: LateTarget? = nil,
    _ done: @escaping (Result<DescriptorParcel, Failure>) -> Void
  ) {
    self.done = done
    if let late = target.flatMap({ LateSockets.take($0, now: poller.timers.now, patience: flow.patience) }) {
      return connect(late.socket, to: target, since: late.since) { _ in false }
    }
    deadline = poller.timers.after(AdapterStep.patience) { [self] in
      let advice = "the kernel did not answer within \(AdapterStep.patience)"
      finish(
        .failure(.unmade(OpenFailure("make a socket for \(what)", SystemError("socket", ETIMEDOUT), advice: advice))))
    }
    let making = queue.open(what, most: Self.mostAttempts, on: poller, prepare) {
      _ = $0.take()
    } _: { [self] result in
      switch result {
      case .failure(let failure): finish(.failure(.unmade(failure)))
      case .success(let socket): connect(socket, to: target, since: poller.timers.now, dial)
      }
    }
    // It may have been refused at once.
    if self.done != nil { underWay = { making.cancel() } }
  }

  private func connect(
    _ parcel: DescriptorParcel, to target: LateTarget?, since: UInt64,
    _ dial: @escaping (Int32) throws(SystemError) -> Bool
  ) {
    let connecting = BluetoothConnect(parcel, on: poller, dialling: dial)
    underWay = { [self] in
      guard let socket = connecting.cancel(), let target else { return }
      // What goes on behind a link may be pairing, which nobody answers now. Else it is a channel on its way, which the device
      // would keep if we let go of it.
      if flow.isLinked && target.isToBeSecured { return }
      LateSockets.keep(socket, for: target, since: since, on: poller)
    }
    wait(flow.patience)
    connecting.start { [self] result in
      switch result {
      case .success(let connected):
        socket = connected
        follow(flow.handle(.connected))
      case .failure(let error): follow(flow.handle(.failed(error)))
      }
    }
  }

  func hear(_ event: ManagementEvent) { follow(flow.handle(.management(event))) }

  private func wait(_ time: Duration) {
    poller.timers.cancel(deadline)
    deadline = poller.timers.after(time) { [self] in follow(flow.handle(.timedOut)) }
  }

  private func follow(_ step: ConnectFlow.Step) {
    switch step {
    case .ready: if let socket { finish(.success(socket)) }
    case .giveUp(let fault): finish(.failure(.fault(fault)))
    case .nowPairs: wait(SecureFlow.patience)
    case .wait: break
    }
  }

  private func finish(_ result: Result<DescriptorParcel, Failure>) {
    guard let done else { return }
    cancel()
    done(result)
  }

  func cancel() {
    done = nil
    poller.timers.cancel(deadline)
    let underWay = underWay
    self.underWay = {}
    underWay()
    socket = nil
  }
}
