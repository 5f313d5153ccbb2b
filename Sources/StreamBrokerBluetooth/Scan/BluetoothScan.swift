// Scans for all devices in range until it is stopped. Used by `baudway scan`, and by the async sequence for programs
// (NearbyDevices.swift). Lives on a lane.

import ByteStreams
import Glibc
import StreamBrokerCore

/// A scan on a lane. `NearbyDevice.scan` is its form for any task.
public final class BluetoothScan {
  /// Which devices to find.
  public enum Kinds: Sendable {
    /// Both, as far as the adapter supports them.
    case all
    /// Classic (BR/EDR) only.
    case classic
    /// Low Energy only.
    case lowEnergy
  }

  package enum News: Sendable {
    /// The scan has begun, on that adapter.
    case listening(adapter: String)
    /// A new device, or a known one with new data.
    case found(NearbyDevice)
    /// A known device, with its current signal strength.
    case received(NearbyDevice)
    /// Nothing comes after this. With EPERM or EACCES a privilege is missing.
    case failed(OpenFailure)
    /// `stop()` is done: the kernel no longer scans for us. Nothing comes after this.
    case stopped
  }

  private let poller: Poller
  private let make: ManagementSocket.Making
  private let kinds: Kinds
  private var handle: ((News) -> Void)?
  private let adapterFlow: AdapterFlow
  private var ground: AdapterStep?
  private var discovery: DiscoveryFlow?
  private var devices: [Identity: NearbyDevice] = [:]
  private var deadline: Timers.Token?
  private var retry: Timers.Token?

  private struct Identity: Hashable {
    let address: BluetoothAddress
    let kind: AddressKind
  }

  /// Anybody can make up addresses: beyond this number, new ones are ignored.
  private static let mostDevices = 2048
  private static let stopPatience = Duration.seconds(2)

  /// `adapter` is "hci0" or an address; nil: the first that is on, else one is switched on. `handle` is called on the
  /// lane of `poller`. Nothing happens before `start()`.
  package convenience init(
    _ kinds: Kinds = .all, adapter: String? = nil, on poller: Poller, _ handle: @escaping (News) -> Void
  ) {
    self.init(kinds, adapter: adapter, on: poller, making: { ManagementSocket.make(on: $0, $1) }, handle)
  }

  init(
    _ kinds: Kinds, adapter: String?, on poller: Poller, making make: @escaping ManagementSocket.Making,
    _ handle: @escaping (News) -> Void
  ) {
    self.make = make
    self.kinds = kinds
    self.poller = poller
    self.handle = handle
    let need: AdapterFlow.Need =
      switch kinds {
      case .all: []
      case .classic: .classic
      case .lowEnergy: .lowEnergy
      }
    adapterFlow = AdapterFlow(adapter, need: need)
  }

  /// Call it once: finds the adapter, switches it on if needed, and scans.
  package func start() {
    let ground = AdapterStep(adapterFlow, bonds: nil, on: poller, making: make) { [weak self] event in
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
    handle?(.listening(adapter: adapter.name))
  }

  /// Ends the scan: `.stopped` follows, or `.failed`.
  package func stop() {
    guard discovery != nil else { return end(.stopped) }
    deadline = poller.timers.after(Self.stopPatience) { [self] in end(.stopped) }
    follow { $0.stop() }
  }

  // MARK: - Events of the kernel

  private func follow(_ next: (inout DiscoveryFlow) -> DiscoveryFlow.Step) {
    guard var flow = discovery else { return }
    let step = next(&flow)
    discovery = flow
    switch step {
    case .send(let command): ground?.send(command)
    case .retryLater:
      retry = poller.timers.after(.seconds(1)) { [self] in follow { $0.handleRetry() } }
    case .received(let found, let question):
      if let question { ground?.send(question) }
      note(found)
    case .giveUp(let fault): fail(fault.failure)
    case .stopped: end(.stopped)
    case .wait: break
    }
  }

  private func note(_ found: FoundDevice) {
    let identity = Identity(address: found.address, kind: found.kind)
    if var device = devices[identity] {
      let hasMore = device.take(found)
      devices[identity] = device
      handle?(hasMore ? .found(device) : .received(device))
    } else if devices.count < Self.mostDevices {
      let device = NearbyDevice(found)
      devices[identity] = device
      handle?(.found(device))
    }
  }

  // MARK: - The end

  // Released without `stop()`; on its lane, as all else.
  deinit {
    poller.timers.cancel(deadline)
    poller.timers.cancel(retry)
    ground?.close()
  }

  private func fail(_ failure: OpenFailure) { end(.failed(failure)) }

  private func end(_ news: News) {
    guard let handle else { return }
    self.handle = nil
    poller.timers.cancel(deadline)
    poller.timers.cancel(retry)
    let ground = ground
    self.ground = nil
    ground?.close()
    handle(news)
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
        advice: "scanning needs CAP_NET_ADMIN: run it as root, or let bluetoothd do it, by 'bluetoothctl scan on'")
    case .refused(let status): OpenFailure("scan", nil, advice: "the kernel refused to scan (status \(status))")
    case .isGone: OpenFailure("scan", nil, advice: "the adapter was just removed")
    case .isOff:
      OpenFailure(
        "scan", nil,
        advice: "the adapter was switched off, or one of its two kinds of Bluetooth: the next scan switches it on again"
      )
    case .nothingHeard: OpenFailure("scan", nil, advice: advice)
    }
  }
}
