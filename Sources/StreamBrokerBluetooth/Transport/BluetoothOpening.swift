// What all openings over Bluetooth share: the adapter, the connection, answers to pairing, the end. The steps between
// are the transport's. The current step is in `ground`, `connecting` or `underWay`, so that it can be given up at any
// time.

import ByteStreams
import StreamBrokerCore

/// A URL's settings of the link to a device, and what the opener adds.
struct BluetoothLinkSettings: Sendable {
  /// By name or address; nil for any that is on.
  var adapter: String?
  var security: BluetoothTarget.Security?
  var bonds: BondKeeper?
}

extension BluetoothLinkSettings {
  init(_ url: EndpointURL) {
    adapter = url.string("adapter")
    security = BluetoothTarget.Security(named: url.string("security"))
  }
}

/// A target that a socket can connect to.
protocol ConnectTarget: CustomStringConvertible, Sendable {
  /// Makes the socket; may block.
  func prepare() -> Result<DescriptorParcel, OpenFailure>
  /// Calls connect(2). Returns false while it is in progress.
  func connect(_ raw: Int32) throws(SystemError) -> Bool
  func failure(_ fault: ConnectFlow.Fault) -> OpenFailure
}

/// Lives on the lane. A transport's opening starts with `begin` and ends with one of the `finish` methods.
class BluetoothOpening: Opening {
  let poller: Poller
  let link: BluetoothLinkSettings
  let request: OpenRequest
  /// The security of this opening; it may be higher than the URL's.
  let security: BluetoothTarget.Security?
  private let queue: DeviceQueue
  private var done: ((Result<any ByteStream, OpenFailure>) -> Void)?
  /// Cancels the transport's current step.
  var underWay: () -> Void = {}
  private(set) var ground: AdapterStep?
  private(set) var ready: AdapterStep.Ready?
  private var connecting: ConnectStep?
  private(set) var secureFlow: SecureFlow?
  var facts = DeviceFacts()

  init(
    _ link: BluetoothLinkSettings, _ request: OpenRequest, security: BluetoothTarget.Security?, on poller: Poller,
    via queue: DeviceQueue,
    _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) {
    self.link = link
    self.request = request
    self.security = security
    self.poller = poller
    self.queue = queue
    self.done = done
  }

  /// Neither finished nor cancelled.
  final var isUnderWay: Bool { done != nil }

  /// Gets the adapter ready.
  final func begin(
    _ flow: AdapterFlow, making make: @escaping ManagementSocket.Making = { ManagementSocket.make(on: $0, $1) },
    _ then: @escaping (AdapterStep.Ready) -> Void
  ) {
    request.report?(.adapter(link.adapter))
    let ground = AdapterStep(flow, bonds: link.bonds, on: poller, making: make) { [weak self] in
      self?.handle($0)
    } failed: { [weak self] in
      self?.finish(.failure($0))
    }
    self.ground = ground
    ground.start { [self] ready in
      self.ready = ready
      then(ready)
    }
  }

  /// Answers the device's pairing requests from now on.
  final func answerPairing(of device: PairedAddress, on ready: AdapterStep.Ready) {
    secureFlow = SecureFlow(device, on: ready.adapter.index, ready.standing, wanting: security)
  }

  func handle(_ event: ManagementEvent) {
    switch secureFlow?.handle(event) {
    case .send(let command): ground?.send(command)
    case .giveUp(let fault) where isUnderWay: return fail(fault)
    case .giveUp, .wait, nil: break
    }
    connecting?.handle(event)
  }

  /// If the connection to a `late` target is given up, the next opening may continue with its socket.
  final func connect(
    to target: some ConnectTarget, of device: PairedAddress, on ready: AdapterStep.Ready, late: LateTarget?,
    _ then: @escaping (DescriptorParcel) -> Void
  ) {
    request.report?(.connect(target.description))
    let flow = ConnectFlow(device, on: ready.adapter.index, timeout: request.connectTimeout)
    let connecting = ConnectStep(flow, on: poller, via: queue)
    self.connecting = connecting
    connecting.start(target.description, target.prepare, dialling: target.connect, to: late) { [self] result in
      self.connecting = nil
      switch result {
      case .success(let socket): then(socket)
      case .failure(.unmade(let failure)): finish(.failure(failure))
      case .failure(.fault(let fault)): fail(target.failure(fault))
      }
    }
  }

  // MARK: - The end

  /// The link could not be made, or broke.
  final func fail(_ failure: OpenFailure) {
    ground?.readAll()
    finish(.failure(secureFlow?.explained(failure) ?? failure))
  }

  final func fail(_ fault: SecureFlow.Fault) {
    if let flow = secureFlow { finish(.failure(flow.failure(fault))) }
  }

  final func finish(_ result: Result<any ByteStream, OpenFailure>) {
    let done = done
    release()
    done?(result)
  }

  /// With `stay`, which is called before the stream is handed over, the opening handles the device's events until the
  /// stream is closed.
  final func finish(_ stream: any PolledStream, staying stay: (() -> Void)?) {
    if let flow = secureFlow {
      stream.metadata?.refresh =
        RSSIQuery(of: flow.device, on: flow.adapter, for: stream.metadata, on: poller).ask
    }
    guard let stay else { return finish(.success(stream)) }
    let (done, ground) = (done, ground)
    self.ground = nil
    release()
    self.ground = ground
    stream.socket.whenClosed = { [self] in release() }
    stay()
    done?(.success(stream))
  }

  final func cancel() { if isUnderWay { release() } }

  final func release() {
    done = nil
    // Clear the properties first: a command that can't be sent calls this again.
    let (ground, connecting, underWay) = (ground, connecting, underWay)
    (self.ground, self.connecting, self.underWay) = (nil, nil, {})
    released(ground)
    ground?.close()
    connecting?.cancel()
    underWay()
  }

  /// Releases what the transport has in addition. `ground` can still send.
  func released(_ ground: AdapterStep?) {}
}
