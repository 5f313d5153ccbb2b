// One opening over Low Energy, step by step: adapter, scan, connection, encryption, look-up. In each step a flow with
// its own time limit decides, and one of the calls below acts.

internal import CBluetooth
import ByteStreams
import Glibc
import StreamBrokerCore
import Synchronization

final class BLEOpening: BluetoothOpening {
  private let plan: BLEConnector.Plan
  private var deadline: Timers.Token?
  private var scanFlow: ScanFlow?
  // MTU of a channel if the kernel does not report one (Bluetooth Core, L2CAP, section 4.22).
  private static let leastMTU = 23
  /// Linux allocates the whole message at once, in parts of the peer's choice: a long one may never fit into its
  /// buffer.
  private static let longestMessage = 2048

  init(
    _ plan: BLEConnector.Plan, _ request: OpenRequest, on poller: Poller,
    _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) {
    self.plan = plan
    let needsEncryption = plan.learned.needsEncryption.withLock { $0 }
    let asked = plan.link.security
    let security = needsEncryption && (asked ?? .low) == .low ? .medium : asked
    super.init(plan.link, request, security: security, on: poller, via: .of("bluetooth"), done)
  }

  func start() {
    begin(AdapterFlow(link.adapter)) { [self] ready in
      if let device = plan.device { connect(to: device) } else { scan(on: ready.adapter) }
    }
  }

  override func handle(_ event: ManagementEvent) {
    super.handle(event)
    guard var flow = scanFlow else { return }
    let step = flow.handle(event)
    scanFlow = flow
    handle(step)
  }

  // MARK: - Scanning

  private func scan(on adapter: ManagedAdapter) {
    request.report?(.scan("\(plan.scan)"))
    let flow = ScanFlow(plan.scan, on: adapter.index)
    scanFlow = flow
    setDeadline(ScanFlow.timeout) { [self] in
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
      // Without the right to scan, assume a public address, as most devices have.
      if let address = plan.scan.address { connect(to: LEAddress(address: address, isRandom: false)) }
    case .giveUp(let fault):
      finish(.failure(OpenFailure("find \(plan.scan)", fault.cause, advice: fault.advice)))
    case .found(let found, let ending):
      if let ending { ground?.send(ending) }
      facts = NearbyDevice(found).facts
      if isUnderWay { connect(to: found.device) }
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
    let target = LETarget(device: device, psm: plan.psm, adapter: ready.adapter.address, security: security)
    let paired = PairedAddress(device)
    link.bonds?.expect(paired)
    answerPairing(of: paired, on: ready)
    connect(to: target, of: paired, on: ready, late: .le(target)) { [self] in connected($0, target) }
  }

  private func connected(_ socket: DescriptorParcel, _ target: LETarget) {
    guard target.psm == nil else { return secure(socket) }
    if (security ?? .low) != .low { reportSecuring() }
    request.report?(.lookUp("service \(plan.gatt.service)"))
    let conversation = GATTExchange(socket, GATTLookUp(plan.gatt), on: poller) { [self] result in
      switch result {
      case .failure(.notEncrypted): failSilently()
      case .failure(let failure): fail(failure.failure(plan.gatt, at: target))
      case .success(let found):
        guard let descriptor = found.socket.take() else { return }
        facts.mtu = found.plan.mtu
        let stream = GATTStream(descriptor, found.plan, on: poller, knowing: facts) { [remark = request.remark] lost in
          remark(
            EndpointRemark(
              "\(lost) notifications were lost: the device sends them faster than they are read", isWarning: true))
        }
        stream.writeFailed = { [self] in handle(of: $0) }
        stream.askIdentity()
        finish(stream)
      }
    }
    underWay = { conversation.cancel() }
    conversation.start(awaiting: security)
  }

  private func handle(of fault: GATTStream.WriteFault) {
    switch fault {
    case .refused(let error) where error.wantsEncryption && (security ?? .low) == .low: refusedInClear()
    case .refused, .unconfirmed: request.remark(EndpointRemark(fault.description, isWarning: true))
    }
  }

  private func refusedInClear() {
    plan.learned.needsEncryption.withLock { $0 = true }
    request.remark(
      EndpointRemark(
        "the device accepts writes only over an encrypted link, and the first bytes were lost: it is paired from now on; "
          + "add security=medium to the URL", isWarning: true))
  }

  /// A channel that must be encrypted carries no bytes before it is.
  private func secure(_ socket: DescriptorParcel) {
    guard let descriptor = socket.take() else { return }
    let raw = descriptor.raw
    let parcel = DescriptorParcel(descriptor)
    let open = { [self] in
      guard let descriptor = parcel.take() else { return }
      let longest = max(Self.leastMTU, Int(bluetooth_send_mtu(raw)))
      facts.mtu = longest
      let message = min(longest, Self.longestMessage)
      finish(BluetoothStream(descriptor, longestMessage: message, isLE: true, on: poller, knowing: facts))
    }
    guard let security, security != .low else { return open() }
    reportSecuring()
    setDeadline(SecureFlow.timeout) { [self] in failSilently() }
    let encryption = EncryptionWatch(of: raw, security, on: poller, then: open)
    underWay = {
      encryption.cancel()
      _ = parcel.take()
    }
  }

  private func reportSecuring() { if let flow = secureFlow { request.report?(.secure("\(flow.device.address)")) } }

  // MARK: - The end

  private func setDeadline(_ time: Duration, _ over: @escaping () -> Void) {
    poller.timers.cancel(deadline)
    deadline = poller.timers.after(time, over)
  }

  private func failSilently() {
    if let flow = secureFlow { fail(flow.faultOfSilence()) }
  }

  /// A device may ask to pair during the whole link, so the opening answers until the stream closes. If bluetoothd
  /// runs, it answers instead.
  private func finish(_ stream: any PolledStream) {
    finish(stream, staying: secureFlow?.leavesAnswersToOthers == true ? nil : {})
  }

  override func released(_ ground: AdapterStep?) {
    poller.timers.cancel(deadline)
    // The kernel ends our scan when the socket closes. End it explicitly all the same, so that it is over for the next
    // opening.
    let ending = scanFlow?.ending
    scanFlow = nil
    if let ending { ground?.send(ending) }
  }
}

extension GATTStream.WriteFault: CustomStringConvertible {
  var description: String {
    switch self {
    case .refused(let error): "the device refused a write (\(error))"
    case .unconfirmed: "the device did not confirm a write within \(GATTStream.answerPatience)"
    }
  }
}

extension ScanFlow.Wish: CustomStringConvertible {
  var description: String {
    if let address { return "device \(address)" }
    if let name, name.hasSuffix("*") { return "a device whose name begins with '\(name.dropLast())'" }
    if let name { return "a device named '\(name)'" }
    return "a device that offers service \(service)"
  }
}
