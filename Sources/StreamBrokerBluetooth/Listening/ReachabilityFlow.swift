// From "a machine" to "an adapter that others can connect to": which adapters there are, which one is meant, what has
// to be switched on. It has no end: any later change of an adapter starts a new check. Uses no socket and no clock.

struct ReachabilityFlow: Sendable {
  enum Step: Hashable, Sendable {
    case send(ManagementCommand)
    /// Prepare the adapter for pairing, before others can connect. Call `handlePrepared()` afterwards, even if that
    /// failed.
    case prepare(ManagedAdapter)
    case reachable(Reached)
    case waits(Fault)
    /// Call `handleRetry()` after a moment.
    case retryLater
    case wait
  }

  struct Reached: Hashable, Sendable {
    let name: String
    let address: BluetoothAddress
    var remark: Remark?
    /// Devices may pair with it.
    var isBondable = false
    /// Which side answers their pairing requests.
    var pairing = BondKeeper.Standing.Side.nobody
  }

  typealias Fault = AdapterFlow.Fault

  /// Others can connect, but not all that should.
  enum Remark: Hashable, Sendable {
    /// Only paired devices can connect: changing that needs CAP_NET_ADMIN.
    case notConnectable(String)
    case notDiscoverable(String)
    /// The kernel refused to switch one of the two settings.
    case refused(String, ManagementCommand.Code, status: UInt8)
  }

  private enum State: Hashable {
    case listing, asking, preparing, connectable, discoverable, powering, watching
  }

  /// "hci0" or an address; nil: the first that is on, else the first that can be switched on.
  let wanted: String?
  /// The adapter shall be discoverable.
  let isDiscoverable: Bool
  private var state = State.listing
  private var left: [UInt16] = []
  private var adapters: [ManagedAdapter] = []
  private var chosen: ManagedAdapter?
  /// Adapters to try if the chosen one can't be switched on, and why the first one could not.
  private var others: [ManagedAdapter] = []
  private var fault: Fault?
  private var remark: Remark?
  private var pairing = BondKeeper.Standing.Side.nobody
  /// Adapters that were prepared, by index, and have not changed since: the kernel still has the bonds that it got for
  /// them.
  private(set) var prepared: Set<UInt16> = []
  /// An adapter has changed during the check.
  private var isStale = false

  init(_ wanted: String?, isDiscoverable: Bool) {
    self.wanted = wanted
    self.isDiscoverable = isDiscoverable
  }

  /// Starts a new check; at any time. With `hasMissed`, events may have been missed.
  mutating func begin(hasMissed: Bool = false) -> ManagementCommand {
    if hasMissed { prepared = [] }
    (state, left, adapters, chosen, remark, isStale) = (.listing, [], [], nil, nil, false)
    (others, fault) = ([], nil)
    return .list
  }

  mutating func handle(_ event: ManagementEvent) -> Step {
    switch event.content {
    case .adapterAdded, .adapterRemoved: return .send(begin(hasMissed: true))
    case .settings:
      prepared = []
      if state == .watching { return .send(begin()) }
      isStale = true
      return .wait
    case .answer(let code, let status, let content):
      guard let code = ManagementCommand.Code(rawValue: code) else { return .wait }
      return handle(code, status, content, of: event.adapter)
    default: return .wait
    }
  }

  private mutating func handle(
    _ code: ManagementCommand.Code, _ status: UInt8, _ content: ArraySlice<UInt8>, of adapter: UInt16
  ) -> Step {
    switch (state, code) {
    case (.listing, .indexList):
      guard status == 0, let indexes = AdapterFlow.indexes(content) else { return rest(.waits(.none)) }
      left = indexes
      state = .asking
      return askNext()
    case (.asking, .information) where adapter == left.first:
      left.removeFirst()
      // An adapter that has just gone does not count.
      if status == 0, let adapter = ManagedAdapter(adapter, content) { adapters.append(adapter) }
      return askNext()
    case (.connectable, .setConnectable) where adapter == chosen?.index,
      (.discoverable, .setDiscoverable) where adapter == chosen?.index,
      (.powering, .setPowered) where adapter == chosen?.index:
      return handleSet(status)
    default: return .wait
    }
  }

  /// Another program was switching the same setting.
  mutating func handleRetry() -> Step { state == .watching ? .wait : .send(begin()) }

  /// `side` answers devices that want to pair.
  mutating func handlePrepared(_ side: BondKeeper.Standing.Side) -> Step {
    guard state == .preparing, let chosen else { return .wait }
    pairing = side
    if side == .ours, !isStale { prepared.insert(chosen.index) }
    return goOn(from: .connectable, chosen)
  }

  private mutating func askNext() -> Step {
    if let next = left.first { return .send(.ask(next)) }
    if let wanted {
      let address = BluetoothAddress(wanted)
      chosen = adapters.first { $0.name == wanted || $0.address == address }
      guard chosen != nil || adapters.isEmpty else {
        return rest(.waits(.noSuch(wanted, others: adapters)))
      }
    } else {
      let fit = adapters.filter(\.speaksClassic)
      chosen = fit.first(where: \.isOn) ?? fit.first ?? adapters.first
      others = fit.filter { $0 != chosen }
    }
    guard let chosen else { return rest(.waits(.none)) }
    guard chosen.speaksClassic else { return rest(.waits(.noClassic(chosen.name))) }
    return goOn(from: .preparing, chosen)
  }

  /// Switches on what is still missing, one after the other. Power comes last, so that the adapter starts with its
  /// settings.
  private mutating func goOn(from step: State, _ chosen: ManagedAdapter) -> Step {
    state = step
    switch step {
    case .preparing: return .prepare(chosen)
    case .connectable:
      if !chosen.does.contains(.connectable) { return .send(.turnOn(.setConnectable, of: chosen.index)) }
      return goOn(from: .discoverable, chosen)
    case .discoverable:
      // An adapter that can't be made connectable can't be made discoverable either.
      if isDiscoverable, !chosen.does.contains(.discoverable), remark == nil { return .send(.showAlways(chosen.index)) }
      return goOn(from: .powering, chosen)
    case .powering where !chosen.isOn: return .send(.turnOn(.setPowered, of: chosen.index))
    default:
      return rest(
        .reachable(
          Reached(
            name: chosen.name, address: chosen.address, remark: remark, isBondable: chosen.does.contains(.bondable),
            pairing: pairing)))
    }
  }

  private mutating func handleSet(_ status: UInt8) -> Step {
    guard let chosen else { return .wait }
    if status == ManagementStatus.busy { return .retryLater }
    let name = chosen.name
    switch (state, status) {
    case (.connectable, ManagementStatus.success): return goOn(from: .discoverable, chosen)
    case (.discoverable, ManagementStatus.success): return goOn(from: .powering, chosen)
    case (_, ManagementStatus.success): return goOn(from: .watching, chosen)
    case (_, ManagementStatus.invalidIndex): return giveUp(.isGone(name))
    case (.connectable, _):
      let mayNot = status == ManagementStatus.permissionDenied
      remark = mayNot ? .notConnectable(name) : .refused(name, .setConnectable, status: status)
      return goOn(from: .discoverable, chosen)
    case (.discoverable, _):
      let mayNot = status == ManagementStatus.permissionDenied
      remark = mayNot ? .notDiscoverable(name) : .refused(name, .setDiscoverable, status: status)
      return goOn(from: .powering, chosen)
    case (_, ManagementStatus.permissionDenied): return giveUp(.mayNot(name, isOff: true))
    // Kernels return `failed` for an adapter that rfkill blocks.
    case (_, ManagementStatus.blocked), (_, ManagementStatus.failed): return giveUp(.isBlocked(name))
    default: return giveUp(.refused(name, status: status))
    }
  }

  /// The chosen adapter can't be used: tries the next one, or else reports what was wrong with the first.
  private mutating func giveUp(_ fault: Fault) -> Step {
    self.fault = self.fault ?? fault
    guard !others.isEmpty else { return rest(.waits(self.fault ?? fault)) }
    let next = others.removeFirst()
    (chosen, remark) = (next, nil)
    return goOn(from: .preparing, next)
  }

  private mutating func rest(_ step: Step) -> Step {
    if isStale { return .send(begin()) }
    state = .watching
    return step
  }
}

extension ReachabilityFlow.Reached {
  /// Why devices that must pair for an offer can't connect; nil if they can.
  func pairingLimit(of offer: RFCOMMOffer) -> String? {
    guard offer.asksToPair else { return nil }
    switch pairing {
    case .ours where offer.security == .high:
      return "'security=high' needs pairing in which a number is compared. bluetoothd does this, and it does not run "
        + "here: run it with an agent ('bluetoothctl agent on' and 'pairable on'), or use 'security=medium'"
    case .ours: return nil
    case .daemon, .nobody:
      if isBondable { return nil }
      return
        "'security' needs pairing, which is not possible here: it needs CAP_NET_ADMIN, CAP_NET_BIND_SERVICE and a file "
        + "for the bonds, or bluetoothd with an agent ('bluetoothctl agent on' and 'pairable on'); otherwise only paired "
        + "devices can connect"
    }
  }
}

extension ReachabilityFlow.Remark {
  var advice: String {
    switch self {
    case .notConnectable(let name):
      "only paired devices can connect to the adapter \(name); admitting others needs CAP_NET_ADMIN, or 'bluetoothctl "
        + "discoverable on'"
    case .notDiscoverable(let name):
      "the adapter \(name) can't be found by others; making it discoverable needs CAP_NET_ADMIN, or 'bluetoothctl discoverable on'"
    case .refused(let name, let code, let status):
      "the kernel refused to make the adapter \(name) \(code == .setConnectable ? "connectable" : "discoverable") (status \(status))"
    }
  }
}
