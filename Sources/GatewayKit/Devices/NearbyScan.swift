// `baudway scan` between the lane on which it listens and the thread that shows what was heard: a picture that anybody may look at.

import ByteStreams
import StreamBroker
import StreamBrokerBluetooth
import Synchronization

public final class NearbyScan: Sendable {
  public struct Wish: Sendable {
    public enum Kinds: Sendable {
      case all, classic, lowEnergy
    }
    /// "hci0" or an address.
    let adapter: String?
    let kinds: Kinds
    let service: BluetoothUUID?

    /// `service` is a UUID in any length; only devices that say that they have it are told of. Nil when it is none.
    public init?(_ kinds: Kinds = .all, adapter: String? = nil, service: String? = nil) {
      self.kinds = kinds
      self.adapter = adapter
      self.service = service.flatMap { BluetoothUUID($0) }
      if service != nil && self.service == nil { return nil }
    }
  }

  private struct State {
    var list: NearbyList
    /// Lines that nobody has taken.
    var lines: [String] = []
    /// Since when it listens.
    var listensSince: UInt64?
    var end: End?
  }
  public enum End: Sendable {
    case stopped
    case failed(OpenFailure)
  }

  /// While nobody takes them; a device may call itself something else every moment.
  static let mostLines = 8192

  private let state: Mutex<State>
  private let wish: Wish
  private let lane: Lane
  private let keepsLines: Bool
  private let listener: Resident<Listener>

  /// Lives on the lane.
  private final class Listener {
    private let poller: Poller
    private var scan: BluetoothScan?

    init(on poller: Poller) { self.poller = poller }

    func begin(_ wish: Wish, telling board: NearbyScan) {
      let scan = BluetoothScan(BluetoothScan.Kinds(wish.kinds), adapter: wish.adapter, on: poller) { board.hear($0) }
      self.scan = scan
      scan.start()
    }

    func stop() { scan?.stop() }
  }

  /// With `keepsLines` each device is a line for `takeLines()`, once it is heard and whenever it says more. Throws when the
  /// process is out of descriptors.
  public init(_ wish: Wish, keepsLines: Bool) throws(SystemError) {
    self.wish = wish
    self.keepsLines = keepsLines
    state = Mutex(State(list: NearbyList(service: wish.service, adapter: wish.adapter)))
    lane = try Lane("scan")
    listener = Resident(on: lane) { Listener(on: $0.poller) }
  }

  public func begin() {
    listener.post { [self] _, listener in listener.begin(wish, telling: self) }
  }

  /// `end` follows, in two seconds at most.
  public func stop() { listener.post { _, listener in listener.stop() } }

  func hear(_ news: BluetoothScan.News) {
    state.withLock { state in
      switch news {
      case .listening(let adapter):
        state.list.begins(on: adapter)
        state.listensSince = monotonicNanoseconds()
      case .heard(let device): _ = state.list.note(device)
      case .found(let device):
        if state.list.note(device), keepsLines, state.lines.count < Self.mostLines {
          state.lines += state.list.lines(for: device)
        }
      case .stopped: state.end = .stopped
      case .failed(let failure): state.end = .failed(failure)
      }
    }
  }

  // MARK: - Looking, from any thread

  /// Nil while it goes on.
  public var end: End? { state.withLock { $0.end } }

  /// Since when it listens, on the monotonic clock (ns); nil before an adapter was found and switched on.
  public var listensSince: UInt64? { state.withLock { $0.listensSince } }
  /// Nil as long as `listensSince` is.
  public var adapter: String? { state.withLock { $0.list.adapter } }
  /// What there is to say when nothing is listed.
  public var lack: String? { state.withLock { $0.list.lack } }
  public var count: Int { state.withLock { $0.list.devices.count } }

  public func table(hasColours: Bool) -> [String] { state.withLock { $0.list.table(Paint(isOn: hasColours)) } }
  public var json: String { state.withLock { $0.list.json } }

  public func takeLines() -> [String] {
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
