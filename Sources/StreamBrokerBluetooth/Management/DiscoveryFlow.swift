// Keeps the kernel's discovery going on an adapter: begins it, begins it again when it ends by itself, listens to another's where there is
// one, and ends what it has begun. Sees no socket and no clock. ScanFlow looks for one device with it, BluetoothScan for all.

struct DiscoveryFlow: Sendable {
  enum Step: Hashable, Sendable {
    case send(ManagementCommand)
    /// Somebody else's discovery is under way, and tells us, too; `handleRetry()` in a second, for it may end.
    case retryLater
    /// With what the kernel is to be asked, if anything.
    case heard(FoundDevice, ManagementCommand?)
    case giveUp(ScanFlow.Fault)
    /// What `stop()` asked for is done.
    case stopped
    case wait
  }

  private enum State: Hashable {
    /// Somebody else's is under way, or nobody's.
    case idle
    /// Asked for, not answered.
    case starting
    case ours
    /// Ended by us, not answered.
    case ending
    case over
  }

  let adapter: UInt16
  let kinds: DiscoveryKinds
  private var state = State.starting
  private var isStopping = false

  /// `firstCommand` is sent next.
  init(_ kinds: DiscoveryKinds, on adapter: UInt16) {
    self.kinds = kinds
    self.adapter = adapter
  }

  var firstCommand: ManagementCommand { .discovery(true, adapter, of: kinds) }

  /// What ends a discovery of ours; nil when there is none.
  var ending: ManagementCommand? { state == .ours ? .discovery(false, adapter, of: kinds) : nil }

  mutating func handleRetry() -> Step {
    guard state == .idle, !isStopping else { return .wait }
    state = .starting
    return .send(firstCommand)
  }

  /// No more of it: what is ours is ended, and `.stopped` said.
  mutating func stop() -> Step {
    guard !isStopping, state != .over else { return .wait }
    isStopping = true
    switch state {
    case .ours: return end()
    case .starting: return .wait  // it can be ended once it has begun
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
    // Whatever the answer: it may have ended by itself a moment before.
    case .answer(ManagementCommand.Code.stopDiscovery.rawValue, _, _) where state == .ending:
      state = .over
      return .stopped
    case .found(let device) where !isStopping:
      return .heard(device, device.wantsNameConfirmed && device.kind == .classic ? .askName(device, adapter) : nil)
    // It ends by itself after some ten seconds.
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
    // Its discovery ends before it is told that it has gone.
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
