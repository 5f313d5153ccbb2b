// The picture of a moment, as values: what `status` shows, and what an API or metrics read. A gateway makes it when it is
// asked (StatusSurvey); the control socket carries it as JSON (Snapshot+JSON.swift).

import ByteStreams
import StreamBroker

public struct Snapshot: Hashable, Sendable {
  public var version: String
  public var process: Int
  /// Since the gateway was made.
  public var nanoseconds: UInt64
  /// Serves on every address. A device that is away does no harm here.
  public var isHealthy: Bool
  /// What is wrong with files of certificates.
  public var certificateFaults: [String] = []
  /// Clients that were refused since the start, by reason: "http-request".
  public var refused: [String: UInt64] = [:]
  /// Why the configuration is not the file's, when the last reload changed nothing.
  public var failedReload: FailedReload?
  public var handshakes: Handshakes?
  public var routes: [Route] = []

  public struct FailedReload: Hashable, Sendable {
    /// The first ones.
    public var problems: [String]
    /// How many there are beyond these.
    public var more: Int
    /// Since then.
    public var nanoseconds: UInt64

    private static let most = 10

    init(problems: [String], more: Int = 0, nanoseconds: UInt64) {
      self.problems = Array(problems.prefix(Self.most))
      self.more = more + max(0, problems.count - Self.most)
      self.nanoseconds = nanoseconds
    }
  }

  /// Of TLS, requests and log-ins, at all listeners.
  public struct Handshakes: Hashable, Sendable {
    public var unfinished: Int
    public var most: Int
    /// Since the start, because there were `most`, or too few descriptors.
    public var refused: UInt64
  }

  public struct Route: Hashable, Sendable {
    public var name: String
    /// Secrets masked.
    public var endpoint: String
    public var link: Config.Link
    public var maxClients: Int
    /// Clients that wait for a place.
    public var queued = 0
    public var listeners: [Listener] = []
    /// Of a shared link.
    public var state: LinkState?
    /// Of links of one client each: how many there are, by their word.
    public var links: [String: Int] = [:]
    public var totals = Totals()
    /// In the order of coming.
    public var clients: [Client] = []
    /// A lane did not answer within a second; what it has is missing here.
    public var isStuck = false
  }

  public struct Listener: Hashable, Sendable {
    /// What the configuration says.
    public var url: String
    public var state: State
    /// For how long.
    public var nanoseconds: UInt64
    /// It listens, and this keeps some from finding or reaching it.
    public var limit: String?

    public enum State: Hashable, Sendable {
      /// It has not been tried yet.
      case starting
      /// The address it got.
      case listening(String)
      case waiting(error: String, retry: Duration)
    }
  }

  public struct LinkState: Hashable, Sendable {
    /// A word of LinkStatus.
    public var word: String
    public var nanoseconds: UInt64
    /// Of an open serial port: what is in force, which need not be quite what was asked for: "115200 8N1".
    public var line: String?
    /// Of an open one: what its device says of itself.
    public var device: DeviceFacts?
    /// Why it waits.
    public var reason: String?
    /// Until the next try.
    public var retry: Duration?
  }

  /// Since the route began.
  public struct Totals: Hashable, Sendable {
    /// Ended sessions, those who were turned away among them.
    public var ended: [Ending.Word: UInt64] = [:]
    /// Of those that ended as `full`: because of `clients.per-address`.
    public var perAddress: UInt64 = 0
    /// Bytes of sessions that ended and of those that go on.
    public var up: UInt64 = 0
    public var down: UInt64 = 0
    public var dropped: UInt64 = 0
  }

  public struct Client: Hashable, Sendable {
    public var number: UInt64
    /// Nil where clients have none.
    public var address: String?
    /// Who he said to be, and has proved.
    public var user: String?
    /// What guards his connection: "TLS 1.3". Nil for nothing.
    public var tls: String?
    public var listener: String
    public var role: Config.Listen.Role
    public var nanoseconds: UInt64
    public var up: UInt64
    public var down: UInt64
    public var dropped: UInt64
    /// Bytes that are kept of what he sent, and for him.
    public var queuedUp: UInt64
    public var queuedDown: UInt64
    /// Nil where nobody needs one to write.
    public var hasPen: Bool?
    public var phase: Phase
    /// How long ago its FIN came, or it was told to go; nil for one that is open.
    public var closingNanoseconds: UInt64?

    public enum Phase: String, CaseIterable, Sendable {
      case open
      /// Its FIN came, and what it sent before is not delivered yet: `device.drain` bounds that.
      case closing
      /// He has finished sending, and may listen still.
      case halfClosed = "half-closed"
      /// He goes as soon as what is kept for him is out.
      case leaving
    }
  }
}

extension Snapshot.Totals {
  mutating func count(_ report: SessionReport) {
    ended[report.ending.word, default: 0] += 1
    if report.ending.cause is AddressIsFull { perAddress += 1 }
    add(up: report.up, down: report.down, dropped: report.dropped)
  }

  mutating func add(up: UInt64, down: UInt64, dropped: UInt64) {
    self.up &+= up
    self.down &+= down
    self.dropped &+= dropped
  }

  mutating func add(_ other: Snapshot.Totals) {
    ended.merge(other.ended, uniquingKeysWith: +)
    perAddress += other.perAddress
    add(up: other.up, down: other.down, dropped: other.dropped)
  }

  public var sessions: UInt64 { ended.values.reduce(0, +) }
}
