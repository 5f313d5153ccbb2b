// Listens to all that is on the air, until it is told to stop: what `baudway scan` and programs that look for a device use. Lives on a lane.

import ByteStreams
import Glibc
import StreamBroker

public final class BluetoothScan {
  public enum Kinds: Sendable {
    /// What the adapter knows of both.
    case all
    case classic, lowEnergy
  }

  public enum News: Sendable {
    /// It has begun, on that adapter.
    case listening(adapter: String)
    /// A device that was not known, or says something new of itself.
    case found(NearbyDevice)
    /// How strong a known one is now.
    case heard(NearbyDevice)
    /// Nothing comes after this. Of an error that says EPERM or EACCES the cause is a right that is missing.
    case failed(OpenFailure)
    /// `stop()` is done: the kernel listens no more for us. Nothing comes after this.
    case stopped
  }

  private let poller: Poller
  private let kinds: Kinds
  private var hear: ((News) -> Void)?
  private let adapterFlow: AdapterFlow
  private var ground: AdapterStep?
  private var discovery: DiscoveryFlow?
  private var devices: [Place: NearbyDevice] = [:]
  private var deadline: Timers.Token?
  private var retry: Timers.Token?

  private struct Place: Hashable {
    let address: BluetoothAddress
    let kind: AddressKind
  }

  /// Anybody can make up addresses; beyond so many, new ones are passed over.
  private static let mostDevices = 2048
  private static let stopPatience = Duration.seconds(2)

  /// `adapter` is "hci0" or an address; nil takes the first that is on, or else switches one on. `hear` is called on the lane of
  /// `poller`; `start()` begins.
  public init(_ kinds: Kinds = .all, adapter: String? = nil, on poller: Poller, _ hear: @escaping (News) -> Void) {
    self.kinds = kinds
    self.poller = poller
    self.hear = hear
    let need: AdapterFlow.Need =
      switch kinds {
      case .all: []
      case .classic: .classic
      case .lowEnergy: .lowEnergy
      }
    adapterFlow = AdapterFlow(adapter, need: need)
  }

  /// Once: looks for the adapter, switches it on if need be, and listens.
  public func start() {
    let ground = AdapterStep(adapterFlow, bonds: nil, on: poller) { [weak self] event in
      self?.follow { $0.handle(event) }
    } failed: { [weak self] in
      self?.fail($0)
    }
    self.ground = ground
    ground.start { [self] in listen(on: $0.adapter) }
  }

  private func listen(on adapter: ManagedAdapter) {
    let discovery = DiscoveryFlow(kinds.kinds(of: adapter), on: adapter.index)
    self.discovery = discovery
    ground?.hearScans(true)
    ground?.send(discovery.firstCommand)
    hear?(.listening(adapter: adapter.name))
  }

  /// No more of it: `.stopped` follows, or `.failed`.
  public func stop() {
    guard discovery != nil else { return end(.stopped) }
    deadline = poller.timers.after(Self.stopPatience) { [self] in end(.stopped) }
    follow { $0.stop() }
  }

  // MARK: - What the kernel says

  private func follow(_ next: (inout DiscoveryFlow) -> DiscoveryFlow.Step) {
    guard var flow = discovery else { return }
    let step = next(&flow)
    discovery = flow
    switch step {
    case .send(let command): ground?.send(command)
    case .retryLater:
      retry = poller.timers.after(.seconds(1)) { [self] in follow { $0.handleRetry() } }
    case .heard(let found, let question):
      if let question { ground?.send(question) }
      note(found)
    case .giveUp(let fault): fail(fault.failure)
    case .stopped: end(.stopped)
    case .wait: break
    }
  }

  private func note(_ found: FoundDevice) {
    let place = Place(address: found.address, kind: found.kind)
    if var device = devices[place] {
      let hasMore = device.take(found)
      devices[place] = device
      hear?(hasMore ? .found(device) : .heard(device))
    } else if devices.count < Self.mostDevices {
      let device = NearbyDevice(found)
      devices[place] = device
      hear?(.found(device))
    }
  }

  // MARK: - The end

  // Dropped without `stop()`, on its lane as all else.
  deinit {
    poller.timers.cancel(deadline)
    poller.timers.cancel(retry)
    ground?.close()
  }

  private func fail(_ failure: OpenFailure) { end(.failed(failure)) }

  private func end(_ news: News) {
    guard let hear else { return }
    self.hear = nil
    poller.timers.cancel(deadline)
    poller.timers.cancel(retry)
    let ground = ground
    self.ground = nil
    ground?.close()
    hear(news)
  }
}

extension BluetoothScan.Kinds {
  fileprivate func kinds(of adapter: ManagedAdapter) -> DiscoveryKinds {
    switch self {
    case .classic: return .classic
    case .lowEnergy: return .lowEnergy
    case .all:
      var kinds: DiscoveryKinds = []
      if adapter.speaksClassic { kinds.insert(.classic) }
      if adapter.hasLE { kinds.insert(.lowEnergy) }
      return kinds
    }
  }
}

extension ScanFlow.Fault {
  fileprivate var failure: OpenFailure {
    switch self {
    case .mayNot:
      OpenFailure(
        "scan", SystemError("bluetooth", EPERM),
        advice: "scanning takes CAP_NET_ADMIN: run it as root, or let bluetoothd do it, as by 'bluetoothctl scan on'")
    case .refused(let status): OpenFailure("scan", nil, advice: "the kernel refused to scan (status \(status))")
    case .isGone: OpenFailure("scan", nil, advice: "the adapter has just gone")
    case .isOff:
      OpenFailure(
        "scan", nil,
        advice: "the adapter was switched off, or one of its two kinds: the next scan switches it on again")
    case .nothingHeard: OpenFailure("scan", nil, advice: advice)
    }
  }
}
