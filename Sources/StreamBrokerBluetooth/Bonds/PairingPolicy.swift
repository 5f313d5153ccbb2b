// How to answer a device that connects to us and wants to pair, as phones do before they connect to an `rfcomm://`
// listener. Most pairings ask nothing: with NoInputNoOutput nobody compares a number, and the kernel accepts by itself.
// A value.

struct PairingPolicy: Hashable, Sendable {
  enum Kind: Hashable, Sendable {
    /// A yes or no. Asked if the kernel has a key of the device already.
    case consent
    /// A number to compare or to type in.
    case number(isCompared: Bool)
    /// The pairing before Bluetooth 2.1.
    case pin
  }
  let device: PairedAddress
  let kind: Kind

  /// Nil for events that ask nothing.
  init?(_ content: ManagementEvent.Content) {
    switch content {
    case .asksToPair(let device, let justWorks):
      self.device = device
      kind = justWorks ? .consent : .number(isCompared: true)
    case .pairing(.asksForNumber(let device)): (self.device, kind) = (device, .number(isCompared: false))
    case .pairing(.asksForPIN(let device)): (self.device, kind) = (device, .pin)
    default: return nil
    }
  }

  /// `path` is the place of the device's bond, if there is one. An unknown device may pair. A known one has a key and
  /// need not pair again, so a request in its name may come from another device: it is refused.
  func answer(at adapter: UInt16, knownBy path: String?) -> (command: ManagementCommand, refusal: String?) {
    switch kind {
    case .consent:
      guard let path else { return (.confirm(device, adapter), nil) }
      let reason = "it is already paired, but asks to pair again: if it has lost its bond, remove \(path)"
      return (.refuse(.refuse, device, adapter), reason)
    case .number(let isCompared):
      let reason = "it asks for a number to compare or enter, which needs an agent of bluetoothd"
      return (.refuse(isCompared ? .refuse : .refuseNumber, device, adapter), reason)
    case .pin: return (.refuse(.refusePIN, device, adapter), "it asks for a PIN, which needs an agent of bluetoothd")
    }
  }
}
