// Keeps the bonds with devices in a file, and gives them to the kernel, which forgets them with the adapter. One per process, made by
// whoever is the process (the gateway, `connect`) and handed to the connectors; without one, devices are paired anew each time.
// Beside bluetoothd it does nothing: that has its own, and the kernel's list is replaced as a whole.

import ByteStreams
import Dispatch
import Glibc
import StreamBroker
import Synchronization

public final class BondKeeper: Sendable {
  public enum News: Sendable {
    /// A device was paired, and will be known next time.
    case kept(device: String, path: String)
    /// Bonds are neither used nor kept, and why.
    case trouble(String)
    /// A device that called us was not paired, and why.
    case refused(device: String, reason: String)
  }

  /// How an adapter stands with its bonds, for one opening.
  struct Standing: Sendable {
    enum Side { case ours, daemon, nobody }
    var side = Side.nobody
    /// Where devices stand, from 1, and in which file.
    var lines: [PairedAddress: Int] = [:]
    var path = ""
  }

  /// What is asked of the kernel; all of it may block.
  struct Kernel: Sendable {
    var management: @Sendable () -> Result<DescriptorParcel, OpenFailure> = { ManagementSocket.open() }
    var runsDaemon: @Sendable (BluetoothAddress) -> Bool? = { BluetoothDaemon.runs(on: $0) }
  }

  private struct State {
    var management: Int32 = -1
    var source: (any DispatchSourceRead)?
    // Those that were asked for, by index: events name no address.
    var adapters: [UInt16: BluetoothAddress] = [:]
    var lastTrouble: String?
    var lastUnkept: BondStore.Fault?
    // Whom it was told of, the latest last.
    var refused: [String] = []
  }

  private let store: BondStore
  private let tell: @Sendable (News) -> Void
  private let kernel: Kernel
  private let state = Mutex(State())
  // The kernel lets anybody pair who comes near. Held for no time, unlike the state.
  private let named = Mutex(NamedDevices())
  // Adapters at which listeners are, whose callers may pair.
  private let receiving = Mutex<Set<BluetoothAddress>>([])
  // All of it happens here, for files and waiting for the kernel's answers block.
  private let queue: DeviceQueue
  private static let mostOpenings = 1024
  private static let mostRefused = 16
  /// For each answer.
  private static let patience = Duration.seconds(2)

  /// Keeps them in the file at `path`, which is made when there is something to keep. `tell` is called on the keeper's queue, and must
  /// not block.
  public convenience init(path: String, tell: @escaping @Sendable (News) -> Void = { _ in }) {
    self.init(path: path, kernel: Kernel(), tell: tell)
  }

  init(
    path: String, kernel: Kernel, via queue: DeviceQueue = .of("bluetooth bonds"),
    tell: @escaping @Sendable (News) -> Void
  ) {
    self.queue = queue
    store = BondStore(path: path)
    self.kernel = kernel
    self.tell = tell
  }

  deinit { state.withLock { $0.source?.cancel() } }

  /// Where bonds are kept unless it is said: `$BAUDWAY_BONDS`, a file called `bonds` in systemd's state directory, or in
  /// /var/lib/baudway.
  public static func path(_ environment: [String: String]) -> String {
    if let path = environment["BAUDWAY_BONDS"], !path.isEmpty { return path }
    let folders = environment["STATE_DIRECTORY"]?.split(separator: ":")
    return "\(folders?.first ?? "/var/lib/baudway")/bonds"
  }

  /// Makes an adapter ready to pair and gives it its bonds, off the lane of `poller`; `done` is called there once, unless it is
  /// cancelled.
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

  /// The keys of this device are to be kept: somebody connects to it. Others' never are.
  func expect(_ device: PairedAddress) { named.withLock { $0.name(device) } }

  /// The same, and whoever connects answers what it asks there, until he leaves.
  func enter(_ device: PairedAddress, at adapter: UInt16) { named.withLock { $0.enter(device, at: adapter) } }

  func leave(_ device: PairedAddress, at adapter: UInt16) { named.withLock { $0.leave(device, at: adapter) } }

  /// At these adapters, and at no others, devices that call us are paired, and their keys kept: listeners are there.
  func receive(at adapters: Set<BluetoothAddress>) { receiving.withLock { $0 = adapters } }

  // MARK: - On the queue

  /// The same here and now.
  func prepared(_ adapter: ManagedAdapter) -> Standing { state.withLock { prepare(adapter, &$0) } }

  private func prepare(_ adapter: ManagedAdapter, _ state: inout State) -> Standing {
    guard listen(&state) else { return Standing() }
    hear(&state)
    // Before the first question: if it goes meanwhile, that is heard with an answer, and takes this back.
    state.adapters[adapter.index] = adapter.address
    let standing = load(adapter, &state)
    if standing.side == .ours { return state.adapters[adapter.index] == nil ? Standing() : standing }
    state.adapters[adapter.index] = nil
    return standing
  }

  private func load(_ adapter: ManagedAdapter, _ state: inout State) -> Standing {
    // A command that does nothing and that not everybody may give.
    let question = ManagementCommand(code: .connections, adapter: adapter.index, parameters: [])
    let answer = carryOut(question, &state)
    guard answer == ManagementStatus.success || answer == ManagementStatus.notPowered else { return Standing() }
    switch kernel.runsDaemon(adapter.address) {
    case true?: return Standing(side: .daemon)
    case nil:
      complain("bonds are not kept: to see whether bluetoothd does takes CAP_NET_BIND_SERVICE", &state)
      return Standing()
    case false?: break
    }
    do throws(BondStore.Fault) {
      // A list that can't grow would take from the kernel what it has.
      try store.checkThatItCanBeWritten()
      let file = try store.read()
      let bonds = file.bonds(with: adapter.address)
      for command in BondLoading.commands(bonds, for: adapter) {
        let isLoad = Self.loads.contains(command.code)
        // It may have started meanwhile.
        if isLoad, kernel.runsDaemon(adapter.address) != false { return Standing(side: .daemon) }
        let status = carryOut(command, &state)
        if status == ManagementStatus.invalidIndex || isLoad && status == nil { return Standing() }
        if isLoad, let status, status != ManagementStatus.success {
          complain("\(store.path): the kernel does not take these bonds (status \(status))", &state)
          return Standing()
        }
      }
      state.lastTrouble = nil
      var lines: [PairedAddress: Int] = [:]
      for bond in bonds { lines[bond.device] = file.line(of: bond.device, with: adapter.address) }
      return Standing(side: .ours, lines: lines, path: store.path)
    } catch {
      complain("bonds are neither used nor kept: \(error)", &state)
      return Standing()
    }
  }

  private static let loads: Set<ManagementCommand.Code> = [.loadLinkKeys, .loadLongTermKeys, .loadIdentities]

  /// Once for each trouble: it is met again at every opening.
  private func complain(_ text: String, _ state: inout State) {
    guard state.lastTrouble != text else { return }
    state.lastTrouble = text
    tell(.trouble(text))
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
      self.state.withLock { _ = self.hear(&$0) }
    }
    source.setCancelHandler { _ = held.take() }
    source.activate()
    state.management = raw
    state.source = source
    return true
  }

  /// All that has been told; the answer to `code`, if it is among that.
  @discardableResult
  private func hear(_ state: inout State, awaiting code: ManagementCommand.Code? = nil) -> UInt8? {
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
        if isNamed(device, lately: passing) {
          keep(key, of: device, event.adapter, most: BondFile.mostBonds, &state)
        } else if isCaller(device, event.adapter, state) {
          keep(key, of: device, event.adapter, most: BondFile.mostWithCallers, &state)
        }
      default:
        if let wish = CallerWish(event.content), isCaller(wish.device, event.adapter, state) {
          answer(wish, event.adapter, &state)
        }
      }
    }
  }

  /// A device that was found by a passing address goes by its lasting one from now on.
  private func isNamed(_ device: PairedAddress, lately passing: PairedAddress?) -> Bool {
    let isNamed = named.withLock { $0.contains(device) || passing.map($0.contains) == true }
    if isNamed { expect(device) }
    return isNamed
  }

  /// Whether it may have called us by itself. Who is just being connected to is answered by whoever does that.
  private func isCaller(_ device: PairedAddress, _ index: UInt16, _ state: State) -> Bool {
    guard device.kind == .classic, let adapter = state.adapters[index] else { return false }
    return receiving.withLock { $0.contains(adapter) } && !named.withLock { $0.isBeingOpened(device, at: index) }
  }

  private func answer(_ wish: CallerWish, _ index: UInt16, _ state: inout State) {
    guard let adapter = state.adapters[index], kernel.runsDaemon(adapter) == false else { return }
    let line: Int?
    do throws(BondStore.Fault) {
      line = try store.read().line(of: wish.device, with: adapter)
    } catch {
      return complain("who wants to be paired is not answered: \(error)", &state)
    }
    let answer = wish.answer(at: index, knownBy: line.map { "line \($0) of \(store.path)" })
    let bytes = answer.command.encoded
    _ = write(state.management, bytes, bytes.count)
    // Once, however often he tries.
    guard let reason = answer.refusal, !state.refused.contains("\(wish.device) \(reason)") else { return }
    state.refused = state.refused.suffix(Self.mostRefused - 1) + ["\(wish.device) \(reason)"]
    tell(.refused(device: "\(wish.device)", reason: reason))
  }

  private func keep(_ key: BondKey, of device: PairedAddress, _ index: UInt16, most: Int, _ state: inout State) {
    guard let adapter = state.adapters[index], kernel.runsDaemon(adapter) == false else { return }
    do throws(BondStore.Fault) {
      try store.keep(key, of: device, with: adapter, most: most)
      (state.lastUnkept, state.refused) = (nil, [])
      tell(.kept(device: "\(device)", path: store.path))
    } catch {
      guard state.lastUnkept != error else { return }
      state.lastUnkept = error
      tell(.trouble("the bond with \(device) is not kept: \(error)"))
    }
  }

  /// The status it ended with; nil without an answer.
  private func carryOut(_ command: ManagementCommand, _ state: inout State) -> UInt8? {
    let bytes = command.encoded
    guard write(state.management, bytes, bytes.count) >= 0 else { return nil }
    let end = monotonicNanoseconds() &+ Self.patience.nanoseconds
    while true {
      if let status = hear(&state, awaiting: command.code) { return status }
      let now = monotonicNanoseconds()
      guard now < end else { return nil }
      var one = pollfd(fd: state.management, events: Int16(POLLIN), revents: 0)
      poll(&one, 1, Int32((end - now) / 1_000_000) + 1)
    }
  }
}

/// A connector over Bluetooth, whose devices may be paired.
public protocol BondingConnector: SteppedConnector {
  /// Who keeps their bonds; nil where nobody does.
  var bonds: BondKeeper? { get set }
}

extension BondingConnector {
  public func watch(
    on poller: Poller, after cause: SystemError?, _ changed: @escaping (DeviceNews) -> Void
  ) -> (any DeviceWatch)? {
    AdapterWatch(on: poller, after: cause) { changed(.appeared) }
  }
}
