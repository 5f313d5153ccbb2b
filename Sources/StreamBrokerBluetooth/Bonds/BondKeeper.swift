// Keeps the bonds with devices in a file and loads them into the kernel, which forgets them with the adapter. One per
// process: the gateway or `connect` makes it and gives it to the connectors. Without one, devices pair anew each time.
// If bluetoothd runs, the keeper does nothing: bluetoothd has its own bonds, and loading replaces the kernel's whole
// list.

import ByteStreams
import Dispatch
import Glibc
import StreamBrokerCore
import Synchronization

/// Keeps the keys of paired devices in a file, and loads them into the kernel. Without one, devices pair anew each
/// time. Where bluetoothd runs, it does nothing: bluetoothd keeps its own. Can be used on any thread; one per process.
/// See `BondingConnector`.
public final class BondKeeper: Sendable {
  /// What a keeper reports.
  public enum News: Sendable {
    /// A device was paired, and its bond is kept.
    case kept(device: String, path: String)
    /// Bonds are not used or not kept, and why.
    case trouble(String)
    /// A device that connected to us was refused pairing, and why.
    case refused(device: String, reason: String)
  }

  /// The state of an adapter's bonds, for one opening.
  struct Standing: Sendable {
    enum Side { case ours, daemon, nobody }
    var side = Side.nobody
    /// The line of each device's bond, counted from 1, and the file.
    var lines: [PairedAddress: Int] = [:]
    var path = ""
  }

  /// Calls to the kernel; all of them may block.
  struct Kernel: Sendable {
    var management: @Sendable () -> Result<DescriptorParcel, OpenFailure> = { ManagementSocket.open() }
    var runsDaemon: @Sendable (BluetoothAddress) -> Bool? = { BluetoothDaemon.runs(on: $0) }
  }

  private struct State {
    var management: Int32 = -1
    var source: (any DispatchSourceRead)?
    // Prepared adapters, by index: events carry no address.
    var adapters: [UInt16: BluetoothAddress] = [:]
    var lastTrouble: String?
    var lastUnkept: BondStore.Fault?
    // Refusals that were reported, the latest last.
    var refused: [String] = []
  }

  private let store: BondStore
  private let report: @Sendable (News) -> Void
  private let kernel: Kernel
  private let state = Mutex(State())
  // The devices whose keys are kept, since the kernel pairs with any device in range. This lock is held briefly, unlike
  // the state's.
  private let named = Mutex(NamedDevices())
  // Adapters with listeners: devices that connect to them may pair.
  private let receiving = Mutex<Set<BluetoothAddress>>([])
  // All work on bonds runs on this queue, since files and waiting for the kernel's answers block.
  private let queue: DeviceQueue
  private static let mostOpenings = 1024
  private static let mostRefused = 16
  /// The time limit for each answer of the kernel.
  private static let timeout = Duration.seconds(2)

  /// Keeps the bonds in the file at `path`, which is created with the first bond. `report` is called on the keeper's
  /// queue and must not block.
  public convenience init(path: String, report: @escaping @Sendable (News) -> Void = { _ in }) {
    self.init(path: path, kernel: Kernel(), report: report)
  }

  init(
    path: String, kernel: Kernel, via queue: DeviceQueue = .of("bluetooth bonds"),
    report: @escaping @Sendable (News) -> Void
  ) {
    self.queue = queue
    store = BondStore(path: path)
    self.kernel = kernel
    self.report = report
  }

  deinit { state.withLock { $0.source?.cancel() } }

  /// The default path: `$BAUDWAY_BONDS`, else a file called `bonds` in systemd's state directory, else in
  /// /var/lib/baudway.
  public static func path(_ environment: [String: String]) -> String {
    if let path = environment["BAUDWAY_BONDS"], !path.isEmpty { return path }
    let folders = environment["STATE_DIRECTORY"]?.split(separator: ":")
    return "\(folders?.first ?? "/var/lib/baudway")/bonds"
  }

  /// Makes an adapter ready to pair and loads its bonds, off the lane of `poller`. `done` is called once on that lane,
  /// unless the opening is cancelled.
  func prepare(
    _ adapter: ManagedAdapter, on poller: Poller, _ done: @escaping (Standing) -> Void
  ) -> any Opening {
    queue.open("bonds", most: Self.mostOpenings, on: poller) { [self] in
      .success(prepared(adapter))
    } undo: { _ in
    } _: { result in
      done((try? result.get()) ?? Standing())
    }
  }

  /// The keys of this device are kept from now on: an endpoint connects to it.
  func expect(_ device: PairedAddress) { named.withLock { $0.name(device) } }

  /// The same. Until `leave`, the caller answers the device's pairing requests, not the keeper.
  func enter(_ device: PairedAddress, at adapter: UInt16) { named.withLock { $0.enter(device, at: adapter) } }

  func leave(_ device: PairedAddress, at adapter: UInt16) { named.withLock { $0.leave(device, at: adapter) } }

  /// Sets the adapters that have listeners. On these, and on no others, devices that connect to us are paired and their
  /// keys kept.
  func receive(at adapters: Set<BluetoothAddress>) { receiving.withLock { $0 = adapters } }

  // MARK: - On the queue

  /// The same on the caller's thread. Blocks.
  func prepared(_ adapter: ManagedAdapter) -> Standing { state.withLock { prepare(adapter, &$0) } }

  private func prepare(_ adapter: ManagedAdapter, _ state: inout State) -> Standing {
    guard listen(&state) else { return Standing() }
    handle(&state)
    // Before the first command: if the adapter is removed meanwhile, its event comes with an answer and clears this
    // again.
    state.adapters[adapter.index] = adapter.address
    let standing = load(adapter, &state)
    if standing.side == .ours { return state.adapters[adapter.index] == nil ? Standing() : standing }
    state.adapters[adapter.index] = nil
    return standing
  }

  private func load(_ adapter: ManagedAdapter, _ state: inout State) -> Standing {
    // A command that changes nothing and needs privileges: it shows whether we have them.
    let question = ManagementCommand(code: .connections, adapter: adapter.index, parameters: [])
    let answer = carryOut(question, &state)
    guard answer == ManagementStatus.success || answer == ManagementStatus.notPowered else { return Standing() }
    switch kernel.runsDaemon(adapter.address) {
    case true?: return Standing(side: .daemon)
    case nil:
      reportOnce("bonds are not kept: checking whether bluetoothd keeps them needs CAP_NET_BIND_SERVICE", &state)
      return Standing()
    case false?: break
    }
    do throws(BondStore.Fault) {
      // Loading replaces the kernel's list. If the file can't be written, this would only remove bonds from the kernel.
      try store.checkThatItCanBeWritten()
      let file = try store.read()
      let bonds = file.bonds(with: adapter.address)
      for command in BondLoading.commands(bonds, for: adapter) {
        let isLoad = Self.loads.contains(command.code)
        // bluetoothd may have started meanwhile.
        if isLoad, kernel.runsDaemon(adapter.address) != false { return Standing(side: .daemon) }
        let status = carryOut(command, &state)
        if status == ManagementStatus.invalidIndex || isLoad && status == nil { return Standing() }
        if isLoad, let status, status != ManagementStatus.success {
          reportOnce("\(store.path): the kernel refused these bonds (status \(status))", &state)
          return Standing()
        }
      }
      state.lastTrouble = nil
      var lines: [PairedAddress: Int] = [:]
      for bond in bonds { lines[bond.device] = file.line(of: bond.device, with: adapter.address) }
      return Standing(side: .ours, lines: lines, path: store.path)
    } catch {
      reportOnce("bonds are neither used nor kept: \(error)", &state)
      return Standing()
    }
  }

  private static let loads: Set<ManagementCommand.Code> = [.loadLinkKeys, .loadLongTermKeys, .loadIdentities]

  /// Reports each problem once: every opening finds it again.
  private func reportOnce(_ text: String, _ state: inout State) {
    guard state.lastTrouble != text else { return }
    state.lastTrouble = text
    report(.trouble(text))
  }

  // MARK: - The management channel

  private func listen(_ state: inout State) -> Bool {
    if state.source != nil { return true }
    guard case .success(let parcel) = kernel.management(), let descriptor = parcel.take() else { return false }
    let raw = descriptor.raw
    let held = DescriptorParcel(descriptor)
    let source = DispatchSource.makeReadSource(fileDescriptor: raw, queue: queue.queue)
    source.setEventHandler { [weak self] in
      guard let self else { return }
      self.state.withLock { _ = self.handle(&$0) }
    }
    source.setCancelHandler { _ = held.take() }
    source.activate()
    state.management = raw
    state.source = source
    return true
  }

  /// Reads all events that are queued. Returns the status of the answer to `code`; nil if it is not among them.
  @discardableResult
  private func handle(_ state: inout State, awaiting code: ManagementCommand.Code? = nil) -> UInt8? {
    var status: UInt8?
    var buffer = [UInt8](repeating: 0, count: 4096)
    while true {
      let count = read(state.management, &buffer, buffer.count)
      if count < 0, errno == EINTR { continue }
      guard count > 0 else { return status }
      guard let event = ManagementEvent(Array(buffer[..<count])) else { continue }
      switch event.content {
      case .answer(let answered, let answer, _) where answered == code?.rawValue: status = answer
      case .adapterRemoved: state.adapters[event.adapter] = nil
      case .pairing(.key(let device, let key, isToKeep: true, let passing)):
        if isNamed(device, temporaryAddress: passing) {
          keep(key, of: device, event.adapter, most: BondFile.mostBonds, &state)
        } else if isCaller(device, event.adapter, state) {
          keep(key, of: device, event.adapter, most: BondFile.mostWithCallers, &state)
        }
      default:
        if let wish = PairingPolicy(event.content), isCaller(wish.device, event.adapter, state) {
          answer(wish, event.adapter, &state)
        }
      }
    }
  }

  /// Whether endpoints name the device, by this address or by the temporary one (`passing`) that it used before. If so,
  /// it is named by this address from now on.
  private func isNamed(_ device: PairedAddress, temporaryAddress passing: PairedAddress?) -> Bool {
    let isNamed = named.withLock { $0.contains(device) || passing.map($0.contains) == true }
    if isNamed { expect(device) }
    return isNamed
  }

  /// Whether the device may have connected to us. If an opening connects to it now, the opening answers instead.
  private func isCaller(_ device: PairedAddress, _ index: UInt16, _ state: State) -> Bool {
    guard device.kind == .classic, let adapter = state.adapters[index] else { return false }
    return receiving.withLock { $0.contains(adapter) } && !named.withLock { $0.isBeingOpened(device, at: index) }
  }

  private func answer(_ wish: PairingPolicy, _ index: UInt16, _ state: inout State) {
    guard let adapter = state.adapters[index], kernel.runsDaemon(adapter) == false else { return }
    let line: Int?
    do throws(BondStore.Fault) {
      line = try store.read().line(of: wish.device, with: adapter)
    } catch {
      return reportOnce("requests to pair are not answered: \(error)", &state)
    }
    let answer = wish.answer(at: index, knownBy: line.map { "line \($0) of \(store.path)" })
    let bytes = answer.command.encoded
    _ = write(state.management, bytes, bytes.count)
    // Once per device and reason, however often the device tries.
    guard let reason = answer.refusal, !state.refused.contains("\(wish.device) \(reason)") else { return }
    state.refused = state.refused.suffix(Self.mostRefused - 1) + ["\(wish.device) \(reason)"]
    report(.refused(device: "\(wish.device)", reason: reason))
  }

  private func keep(_ key: BondKey, of device: PairedAddress, _ index: UInt16, most: Int, _ state: inout State) {
    guard let adapter = state.adapters[index], kernel.runsDaemon(adapter) == false else { return }
    do throws(BondStore.Fault) {
      try store.keep(key, of: device, with: adapter, most: most)
      (state.lastUnkept, state.refused) = (nil, [])
      report(.kept(device: "\(device)", path: store.path))
    } catch {
      guard state.lastUnkept != error else { return }
      state.lastUnkept = error
      report(.trouble("the bond with \(device) is not kept: \(error)"))
    }
  }

  /// Sends a command and returns the status it ended with; nil without an answer.
  private func carryOut(_ command: ManagementCommand, _ state: inout State) -> UInt8? {
    let bytes = command.encoded
    guard write(state.management, bytes, bytes.count) >= 0 else { return nil }
    let end = monotonicNanoseconds() &+ Self.timeout.nanoseconds
    while true {
      if let status = handle(&state, awaiting: command.code) { return status }
      let now = monotonicNanoseconds()
      guard now < end else { return nil }
      var one = pollfd(fd: state.management, events: Int16(POLLIN), revents: 0)
      poll(&one, 1, Int32((end - now) / 1_000_000) + 1)
    }
  }
}

/// A connector over Bluetooth, whose devices may be paired.
public protocol BondingConnector: Connector {
  /// Keeps the bonds with its devices; nil if nothing does.
  var bonds: BondKeeper? { get set }
}

extension BondingConnector {
  public func watch(
    on poller: Poller, after cause: SystemError?, _ changed: @escaping (DeviceNews) -> Void
  ) -> (any DeviceWatch)? {
    AdapterWatch(on: poller, after: cause) { changed(.appeared) }
  }
}
