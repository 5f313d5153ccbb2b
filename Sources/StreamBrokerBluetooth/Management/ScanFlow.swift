// From "something of that kind" to "that device": who advertises the service, the name or the address that is wanted. Sees no socket
// and no clock.

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
  }

  /// All that is given must fit; with an address the others are not looked at.
  struct Wish: Hashable, Sendable {
    var service: BluetoothUUID
    var name: String?
    var address: BluetoothAddress?

    func fits(_ device: FoundDevice) -> Bool {
      if let address { return device.device.address == address }
      // Many a device tells its name and not its services: a name is enough.
      if let name { return device.name == name }
      return device.services.contains(service)
    }
  }

  let wish: Wish
  let adapter: UInt16
  private var isOurs = false
  private var isOver = false

  init(_ wish: Wish, on adapter: UInt16) {
    self.wish = wish
    self.adapter = adapter
  }

  var firstCommand: ManagementCommand { .discovery(true, adapter) }

  /// What ends a scan of ours; nil when there is none.
  var ending: ManagementCommand? { isOurs ? .discovery(false, adapter) : nil }

  func handleRetry() -> Step { isOver || isOurs ? .wait : .send(firstCommand) }

  mutating func handle(_ event: ManagementEvent) -> Step {
    guard event.adapter == adapter, !isOver else { return .wait }
    switch event.content {
    case .answer(ManagementCommand.Code.startDiscovery.rawValue, let status, _):
      switch status {
      case ManagementStatus.success: isOurs = true
      case ManagementStatus.busy: return .retryLater
      case ManagementStatus.permissionDenied: return giveUp(.mayNot)
      default: return giveUp(.refused(status: status))
      }
      return .wait
    case .found(let device) where wish.fits(device):
      isOver = true
      return .found(device, ending)
    // A scan ends by itself after some ten seconds.
    case .discovering(false) where isOurs:
      isOurs = false
      return .send(firstCommand)
    case .adapterRemoved: return giveUp(.isGone)
    default: return .wait
    }
  }

  private mutating func giveUp(_ fault: Fault) -> Step {
    isOver = true
    return .giveUp(fault)
  }
}

extension ScanFlow.Fault {
  var advice: String {
    switch self {
    case .mayNot:
      "scanning takes CAP_NET_ADMIN; name the device and its 'address-type' in the URL, as in ble://FFE0/00:0A:3A:22:68:73?address-type=public"
    case .refused(let status): "the kernel refused to scan (status \(status))"
    case .isGone: "the adapter has just gone; it is waited for"
    }
  }
}
