// From "something of that kind" to "that device": who advertises the service, the name or the address that is wanted. Sees no socket
// and no clock.

import ByteStreams
import Glibc

struct ScanFlow: Sendable {
  enum Step: Hashable, Sendable {
    case send(ManagementCommand)
    /// Somebody else's scan is under way, and tells us, too; `handleRetry()` in a second, for it may end.
    case retryLater
    /// The device, and how to end the scan that we have begun.
    case found(FoundDevice, ManagementCommand?)
    case giveUp(Fault)
    case wait
  }

  enum Fault: Error, Hashable, Sendable {
    /// Scanning takes CAP_NET_ADMIN.
    case mayNot
    case refused(status: UInt8)
    case isGone
    /// The adapter, or the kind of Bluetooth that is sought, was switched off.
    case isOff
    case nothingHeard
  }

  /// Devices advertise every few seconds at the least.
  static let patience = Duration.seconds(8)

  /// All that is given must fit; with an address the others are not looked at.
  struct Wish: Hashable, Sendable {
    var service: BluetoothUUID
    var name: String?
    var address: BluetoothAddress?

    func fits(_ device: FoundDevice) -> Bool {
      guard device.kind != .classic else { return false }
      if let address { return device.device.address == address }
      // Many a device tells its name and not its services: a name is enough.
      if let name { return device.name == name }
      return device.services.contains(service)
    }
  }

  let wish: Wish
  private var discovery: DiscoveryFlow
  private var isOver = false

  init(_ wish: Wish, on adapter: UInt16) {
    self.wish = wish
    discovery = DiscoveryFlow(.lowEnergy, on: adapter)
  }

  var firstCommand: ManagementCommand { discovery.firstCommand }

  /// What ends a scan of ours; nil when there is none.
  var ending: ManagementCommand? { discovery.ending }

  mutating func handleRetry() -> Step { isOver ? .wait : step(discovery.handleRetry()) }

  mutating func handleTimeout() -> Step {
    if isOver { return .wait }
    isOver = true
    return .giveUp(.nothingHeard)
  }

  mutating func handle(_ event: ManagementEvent) -> Step { isOver ? .wait : step(discovery.handle(event)) }

  private mutating func step(_ step: DiscoveryFlow.Step) -> Step {
    switch step {
    case .send(let command): return .send(command)
    case .retryLater: return .retryLater
    case .heard(let device, _) where wish.fits(device):
      isOver = true
      return .found(device, ending)
    case .giveUp(let fault):
      isOver = true
      return .giveUp(fault)
    case .heard, .stopped, .wait: return .wait
    }
  }
}

extension ScanFlow.Fault {
  /// As the sockets say it.
  var cause: SystemError? {
    switch self {
    case .mayNot: SystemError("scan", EPERM)
    case .isGone: SystemError("find", EHOSTUNREACH)
    case .refused, .isOff, .nothingHeard: nil
    }
  }

  var advice: String {
    switch self {
    case .mayNot:
      "scanning takes CAP_NET_ADMIN; name the device and its 'address-type' in the URL, as in ble://FFE0/00:0A:3A:22:68:73?address-type=public"
    case .refused(let status): "the kernel refused to scan (status \(status))"
    case .isGone: "the adapter has just gone"
    case .isOff: "the adapter was switched off, or Low Energy on it; the next attempt switches it on again"
    case .nothingHeard:
      "nothing of that kind was heard within \(ScanFlow.patience): it is off, out of range, or connected to another host"
    }
  }
}
