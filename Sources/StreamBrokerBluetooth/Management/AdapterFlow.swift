// From "a machine" to "an adapter that is on": which adapters there are, which one is meant, and what has to be
// switched on. Uses no socket.

struct AdapterFlow: Sendable {
  enum Step: Hashable, Sendable {
    case send(ManagementCommand)
    case ready(ManagedAdapter)
    case giveUp(Fault)
    /// Call `handleRetry()` after a moment.
    case retryLater
    case wait
  }

  enum Fault: Error, Hashable, Sendable {
    case none
    case noSuch(String, others: [ManagedAdapter])
    case noLE(String)
    case noClassic(String)
    /// Switching it on, or its LE, needs CAP_NET_ADMIN.
    case mayNot(String, isOff: Bool)
    case isBlocked(String)
    case refused(String, status: UInt8)
    case isGone(String)
    /// Another program is switching it, and does not finish.
    case isBusy(String)
    /// The kernel did not answer.
    case silent
  }

  /// Switching on takes some tenths of a second.
  static let timeout = Duration.seconds(5)

  private enum State: Hashable {
    case listing, asking, enabling, powering, over
  }

  /// What an adapter must support.
  struct Need: OptionSet, Hashable, Sendable {
    let rawValue: UInt8
    /// It must speak Low Energy.
    static let lowEnergy = Need(rawValue: 1)
    /// It must speak Classic (BR/EDR).
    static let classic = Need(rawValue: 2)
  }

  /// "hci0" or an address; nil: the first that is on, else the first that can be switched on.
  let wanted: String?
  let need: Need
  private var state = State.listing
  private var left: [UInt16] = []
  private var adapters: [ManagedAdapter] = []
  private var chosen: ManagedAdapter?
  private var isBusy = false

  /// If `need` is empty, Low Energy is switched on where the adapter has it.
  init(_ wanted: String?, need: Need = .lowEnergy) {
    self.wanted = wanted
    self.need = need
  }

  /// The command to send first.
  var firstCommand: ManagementCommand { .list }

  mutating func handle(_ event: ManagementEvent) -> Step {
    guard case .answer(let code, let status, let content) = event.content else {
      if event.content == .adapterRemoved, let chosen, chosen.index == event.adapter, state != .over {
        return giveUp(.isGone(chosen.name))
      }
      return .wait
    }
    switch (state, ManagementCommand.Code(rawValue: code)) {
    case (.listing, .indexList):
      guard status == 0, let indexes = Self.indexes(content) else { return giveUp(.none) }
      left = indexes
      state = .asking
      return askNext()
    case (.asking, .information) where event.adapter == left.first:
      left.removeFirst()
      // An adapter that has just gone does not count.
      if status == 0, let adapter = ManagedAdapter(event.adapter, content) { adapters.append(adapter) }
      return askNext()
    case (.enabling, .setLE) where event.adapter == chosen?.index,
      (.powering, .setPowered) where event.adapter == chosen?.index:
      // Something else, such as another route, is switching it.
      isBusy = status == ManagementStatus.busy
      if isBusy { return .retryLater }
      guard status == ManagementStatus.success else { return giveUp(fault(status)) }
      return switchOn()
    default: return .wait
    }
  }

  mutating func handleTimeout() -> Step {
    guard state != .over else { return .wait }
    return giveUp(chosen.flatMap { isBusy ? .isBusy($0.name) : nil } ?? .silent)
  }

  /// Asks for the adapter's state again.
  mutating func handleRetry() -> Step {
    guard let chosen, state == .enabling || state == .powering else { return .wait }
    (state, left, adapters) = (.asking, [chosen.index], [])
    return .send(.ask(chosen.index))
  }

  static func indexes(_ content: ArraySlice<UInt8>) -> [UInt16]? {
    guard content.count >= 2, content.count == 2 + 2 * Int(LittleEndian.word(content)) else { return nil }
    return stride(from: content.startIndex + 2, to: content.endIndex, by: 2).map { LittleEndian.word(content[$0...]) }
      .sorted()
  }

  private mutating func askNext() -> Step {
    if let next = left.first { return .send(.ask(next)) }
    guard !adapters.isEmpty else { return giveUp(chosen.map { .isGone($0.name) } ?? .none) }
    if let wanted {
      let address = BluetoothAddress(wanted)
      chosen = adapters.first { $0.name == wanted || $0.address == address }
      guard chosen != nil else { return giveUp(.noSuch(wanted, others: adapters)) }
    } else {
      let fitting = adapters.filter { fits($0) }
      chosen = fitting.first(where: \.isOn) ?? fitting.first ?? adapters[0]
    }
    return switchOn()
  }

  private func fits(_ adapter: ManagedAdapter) -> Bool {
    (adapter.hasLE || !need.contains(.lowEnergy)) && (adapter.speaksClassic || !need.contains(.classic))
  }

  /// Switches on what is still missing, one after the other: LE first, so that the adapter starts with it.
  private mutating func switchOn() -> Step {
    guard let chosen else { return giveUp(.none) }
    guard chosen.hasLE || !need.contains(.lowEnergy) else { return giveUp(.noLE(chosen.name)) }
    guard chosen.speaksClassic || !need.contains(.classic) else { return giveUp(.noClassic(chosen.name)) }
    if state == .asking, chosen.hasLE, !chosen.speaksLE, need != .classic {
      state = .enabling
      return .send(.turnOn(.setLE, of: chosen.index))
    }
    if state != .powering, !chosen.isOn {
      state = .powering
      return .send(.turnOn(.setPowered, of: chosen.index))
    }
    state = .over
    return .ready(chosen)
  }

  private func fault(_ status: UInt8) -> Fault {
    let name = chosen?.name ?? ""
    switch status {
    case ManagementStatus.permissionDenied: return .mayNot(name, isOff: chosen?.isOn == false)
    case ManagementStatus.blocked: return .isBlocked(name)
    // Kernels return this for an adapter that rfkill blocks.
    case ManagementStatus.failed where state == .powering: return .isBlocked(name)
    case ManagementStatus.invalidIndex: return .isGone(name)
    default: return .refused(name, status: status)
    }
  }

  private mutating func giveUp(_ fault: Fault) -> Step {
    state = .over
    return .giveUp(fault)
  }
}

extension AdapterFlow.Fault {
  /// For listeners, which wait until an adapter is there.
  var adviceWhileWaiting: String {
    switch self {
    case .none, .isGone: "\(advice); waiting for it"
    default: advice
    }
  }

  /// What is wrong, and what to do. Only the opener knows whether it waits for the adapter.
  var advice: String {
    switch self {
    case .none: "this machine has no Bluetooth adapter"
    case .noSuch(let wanted, let others):
      "there is no adapter \(wanted), only \(others.map(\.description).joined(separator: ", "))"
    case .noLE(let name): "the adapter \(name) does not support Bluetooth Low Energy"
    case .noClassic(let name): "the adapter \(name) supports only Bluetooth Low Energy"
    case .silent: "the kernel did not answer within \(AdapterFlow.timeout)"
    case .isBusy(let name):
      "the adapter \(name) has been switched on or off by another program for \(AdapterFlow.timeout)"
    case .mayNot(let name, let isOff):
      (isOff ? "the adapter \(name) is off" : "the adapter \(name) has Low Energy switched off")
        + ", and switching it on needs CAP_NET_ADMIN; or let bluetoothd do it, by 'bluetoothctl power on'"
    case .isBlocked(let name): "the adapter \(name) does not switch on; 'rfkill list' shows whether it is blocked"
    case .refused(let name, let status): "the kernel refused to switch on the adapter \(name) (status \(status))"
    case .isGone(let name): "the adapter \(name) was just removed"
    }
  }
}
