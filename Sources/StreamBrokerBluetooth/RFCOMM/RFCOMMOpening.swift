// One opening, step by step: the adapter, a look-up of the channel where none was given, the connection itself. Each step is one of
// the calls below; what is under way is in `ground`, `connecting` or `underWay`, so that it can be given up at any time.

import ByteStreams
import Glibc
import StreamBroker

final class RFCOMMOpening: Opening {
  private let plan: RFCOMMConnector.Plan
  private let poller: Poller
  private let queue: DeviceQueue
  private let make: ManagementSocket.Making
  private var done: ((Result<any ByteStream, OpenFailure>) -> Void)?
  private var underWay: () -> Void = {}
  /// Tells the keeper of bonds that we answer the device no more.
  private var leave: () -> Void = {}
  private var ground: AdapterStep?
  private var ready: AdapterStep.Ready?
  private var connecting: ConnectStep?
  private var secureFlow: SecureFlow?
  // The kernel asks a new link for its name beside the connecting, and may have it a little later.
  private var isNamed = false
  private var facts = DeviceFacts()
  private weak var stream: BluetoothStream?
  private var nameDeadline: Timers.Token?
  private static let namePatience = Duration.seconds(10)

  init(
    _ plan: RFCOMMConnector.Plan, on poller: Poller, via queue: DeviceQueue = .of("bluetooth"),
    making make: @escaping ManagementSocket.Making = { ManagementSocket.make(on: $0, $1) },
    _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) {
    self.plan = plan
    self.poller = poller
    self.queue = queue
    self.make = make
    self.done = done
  }

  func start() {
    let flow = AdapterFlow(plan.adapter, need: .classic)
    let ground = AdapterStep(flow, bonds: plan.bonds, on: poller, making: make) { [weak self] in
      self?.handle($0)
    } failed: { [weak self] in
      self?.finish(.failure($0))
    }
    self.ground = ground
    ground.start { [self] ready in
      self.ready = ready
      let device = PairedAddress(plan.device, .classic)
      let adapter = ready.adapter.index
      plan.bonds?.enter(device, at: adapter)
      leave = { [plan] in plan.bonds?.leave(device, at: adapter) }
      secureFlow = SecureFlow(device, on: adapter, ready.standing, wanting: plan.security)
      if let channel = plan.channel { connect(to: channel) } else { lookUp(plan.uuid) }
    }
  }

  private func handle(_ event: ManagementEvent) {
    if case .pairing(.linked(let device, let name)) = event.content, let flow = secureFlow,
      device == flow.device, event.adapter == flow.adapter
    {
      isNamed = true
      facts.name = name.flatMap { DeviceFacts.text($0.utf8) }
      if let stream {
        stream.metadata?.update { $0.add(facts) }
        return release()
      }
    }
    guard done != nil else { return }
    switch secureFlow?.handle(event) {
    case .send(let command): ground?.send(command)
    case .giveUp(let fault): return fail(fault)
    case .wait, nil: break
    }
    connecting?.hear(event)
  }

  private func lookUp(_ uuid: BluetoothUUID) {
    reach(.sdp) { [self] socket in
      let conversation = SDPConversation(socket, ChannelLookUp(uuid), on: poller) { [self] answer in
        switch answer {
        case .success(let channel): connect(to: channel)
        case .failure(let fault): fail(fault.failure(uuid, at: plan.device))
        }
      }
      underWay = { conversation.cancel() }
      conversation.start()
    }
  }

  private func connect(to channel: UInt8) {
    underWay = {}
    reach(.rfcomm(channel: channel)) { [self] socket in
      ground?.readAll()
      guard done != nil, let descriptor = socket.take() else { return }
      finish(BluetoothStream(descriptor, on: poller, knowing: facts))
    }
  }

  private func reach(_ service: BluetoothTarget.Service, _ then: @escaping (DescriptorParcel) -> Void) {
    guard let ready else { return }
    let target = BluetoothTarget(
      device: plan.device, service: service, adapter: ready.adapter.address, security: plan.security)
    let flow = ConnectFlow(
      PairedAddress(plan.device, .classic), on: ready.adapter.index, patience: plan.connectPatience)
    let connecting = ConnectStep(flow, on: poller, via: queue)
    self.connecting = connecting
    // One that is to be secured is no use to the next, and would be in his way (EBUSY).
    let late = target.isToBeSecured ? nil : LateTarget.classic(target)
    connecting.start(target.description, target.prepare, dialling: target.connect, to: late) { [self] result in
      self.connecting = nil
      switch result {
      case .success(let socket): then(socket)
      case .failure(.unmade(let failure)): finish(.failure(failure))
      case .failure(.fault(let fault)): fail(target.failure(fault))
      }
    }
  }

  /// The link could not be made, or broke.
  private func fail(_ failure: OpenFailure) {
    ground?.readAll()
    finish(.failure(secureFlow?.explained(failure) ?? failure))
  }

  private func fail(_ fault: SecureFlow.Fault) {
    if let flow = secureFlow { finish(.failure(flow.failure(fault))) }
  }

  private func finish(_ result: Result<any ByteStream, OpenFailure>) {
    let done = done
    release()
    done?(result)
  }

  /// Listens on for the name, where it is to come still.
  private func finish(_ stream: BluetoothStream) {
    if let flow = secureFlow {
      stream.metadata?.refresh =
        SignalInquiry(of: flow.device, on: flow.adapter, for: stream.metadata, on: poller).ask
    }
    guard !isNamed, let ground else { return finish(.success(stream)) }
    let done = done
    self.ground = nil
    release()
    self.ground = ground
    self.stream = stream
    stream.socket.whenClosed = { [self] in release() }
    nameDeadline = poller.timers.after(Self.namePatience) { [weak self] in self?.release() }
    done?(.success(stream))
  }

  func cancel() { if done != nil { release() } }

  private func release() {
    done = nil
    poller.timers.cancel(nameDeadline)
    stream?.socket.whenClosed = nil
    stream = nil
    let (ground, connecting, underWay, leave) = (ground, connecting, underWay, leave)
    (self.ground, self.connecting, self.underWay, self.leave) = (nil, nil, {}, {})
    leave()
    ground?.close()
    connecting?.cancel()
    underWay()
  }
}
