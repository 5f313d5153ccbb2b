// One opening, step by step: adapter, scan, connection, look-up. Each step is one of the calls below with a patience of its
// own, and what is under way is in `underWay` alone, so that it can be given up at any time.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBroker

final class BLEOpening: Opening {
  private let plan: BLEConnector.Plan
  private let poller: Poller
  private let hear: @Sendable (String) -> Void
  private var done: ((Result<any ByteStream, OpenFailure>) -> Void)?
  private var underWay: () -> Void = {}
  private var deadline: Timers.Token?
  private var management: ManagementSocket?
  private var adapterFlow: AdapterFlow
  private var scanFlow: ScanFlow?
  // What the scan heard of it.
  private var facts = DeviceFacts()
  private var adapter: ManagedAdapter?
  private var target: LETarget?

  private let queue = DeviceQueue.of("bluetooth")  // as for RFCOMM
  private static let mostAttempts = 1024
  /// An adapter comes on in some tenths of a second.
  private static let adapterPatience = Duration.seconds(5)
  /// Devices advertise every few seconds at the least.
  private static let scanPatience = Duration.seconds(8)
  /// The kernel would go on for 40 s.
  private static let connectPatience = Duration.seconds(8)

  init(
    _ plan: BLEConnector.Plan, on poller: Poller, hear: @escaping @Sendable (String) -> Void,
    _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) {
    self.plan = plan
    self.poller = poller
    self.hear = hear
    self.done = done
    adapterFlow = AdapterFlow(plan.adapter)
  }

  func start() {
    make("management channel", ManagementSocket.open) { [self] socket in
      let management = ManagementSocket(socket, on: poller) { [weak self] in self?.handle($0) }
      self.management = management
      underWay = {}
      setDeadline(Self.adapterPatience) { [self] in
        fail("choose an adapter", SystemError("read", ETIMEDOUT), "the kernel does not answer")
      }
      management.start(adapterFlow.firstCommand)
    }
  }

  private func handle(_ event: Result<ManagementEvent, SystemError>) {
    switch event {
    case .failure(let error): fail("use Bluetooth's management channel", error, nil)
    case .success(let event):
      // Our own device may pair as it likes, for the URL asks for it; where bluetoothd runs, its agents answer as well.
      if case .asksToPair(let device, justWorks: true) = event.content, device == target?.device,
        event.adapter == adapter?.index
      {
        management?.send(.confirm(device, event.adapter))
      }
      if adapter == nil {
        handle(adapterFlow.handle(event))
      } else if var flow = scanFlow {
        let step = flow.handle(event)
        scanFlow = flow
        handle(step)
      }
    }
  }

  private func handle(_ step: AdapterFlow.Step) {
    switch step {
    case .send(let command): management?.send(command)
    case .giveUp(let fault): fail("choose an adapter", nil, fault.advice)
    case .retryLater:
      let retry = poller.timers.after(.milliseconds(200)) { [self] in handle(adapterFlow.handleRetry()) }
      underWay = { [poller] in poller.timers.cancel(retry) }
    case .wait: break
    case .ready(let adapter):
      self.adapter = adapter
      if let device = plan.device { connect(to: device) } else { scan(on: adapter) }
    }
  }

  // MARK: - Scanning

  private func scan(on adapter: ManagedAdapter) {
    let flow = ScanFlow(plan.scan, on: adapter.index)
    scanFlow = flow
    setDeadline(Self.scanPatience) { [self] in
      fail(
        "find \(plan.scan)", nil,
        "nothing of that kind was heard within \(Self.scanPatience): it is off, out of range, or connected to another host"
      )
    }
    management?.send(flow.firstCommand)
  }

  private func handle(_ step: ScanFlow.Step) {
    switch step {
    case .send(let command): management?.send(command)
    case .retryLater:
      let retry = poller.timers.after(.seconds(1)) { [self] in
        if let step = scanFlow?.handleRetry() { handle(step) }
      }
      underWay = { [poller] in poller.timers.cancel(retry) }
    case .giveUp(.mayNot) where plan.scan.address != nil:
      // Who may not scan takes it for what most are.
      if let address = plan.scan.address { connect(to: LEAddress(address: address, isRandom: false)) }
    case .giveUp(let fault): fail("find \(plan.scan)", nil, fault.advice)
    case .found(let found, let ending):
      if let ending { management?.send(ending) }
      facts = NearbyDevice(found).facts
      if done != nil { connect(to: found.device) }
    case .wait: break
    }
  }

  // MARK: - Connecting

  private func connect(to device: LEAddress) {
    underWay()
    scanFlow = nil
    guard let adapter else { return }
    let target = LETarget(device: device, psm: plan.psm, adapter: adapter.address, security: plan.security)
    self.target = target
    make(target.description, target.prepare) { [self] socket in
      let connecting = BluetoothConnect(socket, on: poller, dialling: target.connect)
      underWay = { connecting.cancel() }
      setDeadline(Self.connectPatience) { [self] in finish(.failure(target.silence(after: Self.connectPatience))) }
      connecting.start { [self] result in
        poller.timers.cancel(deadline)
        switch result {
        case .failure(let error): finish(.failure(target.failure(error)))
        case .success(let socket): connected(socket, target)
        }
      }
    }
  }

  private func connected(_ socket: DescriptorParcel, _ target: LETarget) {
    guard target.psm == nil else { return secure(socket, target) }
    let conversation = GATTConversation(socket, GATTLookUp(plan.gatt), on: poller) { [self] result in
      switch result {
      case .failure(let failure): finish(.failure(failure.failure(plan.gatt, at: target)))
      case .success(let found):
        guard let descriptor = found.socket.take() else { return }
        facts.mtu = found.plan.mtu
        let stream = GATTStream(descriptor, found.plan, on: poller, knowing: facts) { [hear] lost in
          hear("\(lost) notifications were lost: they come faster than they are taken")
        }
        stream.askIdentity()
        finish(.success(stream))
      }
    }
    underWay = { conversation.cancel() }
    conversation.start(awaiting: plan.security)
  }

  /// A channel that is to be encrypted carries nothing before it is.
  private func secure(_ socket: DescriptorParcel, _ target: LETarget) {
    guard let descriptor = socket.take() else { return }
    let raw = descriptor.raw
    let parcel = DescriptorParcel(descriptor)
    let open = { [self] in
      guard let descriptor = parcel.take() else { return }
      let longest = Int(bluetooth_send_mtu(raw))
      facts.mtu = longest > 0 ? longest : 23
      finish(
        .success(
          BluetoothStream(descriptor, longestMessage: facts.mtu ?? 23, isLE: true, on: poller, knowing: facts)))
    }
    guard let security = plan.security, security != .low else { return open() }
    setDeadline(GATTConversation.pairingPatience) { [self] in
      let failure = GATTConversation.Failure.notEncrypted.failure(plan.gatt, at: target)
      finish(.failure(OpenFailure("connect to \(target)", failure.cause, advice: failure.advice)))
    }
    let encryption = EncryptionWatch(of: raw, security, on: poller, then: open)
    underWay = {
      encryption.cancel()
      _ = parcel.take()
    }
  }

  // MARK: - Steps

  private func make(
    _ what: String, _ attempt: @escaping @Sendable () -> Result<DescriptorParcel, OpenFailure>,
    _ then: @escaping (DescriptorParcel) -> Void
  ) {
    poller.timers.cancel(deadline)
    let making = queue.open(what, most: Self.mostAttempts, on: poller, attempt) {
      _ = $0.take()
    } _: { [self] result in
      switch result {
      case .failure(let failure): finish(.failure(failure))
      case .success(let socket): then(socket)
      }
    }
    underWay = { making.cancel() }
  }

  private func setDeadline(_ time: Duration, _ over: @escaping () -> Void) {
    poller.timers.cancel(deadline)
    deadline = poller.timers.after(time, over)
  }

  private func fail(_ attempt: String, _ cause: SystemError?, _ advice: String?) {
    finish(.failure(OpenFailure(attempt, cause, advice: advice)))
  }

  private func finish(_ result: Result<any ByteStream, OpenFailure>) {
    let done = done
    cancel()
    done?(result)
  }

  func cancel() {
    done = nil
    poller.timers.cancel(deadline)
    // A scan of ours would end with the socket; the kernel is told all the same, so that the next one finds it over. Both are
    // let go of first: a command that can't be sent comes back here.
    let (ending, management) = (scanFlow?.ending, management)
    scanFlow = nil
    self.management = nil
    if let ending { management?.send(ending) }
    management?.close()
    let underWay = underWay
    self.underWay = {}
    underWay()
  }
}

extension ScanFlow.Wish: CustomStringConvertible {
  var description: String {
    if let address { return "device \(address)" }
    if let name { return "a device named '\(name)'" }
    return "a device that offers service \(service)"
  }
}
