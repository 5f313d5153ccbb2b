// From "something of that kind" to "that device": finds a device by the service, name or address that it advertises.
// Uses no socket and no clock.

import ByteStreams
import Glibc

struct ScanFlow: Sendable {
  enum Step: Hashable, Sendable {
    case send(ManagementCommand)
    /// Another program's scan is running, and we get its events, too. Call `handleRetry()` in a second: it may have
    /// ended.
    case retryLater
    /// The device, and the command that stops our scan, if there is one.
    case found(FoundDevice, ManagementCommand?)
    case giveUp(Fault)
    case wait
  }

  enum Fault: Error, Hashable, Sendable {
    /// Scanning takes CAP_NET_ADMIN.
    case mayNot
    case refused(status: UInt8)
    case isGone
    /// The adapter, or the kind of Bluetooth to scan for, was switched off.
    case isOff
    case nothingHeard
  }

  /// Devices advertise at least every few seconds.
  static let timeout = Duration.seconds(8)

  /// Only one value counts: the address if there is one, else the name, else the service.
  struct Wish: Hashable, Sendable {
    var service: BluetoothUUID
    /// With a `*` at its end, the beginning of the name.
    var name: String?
    var address: BluetoothAddress?

    func fits(_ device: FoundDevice) -> Bool {
      guard device.kind != .classic else { return false }
      if let address { return device.device.address == address }
      // Many devices advertise their name and not their services: the name is enough.
      if let name { return device.name.map { Self.name($0, fits: name) } ?? false }
      return device.services.contains(service)
    }

    /// A `*` before the end is an ordinary character.
    private static func name(_ name: String, fits wanted: String) -> Bool {
      wanted.hasSuffix("*") ? name.hasPrefix(wanted.dropLast()) : name == wanted
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

  /// The command that stops our scan; nil if there is none.
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
    case .received(let device, _) where wish.fits(device):
      isOver = true
      return .found(device, ending)
    case .giveUp(let fault):
      isOver = true
      return .giveUp(fault)
    case .received, .stopped, .wait: return .wait
    }
  }
}

extension ScanFlow.Fault {
  /// As the sockets report it.
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
      "scanning needs CAP_NET_ADMIN; name the device and its 'address-type' in the URL, as in ble://FFE0/00:0A:3A:22:68:73?address-type=public"
    case .refused(let status): "the kernel refused to scan (status \(status))"
    case .isGone: "the adapter was just removed"
    case .isOff: "the adapter was switched off, or Low Energy on it; the next attempt switches it on again"
    case .nothingHeard:
      "it was not found within \(ScanFlow.timeout): it is off, out of range, or connected to another host"
    }
  }
}
