// A scan as an async sequence, for programs that look for devices. It runs on a lane of the library; `baudway scan`
// shows the same values.

import ByteStreams
import StreamBrokerCore
import Synchronization

extension NearbyDevice {
  /// The Bluetooth devices in range: each when it is found, and again when more is known about it.
  /// ```swift
  /// for try await device in NearbyDevice.scan(.lowEnergy, for: .seconds(12)) {
  ///   print(device.name ?? "?", device.candidates().map(\.url))
  /// }
  /// ```
  /// Each loop over the result is a scan of its own. It switches on an adapter that is off, and needs CAP_NET_ADMIN
  /// (root has it). `adapter` is "hci0" or an address; nil: the first that is on. The loop ends `duration` after the
  /// scan has begun (nil: never), and when its task is cancelled; it throws `OpenFailure` (with EPERM or EACCES if a
  /// privilege is missing) and `SystemError` if the process is out of descriptors. However the loop ends, the kernel's
  /// scan ends soon afterwards. With `everySignal` a known device comes each time something is received from it, with
  /// its current signal strength.
  public static func scan(
    _ kinds: BluetoothScan.Kinds = .all, adapter: String? = nil, for duration: Duration? = nil,
    everySignal: Bool = false
  ) -> NearbyDevices {
    NearbyDevices(kinds: kinds, adapter: adapter, duration: duration, everySignal: everySignal)
  }
}

/// A scan that begins with the loop over it.
public struct NearbyDevices: AsyncSequence, Sendable {
  public typealias Element = NearbyDevice

  let kinds: BluetoothScan.Kinds
  let adapter: String?
  let duration: Duration?
  let everySignal: Bool
  var make: @Sendable (Poller, @escaping (Result<DescriptorParcel, OpenFailure>) -> Void) -> any Opening = {
    ManagementSocket.make(on: $0, $1)
  }

  public func makeAsyncIterator() -> Iterator {
    let (bell, ring) = AsyncThrowingStream<Void, any Error>.makeStream(bufferingPolicy: .bufferingNewest(1))
    let found = FoundDevices(ring)
    do throws(SystemError) {
      let scanner = try LaneRef(on: LanePool.next()) { lane in Scanner(self, on: lane.poller, reporting: found) }
      scanner.post { _, scanner in scanner.begin() }
      // Called when the loop ends, too: then nothing refers to the stream any more.
      ring.onTermination = { _ in scanner.post { _, scanner in scanner.stop() } }
    } catch {
      ring.finish(throwing: error)
    }
    return Iterator(found: found, bell: bell.makeAsyncIterator())
  }

  /// Gives the devices; its end, and the end of its task, end the scan.
  public struct Iterator: AsyncIteratorProtocol {
    fileprivate let found: FoundDevices
    fileprivate var bell: AsyncThrowingStream<Void, any Error>.Iterator

    public mutating func next(isolation actor: isolated (any Actor)? = #isolation) async throws -> NearbyDevice? {
      while true {
        if Task.isCancelled { return nil }
        if let device = found.take() { return device }
        if try await bell.next(isolation: actor) == nil { return found.take() }
      }
    }
  }
}

/// The devices that the loop has not taken yet: each once, with its newest data.
private final class FoundDevices: Sendable {
  private struct Identity: Hashable {
    let address: BluetoothAddress
    let kind: AddressKind
  }
  private struct State {
    var order: [Identity] = []
    var devices: [Identity: NearbyDevice] = [:]
  }
  private let state = Mutex(State())
  private let ring: AsyncThrowingStream<Void, any Error>.Continuation

  init(_ ring: AsyncThrowingStream<Void, any Error>.Continuation) { self.ring = ring }

  func add(_ device: NearbyDevice) {
    let identity = Identity(address: device.address, kind: device.kind)
    state.withLock { state in
      if state.devices.updateValue(device, forKey: identity) == nil { state.order.append(identity) }
    }
    ring.yield()
  }

  func end(_ failure: OpenFailure? = nil) { ring.finish(throwing: failure) }

  func take() -> NearbyDevice? {
    state.withLock { state in
      guard let first = state.order.first else { return nil }
      state.order.removeFirst()
      return state.devices.removeValue(forKey: first)
    }
  }
}

/// Runs on the lane. Keeps itself from `begin()` until the scan has ended, because only a scan that was stopped in
/// order ends in the kernel at once.
private final class Scanner {
  private let wish: NearbyDevices
  private let poller: Poller
  private let found: FoundDevices
  private var scan: BluetoothScan?
  private var deadline: Timers.Token?

  init(_ wish: NearbyDevices, on poller: Poller, reporting found: FoundDevices) {
    self.wish = wish
    self.poller = poller
    self.found = found
  }

  func begin() {
    let scan = BluetoothScan(wish.kinds, adapter: wish.adapter, on: poller, making: wish.make) { [self] in handle($0) }
    self.scan = scan
    scan.start()
  }

  func stop() { scan?.stop() }

  private func handle(_ news: BluetoothScan.News) {
    switch news {
    case .listening:
      guard let duration = wish.duration else { return }
      deadline = poller.timers.after(duration) { [weak self] in self?.stop() }
    case .found(let device): found.add(device)
    case .received(let device): if wish.everySignal { found.add(device) }
    case .failed(let failure): end(failure)
    case .stopped: end()
    }
  }

  private func end(_ failure: OpenFailure? = nil) {
    poller.timers.cancel(deadline)
    scan = nil
    found.end(failure)
  }
}
