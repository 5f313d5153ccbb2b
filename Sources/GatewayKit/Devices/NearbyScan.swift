// The state of `baudway scan`, shared by the lane that scans and the thread that shows the result. Any thread may read
// it.

import ByteStreams
import StreamBroker
import StreamBrokerBluetooth
import Synchronization

package final class NearbyScan: Sendable {
  package struct Wish: Sendable {
    package enum Kinds: Sendable {
      case all, classic, lowEnergy
    }
    /// "hci0" or an address.
    let adapter: String?
    let kinds: Kinds
    let service: BluetoothUUID?

    /// `service` is a UUID of any length; only devices that advertise it are listed. Nil if it is not a UUID.
    package init?(_ kinds: Kinds = .all, adapter: String? = nil, service: String? = nil) {
      self.kinds = kinds
      self.adapter = adapter
      self.service = service.flatMap { BluetoothUUID($0) }
      if service != nil && self.service == nil { return nil }
    }
  }

  private struct State {
    var list: NearbyList
    /// Lines that `takeLines()` has not returned yet.
    var lines: [String] = []
    /// Start of the scan, on the monotonic clock (ns).
    var listensSince: UInt64?
    var end: End?
  }
  package enum End: Sendable {
    case stopped
    case failed(OpenFailure)
  }

  /// With this many lines not taken, no more are added: a device can change its name all the time.
  static let mostLines = 8192

  private let state: Mutex<State>
  private let wish: Wish
  private let lane: Lane
  private let keepsLines: Bool
  private let listener: LaneRef<Listener>

  /// Runs on the lane.
  private final class Listener {
    private let poller: Poller
    private var scan: BluetoothScan?

    init(on poller: Poller) { self.poller = poller }

    func begin(_ wish: Wish, reporting board: NearbyScan) {
      let scan = BluetoothScan(BluetoothScan.Kinds(wish.kinds), adapter: wish.adapter, on: poller) { board.handle($0) }
      self.scan = scan
      scan.start()
    }

    func stop() { scan?.stop() }
  }

  /// `keepsLines`: each device adds lines for `takeLines()`, when it is found and whenever it sends more. Throws if the
  /// process is out of descriptors.
  package init(_ wish: Wish, keepsLines: Bool) throws(SystemError) {
    self.wish = wish
    self.keepsLines = keepsLines
    state = Mutex(State(list: NearbyList(service: wish.service, adapter: wish.adapter)))
    lane = try Lane("scan")
    listener = LaneRef(on: lane) { Listener(on: $0.poller) }
  }

  package func begin() {
    listener.post { [self] _, listener in listener.begin(wish, reporting: self) }
  }

  /// Sets `end`, within two seconds.
  package func stop() { listener.post { _, listener in listener.stop() } }

  func handle(_ news: BluetoothScan.News) {
    state.withLock { state in
      switch news {
      case .listening(let adapter):
        state.list.begins(on: adapter)
        state.listensSince = monotonicNanoseconds()
      case .received(let device): _ = state.list.note(device)
      case .found(let device):
        if state.list.note(device), keepsLines, state.lines.count < Self.mostLines {
          state.lines += state.list.lines(for: device)
        }
      case .stopped: state.end = .stopped
      case .failed(let failure): state.end = .failed(failure)
      }
    }
  }

  // MARK: - Reading, from any thread

  /// Nil while the scan runs.
  package var end: End? { state.withLock { $0.end } }

  /// Start of the scan, on the monotonic clock (ns); nil until an adapter is found and switched on.
  package var listensSince: UInt64? { state.withLock { $0.listensSince } }
  /// The adapter's name; nil while `listensSince` is nil.
  package var adapter: String? { state.withLock { $0.list.adapter } }
  /// The explanation of an empty list; nil if it is not empty.
  package var lack: String? { state.withLock { $0.list.lack } }
  package var count: Int { state.withLock { $0.list.devices.count } }

  package func table(hasColours: Bool) -> [String] { state.withLock { $0.list.table(Paint(isOn: hasColours)) } }
  package var json: String { state.withLock { $0.list.json } }

  package func takeLines() -> [String] {
    state.withLock { state in
      defer { state.lines = [] }
      return state.lines
    }
  }
}

extension BluetoothScan.Kinds {
  fileprivate init(_ kinds: NearbyScan.Wish.Kinds) {
    self =
      switch kinds {
      case .all: .all
      case .classic: .classic
      case .lowEnergy: .lowEnergy
      }
  }
}
