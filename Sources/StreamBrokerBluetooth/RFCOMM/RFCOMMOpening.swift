// One opening over RFCOMM, step by step: adapter, look-up of the channel if none is given, connection. Each step is one
// of the calls below.

import ByteStreams
import Glibc
import StreamBrokerCore

final class RFCOMMOpening: BluetoothOpening {
  private let plan: RFCOMMConnector.Plan
  private let make: ManagementSocket.Making
  /// Reports to the bond keeper that we no longer answer the device.
  private var leave: () -> Void = {}
  // The kernel asks a new link for the device's name while it connects, and may get the name a little later.
  private var isNamed = false
  private weak var stream: BluetoothStream?
  private var nameDeadline: Timers.Token?
  private static let namePatience = Duration.seconds(10)

  init(
    _ plan: RFCOMMConnector.Plan, _ request: OpenRequest, on poller: Poller, via queue: DeviceQueue = .of("bluetooth"),
    making make: @escaping ManagementSocket.Making = { ManagementSocket.make(on: $0, $1) },
    _ done: @escaping (Result<any ByteStream, OpenFailure>) -> Void
  ) {
    self.plan = plan
    self.make = make
    super.init(plan.link, request, security: plan.link.security, on: poller, via: queue, done)
  }

  func start() {
    begin(AdapterFlow(link.adapter, need: .classic), making: make) { [self] ready in
      let device = PairedAddress(plan.device, .classic)
      let adapter = ready.adapter.index
      link.bonds?.enter(device, at: adapter)
      leave = { [link] in link.bonds?.leave(device, at: adapter) }
      answerPairing(of: device, on: ready)
      if let channel = plan.channel { connect(to: channel) } else { lookUp(plan.uuid) }
    }
  }

  override func handle(_ event: ManagementEvent) {
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
    if isUnderWay { super.handle(event) }
  }

  private func lookUp(_ uuid: BluetoothUUID) {
    request.report?(.lookUp("service \(uuid)"))
    reach(.sdp) { [self] socket in
      let conversation = SDPExchange(socket, ChannelLookUp(uuid), on: poller) { [self] answer in
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
      guard isUnderWay, let descriptor = socket.take() else { return }
      finish(BluetoothStream(descriptor, on: poller, knowing: facts))
    }
  }

  private func reach(_ service: BluetoothTarget.Service, _ then: @escaping (DescriptorParcel) -> Void) {
    guard let ready else { return }
    let target = BluetoothTarget(
      device: plan.device, service: service, adapter: ready.adapter.address, security: security)
    // A socket that must be encrypted is no use to the next opening, and would block it (EBUSY).
    let late = target.isToBeSecured ? nil : LateTarget.classic(target)
    connect(to: target, of: PairedAddress(plan.device, .classic), on: ready, late: late, then)
  }

  /// Waits for the name after the opening, if it has not come yet.
  private func finish(_ stream: BluetoothStream) {
    guard !isNamed, ground != nil else { return finish(stream, staying: nil) }
    finish(
      stream,
      staying: { [self] in
        self.stream = stream
        nameDeadline = poller.timers.after(Self.namePatience) { [weak self] in self?.release() }
      })
  }

  override func released(_ ground: AdapterStep?) {
    poller.timers.cancel(nameDeadline)
    stream?.socket.whenClosed = nil
    stream = nil
    let leave = leave
    self.leave = {}
    leave()
  }
}
