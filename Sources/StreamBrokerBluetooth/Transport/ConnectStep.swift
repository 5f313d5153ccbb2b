// The step of connecting: makes a socket off the lane, and connects it within the flow's time.

import ByteStreams
import Glibc
import StreamBrokerCore

/// Lives on the lane; its pending calls keep it until it is over.
final class ConnectStep {
  enum Failure: Error {
    /// No socket could be made.
    case unmade(OpenFailure)
    case fault(ConnectFlow.Fault)
  }

  private let poller: Poller
  private var flow: ConnectFlow
  private var underWay: () -> Void = {}
  private var deadline: Timers.Token?
  private var socket: DescriptorParcel?
  /// Begins anew, with another socket.
  private var again: () -> Void = {}
  private var busyUntil: UInt64 = 0
  private var resetsLeft = ConnectStep.mostResets
  private var done: ((Result<DescriptorParcel, Failure>) -> Void)?

  // Makes the sockets. One for all: only loading the kernel's module can hang, and then it hangs for all.
  private let queue: DeviceQueue
  private static let mostAttempts = 1024
  /// A channel stays busy after close(2) until the device has answered, and while a stream that is being closed still
  /// delivers. So a program that closes and opens again would be told that another one has the channel.
  static let busyPatience = Duration.seconds(2)
  static let betweenTries = Duration.milliseconds(30)
  /// With the last RFCOMM channel the kernel ends the whole session, and a channel that begins meanwhile is reset.
  static let mostResets = 3

  init(_ flow: ConnectFlow, on poller: Poller, via queue: DeviceQueue = .of("bluetooth")) {
    self.flow = flow
    self.queue = queue
    self.poller = poller
  }

  /// `prepare` makes a socket and may block, `dial` is connect(2). `done` is called once, unless the step is cancelled
  /// before. If the connection to a `target` is given up, its socket goes on connecting for a while. The next opening
  /// of the target continues with the socket, or closes it.
  func start(
    _ what: String, _ prepare: @escaping @Sendable () -> Result<DescriptorParcel, OpenFailure>,
    dialling dial: @escaping (Int32) throws(SystemError) -> Bool, to target: LateTarget? = nil,
    _ done: @escaping (Result<DescriptorParcel, Failure>) -> Void
  ) {
    self.done = done
    busyUntil = poller.timers.now &+ min(Self.busyPatience, flow.timeout).nanoseconds
    again = { [self] in make(what, prepare, dialling: dial, to: target) }
    if let late = target.flatMap({ AbandonedConnects.take($0, now: poller.timers.now, timeout: flow.timeout) }) {
      return connect(late.socket, to: target, since: late.since) { _ in false }
    }
    again()
  }

  private func make(
    _ what: String, _ prepare: @escaping @Sendable () -> Result<DescriptorParcel, OpenFailure>,
    dialling dial: @escaping (Int32) throws(SystemError) -> Bool, to target: LateTarget?
  ) {
    deadline = poller.timers.after(AdapterStep.timeout) { [self] in
      let advice = "the kernel did not answer within \(AdapterStep.timeout)"
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
    // The queue may have refused it at once.
    if done != nil { underWay = { making.cancel() } }
  }

  private func connect(
    _ parcel: DescriptorParcel, to target: LateTarget?, since: UInt64,
    _ dial: @escaping (Int32) throws(SystemError) -> Bool
  ) {
    let connecting = BluetoothConnect(parcel, on: poller, dialling: dial)
    underWay = { [self] in
      guard let socket = connecting.cancel(), let target else { return }
      // If the device is linked, this may be a pairing, which nobody answers now: close the socket. Else keep it:
      // closing would leave the device with a channel that is still being set up.
      if flow.isLinked && target.isToBeSecured { return }
      AbandonedConnects.keep(socket, for: target, since: since, on: poller)
    }
    wait(flow.timeout)
    connecting.start { [self] result in
      switch result {
      case .success(let connected):
        socket = connected
        follow(flow.handle(.connected))
      case .failure(let error) where isOfEarlierChannel(error):
        underWay = {}
        poller.timers.cancel(deadline)
        deadline = poller.timers.after(Self.betweenTries, again)
      case .failure(let error): follow(flow.handle(.failed(error)))
      }
    }
  }

  /// Whether the end of an earlier channel may be the reason, rather than the device or another program.
  private func isOfEarlierChannel(_ error: SystemError) -> Bool {
    guard poller.timers.now < busyUntil else { return false }
    switch error.errno {
    case EBUSY: return true
    case ECONNRESET where !flow.isPairing && resetsLeft > 0:
      resetsLeft -= 1
      return true
    default: return false
    }
  }

  func handle(_ event: ManagementEvent) { follow(flow.handle(.management(event))) }

  private func wait(_ time: Duration) {
    poller.timers.cancel(deadline)
    deadline = poller.timers.after(time) { [self] in follow(flow.handle(.timedOut)) }
  }

  private func follow(_ step: ConnectFlow.Step) {
    switch step {
    case .ready: if let socket { finish(.success(socket)) }
    case .giveUp(let fault): finish(.failure(.fault(fault)))
    case .nowPairs: wait(SecureFlow.timeout)
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
    again = {}
    poller.timers.cancel(deadline)
    let underWay = underWay
    self.underWay = {}
    underWay()
    socket = nil
  }
}
