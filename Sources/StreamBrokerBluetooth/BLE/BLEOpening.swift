// One opening, step by step: adapter, scan, connection, encryption, look-up. Each step is a flow that decides and has a time of its own,
// and one of the calls below; what is under way is in `ground`, `connecting` or `underWay`, so that it can be given up at any time.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBroker
import Synchronization

final class BLEOpening: Opening {
  private let plan: BLEConnector.Plan
  private let poller: Poller
  private let hear: @Sendable (EndpointRemark) -> Void
  private let security: BluetoothTarget.Security?
  private var done: ((Result<any ByteStream, OpenFailure>) -> Void)?
  private var underWay: () -> Void = {}
  private var deadline: Timers.Token?
  private var ground: AdapterStep?
  private var ready: AdapterStep.Ready?
  private var scanFlow: ScanFlow?
  // What the scan heard of it.
  private var facts = DeviceFacts()
  private var connecting: ConnectStep?
  private var secureFlow: SecureFlow?
  // Of a channel, should the kernel not say (Bluetooth Core, L2CAP, section 4.22).
  private static let leastMTU = 23

  init(
    _ plan: BLEConnector.Plan, on poller: Poller, hear: @escaping @Sendable (EndpointRemark) -> Void,
    _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) {
    self.plan = plan
    let needsEncryption = plan.learned.needsEncryption.withLock { $0 }
    security = needsEncryption && (plan.security ?? .low) == .low ? .medium : plan.security
    self.poller = poller
    self.hear = hear
    self.done = done
  }

  func start() {
    let ground = AdapterStep(AdapterFlow(plan.adapter), bonds: plan.bonds, on: poller) { [weak self] in
      self?.handle($0)
    } failed: { [weak self] in
      self?.finish(.failure($0))
    }
    self.ground = ground
    ground.start { [self] ready in
      self.ready = ready
      if let device = plan.device { connect(to: device) } else { scan(on: ready.adapter) }
    }
  }

  private func handle(_ event: ManagementEvent) {
    switch secureFlow?.handle(event) {
    case .send(let command): ground?.send(command)
    case .giveUp(let fault) where done != nil: return fail(fault)
    case .giveUp, .wait, nil: break
    }
    connecting?.hear(event)
    guard var flow = scanFlow else { return }
    let step = flow.handle(event)
    scanFlow = flow
    handle(step)
  }

  // MARK: - Scanning

  private func scan(on adapter: ManagedAdapter) {
    let flow = ScanFlow(plan.scan, on: adapter.index)
    scanFlow = flow
    setDeadline(ScanFlow.patience) { [self] in
      if let step = scanFlow?.handleTimeout() { handle(step) }
    }
    ground?.hearScans(true)
    ground?.send(flow.firstCommand)
  }

  private func handle(_ step: ScanFlow.Step) {
    switch step {
    case .send(let command): ground?.send(command)
    case .retryLater:
      let retry = poller.timers.after(.seconds(1)) { [self] in
        if let step = scanFlow?.handleRetry() { handle(step) }
      }
      underWay = { [poller] in poller.timers.cancel(retry) }
    case .giveUp(.mayNot) where plan.scan.address != nil:
      // Who may not scan takes it for what most are.
      if let address = plan.scan.address { connect(to: LEAddress(address: address, isRandom: false)) }
    case .giveUp(let fault):
      finish(.failure(OpenFailure("find \(plan.scan)", fault.cause, advice: fault.advice)))
    case .found(let found, let ending):
      if let ending { ground?.send(ending) }
      facts = NearbyDevice(found).facts
      if done != nil { connect(to: found.device) }
    case .wait: break
    }
  }

  // MARK: - Connecting

  private func connect(to device: LEAddress) {
    poller.timers.cancel(deadline)
    underWay()
    underWay = {}
    scanFlow = nil
    ground?.hearScans(false)
    guard let ready else { return }
    let adapter = ready.adapter
    let target = LETarget(device: device, psm: plan.psm, adapter: adapter.address, security: security)
    let paired = PairedAddress(device)
    plan.bonds?.expect(paired)
    secureFlow = SecureFlow(paired, on: adapter.index, ready.standing, wanting: security)
    let flow = ConnectFlow(paired, on: adapter.index, patience: plan.connectPatience)
    let connecting = ConnectStep(flow, on: poller)
    self.connecting = connecting
    connecting.start(target.description, target.prepare, dialling: target.connect, to: .le(target)) { [self] result in
      self.connecting = nil
      switch result {
      case .success(let socket): connected(socket, target)
      case .failure(.unmade(let failure)): finish(.failure(failure))
      case .failure(.fault(let fault)): fail(target.failure(fault))
      }
    }
  }

  private func connected(_ socket: DescriptorParcel, _ target: LETarget) {
    guard target.psm == nil else { return secure(socket) }
    let conversation = GATTConversation(socket, GATTLookUp(plan.gatt), on: poller) { [self] result in
      switch result {
      case .failure(.notEncrypted): failSilently()
      case .failure(let failure): fail(failure.failure(plan.gatt, at: target))
      case .success(let found):
        guard let descriptor = found.socket.take() else { return }
        facts.mtu = found.plan.mtu
        let stream = GATTStream(descriptor, found.plan, on: poller, knowing: facts) { [hear] lost in
          hear(
            EndpointRemark("\(lost) notifications were lost: they come faster than they are taken", isWarning: true))
        }
        stream.writeFailed = { [self] in hear(of: $0) }
        stream.askIdentity()
        finish(stream)
      }
    }
    underWay = { conversation.cancel() }
    conversation.start(awaiting: security)
  }

  private func hear(of fault: GATTStream.WriteFault) {
    switch fault {
    case .refused(let error) where error.wantsEncryption && (security ?? .low) == .low: refusedInClear()
    case .refused, .unconfirmed: hear(EndpointRemark(fault.description, isWarning: true))
    }
  }

  private func refusedInClear() {
    plan.learned.needsEncryption.withLock { $0 = true }
    hear(
      EndpointRemark(
        "the device takes what is written over an encrypted link only, and the first bytes are lost: from now on it is paired; "
          + "add security=medium to the URL", isWarning: true))
  }

  /// A channel that is to be encrypted carries nothing before it is.
  private func secure(_ socket: DescriptorParcel) {
    guard let descriptor = socket.take() else { return }
    let raw = descriptor.raw
    let parcel = DescriptorParcel(descriptor)
    let open = { [self] in
      guard let descriptor = parcel.take() else { return }
      let longest = max(Self.leastMTU, Int(bluetooth_send_mtu(raw)))
      facts.mtu = longest
      finish(BluetoothStream(descriptor, longestMessage: longest, isLE: true, on: poller, knowing: facts))
    }
    guard let security, security != .low else { return open() }
    setDeadline(SecureFlow.patience) { [self] in failSilently() }
    let encryption = EncryptionWatch(of: raw, security, on: poller, then: open)
    underWay = {
      encryption.cancel()
      _ = parcel.take()
    }
  }

  // MARK: - The end

  private func setDeadline(_ time: Duration, _ over: @escaping () -> Void) {
    poller.timers.cancel(deadline)
    deadline = poller.timers.after(time, over)
  }

  /// The link could not be made, or broke.
  private func fail(_ failure: OpenFailure) {
    ground?.readAll()
    finish(.failure(secureFlow?.explained(failure) ?? failure))
  }

  private func failSilently() {
    if let flow = secureFlow { fail(flow.faultOfSilence()) }
  }

  private func fail(_ fault: SecureFlow.Fault) {
    if let flow = secureFlow { finish(.failure(flow.failure(fault))) }
  }

  private func finish(_ result: Result<any ByteStream, OpenFailure>) {
    let done = done
    release()
    done?(result)
  }

  /// A device may ask to be paired as long as the link lasts: with the stream stays what answers.
  private func finish(_ stream: any PolledStream) {
    if let flow = secureFlow {
      stream.metadata?.refresh =
        SignalInquiry(of: flow.device, on: flow.adapter, for: stream.metadata, on: poller).ask
    }
    let (done, ground) = (done, ground)
    if secureFlow?.leavesAnswersToOthers == true {
      release()
    } else {
      self.ground = nil
      release()
      self.ground = ground
      stream.socket.whenClosed = { [self] in release() }
    }
    done?(.success(stream))
  }

  func cancel() { if done != nil { release() } }

  private func release() {
    done = nil
    poller.timers.cancel(deadline)
    // A scan of ours would end with the socket; the kernel is told all the same, so that the next one finds it over. All is
    // let go of first: a command that can't be sent comes back here.
    let (ending, ground, connecting, underWay) = (scanFlow?.ending, ground, connecting, underWay)
    (scanFlow, self.ground, self.connecting, self.underWay) = (nil, nil, nil, {})
    if let ending { ground?.send(ending) }
    ground?.close()
    connecting?.cancel()
    underWay()
  }
}

extension GATTStream.WriteFault: CustomStringConvertible {
  var description: String {
    switch self {
    case .refused(let error): "the device refused what was written (\(error))"
    case .unconfirmed: "the device did not confirm what was written within \(GATTStream.answerPatience)"
    }
  }
}

extension ScanFlow.Wish: CustomStringConvertible {
  var description: String {
    if let address { return "device \(address)" }
    if let name { return "a device named '\(name)'" }
    return "a device that offers service \(service)"
  }
}
