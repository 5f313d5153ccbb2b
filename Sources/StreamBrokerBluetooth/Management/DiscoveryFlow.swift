// Keeps the kernel's discovery running on an adapter: starts it, restarts it when it ends by itself, shares another
// program's if there is one, and stops its own. Uses no socket and no clock. ScanFlow looks for one device with it,
// BluetoothScan for all.

struct DiscoveryFlow: Sendable {
  enum Step: Hashable, Sendable {
    case send(ManagementCommand)
    /// Another program's discovery is running, and we get its events, too. Call `handleRetry()` in a second: it may
    /// have ended.
    case retryLater
    /// A device, and a command to send to the kernel, if any.
    case received(FoundDevice, ManagementCommand?)
    case giveUp(ScanFlow.Fault)
    /// What `stop()` asked for is done.
    case stopped
    case wait
  }

  private enum State: Hashable {
    /// No discovery of ours; another program's may be running.
    case idle
    /// Started, not answered.
    case starting
    case ours
    /// Stopped by us, not answered.
    case ending
    case over
  }

  let adapter: UInt16
  let kinds: DiscoveryKinds
  private var state = State.starting
  private var isStopping = false

  /// Send `firstCommand` next.
  init(_ kinds: DiscoveryKinds, on adapter: UInt16) {
    self.kinds = kinds
    self.adapter = adapter
  }

  var firstCommand: ManagementCommand { .discovery(true, adapter, of: kinds) }

  /// The command that stops our discovery; nil if there is none.
  var ending: ManagementCommand? { state == .ours ? .discovery(false, adapter, of: kinds) : nil }

  mutating func handleRetry() -> Step {
    guard state == .idle, !isStopping else { return .wait }
    state = .starting
    return .send(firstCommand)
  }

  /// Stops our discovery; `.stopped` follows, now or later.
  mutating func stop() -> Step {
    guard !isStopping, state != .over else { return .wait }
    isStopping = true
    switch state {
    case .ours: return end()
    case .starting: return .wait  // it can be stopped once it has started
    case .idle, .ending, .over:
      state = .over
      return .stopped
    }
  }

  mutating func handle(_ event: ManagementEvent) -> Step {
    guard event.adapter == adapter, state != .over else { return .wait }
    switch event.content {
    case .answer(ManagementCommand.Code.startDiscovery.rawValue, let status, _) where state == .starting:
      return started(status)
    // Whatever the status: it may have ended by itself a moment before.
    case .answer(ManagementCommand.Code.stopDiscovery.rawValue, _, _) where state == .ending:
      state = .over
      return .stopped
    case .found(let device) where !isStopping:
      return .received(device, device.wantsNameConfirmed && device.kind == .classic ? .askName(device, adapter) : nil)
    // The kernel ends it after some ten seconds.
    case .discovering(false) where state == .ours:
      state = .starting
      return .send(firstCommand)
    case .adapterRemoved:
      state = .over
      return isStopping ? .stopped : .giveUp(.isGone)
    default: return .wait
    }
  }

  private mutating func started(_ status: UInt8) -> Step {
    guard status == ManagementStatus.success else {
      state = isStopping ? .over : .idle
      if isStopping { return .stopped }
      if status == ManagementStatus.busy { return .retryLater }
      state = .over
      return .giveUp(Self.fault(status))
    }
    state = .ours
    return isStopping ? end() : .wait
  }

  private static func fault(_ status: UInt8) -> ScanFlow.Fault {
    switch status {
    case ManagementStatus.permissionDenied: .mayNot
    // When an adapter goes, its discovery ends first: our restart fails before the removal event arrives.
    case ManagementStatus.invalidIndex: .isGone
    // Rejected: one of the kinds is off.
    case ManagementStatus.notPowered, ManagementStatus.rejected: .isOff
    default: .refused(status: status)
    }
  }

  private mutating func end() -> Step {
    let command = ManagementCommand.discovery(false, adapter, of: kinds)
    state = .ending
    return .send(command)
  }
}
