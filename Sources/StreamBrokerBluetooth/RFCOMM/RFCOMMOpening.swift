// One opening, step by step: the adapter, a look-up of the channel where none was given, the connection itself. Each step is one of
// the calls below, and what is under way is in `giveUp` alone, so that it can be given up at any time.

import ByteStreams
import Glibc
import StreamBroker

final class RFCOMMOpening: Opening {
  private let plan: RFCOMMConnector.Plan
  private let poller: Poller
  private var done: ((Result<any ByteStream, OpenFailure>) -> Void)?
  private var giveUp: () -> Void = {}
  private var ground: AdapterStep?
  private var ready: AdapterStep.Ready?
  private var connecting: ConnectStep?
  private var secureFlow: SecureFlow?

  init(
    _ plan: RFCOMMConnector.Plan, on poller: Poller, _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) {
    self.plan = plan
    self.poller = poller
    self.done = done
  }

  func start() {
    let flow = AdapterFlow(plan.adapter, need: .classic)
    let ground = AdapterStep(flow, bonds: plan.bonds, on: poller) { [weak self] in
      self?.handle($0)
    } broke: { [weak self] in
      self?.finish(.failure($0))
    }
    self.ground = ground
    ground.start { [self] result in
      switch result {
      case .failure(let failure): finish(.failure(failure))
      case .success(let ready):
        self.ready = ready
        let device = PairedAddress(plan.device, .classic)
        plan.bonds?.expect(device)
        secureFlow = SecureFlow(device, on: ready.adapter.index, ready.standing, wanting: plan.security)
        if let channel = plan.channel { connect(to: channel) } else { lookUp(plan.uuid) }
      }
    }
  }

  private func handle(_ event: ManagementEvent) {
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
      giveUp = { conversation.cancel() }
      conversation.start()
    }
  }

  private func connect(to channel: UInt8) {
    giveUp = {}
    reach(.rfcomm(channel: channel)) { [self] socket in
      guard let descriptor = socket.take() else { return }
      finish(.success(BluetoothStream(descriptor, on: poller)))
    }
  }

  private func reach(_ service: BluetoothTarget.Service, _ then: @escaping (DescriptorParcel) -> Void) {
    guard let ready else { return }
    let target = BluetoothTarget(
      device: plan.device, service: service, adapter: ready.adapter.address, security: plan.security)
    let flow = ConnectFlow(
      PairedAddress(plan.device, .classic), on: ready.adapter.index, patience: plan.connectPatience)
    let connecting = ConnectStep(flow, on: poller)
    self.connecting = connecting
    connecting.start(target.description, target.prepare, dialling: target.connect) { [self] result in
      self.connecting = nil
      switch result {
      case .success(let socket): then(socket)
      case .failure(.unmade(let failure)): finish(.failure(failure))
      case .failure(.fault(let fault)): fail(target.failure(fault))
      }
    }
  }

  /// The link could not be made, or broke: pairing may know why.
  private func fail(_ failure: OpenFailure) {
    ground?.readAll()
    guard let flow = secureFlow, let fault = flow.fault(of: failure.cause?.errno) else {
      return finish(.failure(failure))
    }
    finish(.failure(fault.failure(failure.attempt, failure.cause, flow.device)))
  }

  private func fail(_ fault: SecureFlow.Fault) {
    guard let device = secureFlow?.device else { return }
    finish(.failure(fault.failure("secure the link with \(device)", nil, device)))
  }

  private func finish(_ result: Result<any ByteStream, OpenFailure>) {
    let done = done
    cancel()
    done?(result)
  }

  func cancel() {
    done = nil
    let (ground, connecting, giveUp) = (ground, connecting, giveUp)
    (self.ground, self.connecting, self.giveUp) = (nil, nil, {})
    ground?.close()
    connecting?.cancel()
    giveUp()
  }
}
