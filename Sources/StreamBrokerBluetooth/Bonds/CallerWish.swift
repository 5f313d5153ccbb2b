// What a device wants to know that calls us and is to be paired, as phones are before they connect to an `rfcomm://` listener, and what
// it is answered. Most are not asked for: with nobody to compare a number (NoInputNoOutput) the kernel says yes by itself. A value.

struct CallerWish: Hashable, Sendable {
  enum Kind: Hashable, Sendable {
    /// A yes. Asked where the kernel has a key of the device already.
    case consent
    /// A number would have to be compared, or typed in.
    case number(isCompared: Bool)
    /// The pairing of before Bluetooth 2.1.
    case pin
  }
  let device: PairedAddress
  let kind: Kind

  /// Nil for all that is no question.
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

  /// `place` is where its bond stands, if there is one. Anybody may pair whom we do not know; but in the name of one we know, only
  /// he may come, and he has a key for that.
  func answer(at adapter: UInt16, knownBy place: String?) -> (command: ManagementCommand, refusal: String?) {
    switch kind {
    case .consent:
      guard let place else { return (.confirm(device, adapter), nil) }
      let reason = "it is paired already, and pairs as if it were not: if it has forgotten that, remove \(place)"
      return (.refuse(.refuse, device, adapter), reason)
    case .number(let isCompared):
      let reason = "it asks for a number that somebody compares or types in, which takes an agent of bluetoothd's"
      return (.refuse(isCompared ? .refuse : .refuseNumber, device, adapter), reason)
    case .pin: return (.refuse(.refusePIN, device, adapter), "it asks for a PIN, which takes an agent of bluetoothd's")
    }
  }
}
