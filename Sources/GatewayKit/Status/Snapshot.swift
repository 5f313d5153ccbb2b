// The state at one moment, as values: for `status`, and for an API or a metrics page. A gateway makes it on request
// (StatusReport); the control socket sends it as JSON (Snapshot+JSON.swift).

import ByteStreams
import StreamBroker

package struct Snapshot: Hashable, Sendable {
  package var version: String
  package var process: Int
  /// Since the gateway was created.
  package var nanoseconds: UInt64
  /// Every listener is bound. An absent device does not matter here.
  package var isHealthy: Bool
  /// Faults of certificate files.
  package var certificateFaults: [String] = []
  /// Clients that were refused since the start, by reason: "http-request".
  package var refused: [String: UInt64] = [:]
  /// The last reload, if it failed: the running configuration is then not that of the file.
  package var failedReload: FailedReload?
  package var handshakes: Handshakes?
  /// The listeners of `admin`.
  package var admin: [Listener] = []
  package var routes: [Route] = []

  package struct FailedReload: Hashable, Sendable {
    /// The first problems.
    package var problems: [String]
    /// How many more there are.
    package var more: Int
    /// Since the reload failed.
    package var nanoseconds: UInt64

    private static let most = 10

    init(problems: [String], more: Int = 0, nanoseconds: UInt64) {
      self.problems = Array(problems.prefix(Self.most))
      self.more = more + max(0, problems.count - Self.most)
      self.nanoseconds = nanoseconds
    }
  }

  /// Handshakes of TLS, requests and log-ins, at all listeners.
  package struct Handshakes: Hashable, Sendable {
    package var unfinished: Int
    package var most: Int
    /// Refused since the start, because `most` were unfinished or descriptors were short.
    package var refused: UInt64
  }

  package struct Route: Hashable, Sendable {
    package var name: String
    /// Secrets masked.
    package var endpoint: String
    package var link: Config.Link
    package var maxClients: Int
    /// Clients that wait for a slot.
    package var queued = 0
    package var listeners: [Listener] = []
    /// For a shared link.
    package var state: LinkState?
    /// For a route that is recorded.
    package var capture: Capture?
    /// For per-client links: their number by status word.
    package var links: [String: Int] = [:]
    package var totals = Totals()
    /// In order of arrival.
    package var clients: [Client] = []
    /// A lane did not answer within a second; its data is missing here.
    package var isStuck = false
  }

  package struct Listener: Hashable, Sendable {
    /// As the configuration names it.
    package var url: String
    package var state: State
    /// Time in this state.
    package var nanoseconds: UInt64
    /// Why some clients cannot find or reach it, although it listens.
    package var limit: String?

    package enum State: Hashable, Sendable {
      /// Not tried yet.
      case starting
      /// The address that it is bound to.
      case listening(String)
      case waiting(error: String, retry: Duration)
    }
  }

  package struct LinkState: Hashable, Sendable {
    /// A word of LinkStatus.
    package var word: String
    package var nanoseconds: UInt64
    /// For an open serial port: the settings in force, which may differ from those asked for: "115200 8N1".
    package var line: String?
    /// For an open link: what the device reports about itself.
    package var device: DeviceFacts?
    /// Why it waits.
    package var reason: String?
    /// It waits for `baudway reopen`.
    package var isReleased = false
    /// Time until the next try.
    package var retry: Duration?
    /// Why an open serial port sends nothing.
    package var hold: Hold?
    /// For an open serial port whose driver counts them: bytes lost because the hardware or the driver had no room,
    /// since it was opened.
    package var overruns: UInt64?
  }

  /// The recording of a route; the counts since the route started.
  package struct Capture: Hashable, Sendable {
    /// The present file, or the last one.
    package var file: String?
    /// Why it has stopped; nil while it records.
    package var error: String?
    /// Bytes in files.
    package var written: UInt64
    /// Bytes of clients and device that are in no file.
    package var dropped: UInt64
  }

  package struct Hold: Hashable, Sendable {
    package var cause: OutputHold.Cause
    /// Since then.
    package var nanoseconds: UInt64
  }

  /// Since the route started.
  package struct Totals: Hashable, Sendable {
    /// Ended sessions, including refused clients.
    package var ended: [Ending.Word: UInt64] = [:]
    /// The part of `full` that `clients.per-address` caused.
    package var perAddress: UInt64 = 0
    /// Bytes of ended and of current sessions.
    package var up: UInt64 = 0
    package var down: UInt64 = 0
    package var dropped: UInt64 = 0
    /// Requests of clients to change the line: carried out, and refused.
    package var lineChanges: UInt64 = 0
    package var lineRefusals: UInt64 = 0
  }

  package struct Client: Hashable, Sendable {
    package var number: UInt64
    /// Nil where clients have no address.
    package var address: String?
    /// The authenticated user.
    package var user: String?
    /// The TLS version: "TLS 1.3". Nil without TLS.
    package var tls: String?
    package var listener: String
    package var role: Config.Listen.Role
    package var nanoseconds: UInt64
    package var up: UInt64
    package var down: UInt64
    package var dropped: UInt64
    /// Bytes kept from the client, and for it.
    package var queuedUp: UInt64
    package var queuedDown: UInt64
    /// Nil where no client needs the writer role to write.
    package var isWriter: Bool?
    package var phase: Phase
    /// Time since its FIN came or the gateway began to end it; nil for an open session.
    package var closingNanoseconds: UInt64?

    package enum Phase: String, CaseIterable, Sendable {
      case open
      /// Its FIN came, and its earlier input is not delivered yet: `device.drain` bounds that.
      case closing
      /// It has finished sending, and may still receive.
      case halfClosed = "half-closed"
      /// The gateway ends it as soon as everything kept for it is sent.
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

  mutating func countLine(refused: Bool) { if refused { lineRefusals += 1 } else { lineChanges += 1 } }

  mutating func add(up: UInt64, down: UInt64, dropped: UInt64) {
    self.up &+= up
    self.down &+= down
    self.dropped &+= dropped
  }

  mutating func add(_ other: Snapshot.Totals) {
    ended.merge(other.ended, uniquingKeysWith: +)
    perAddress += other.perAddress
    lineChanges += other.lineChanges
    lineRefusals += other.lineRefusals
    add(up: other.up, down: other.down, dropped: other.dropped)
  }

  package var sessions: UInt64 { ended.values.reduce(0, +) }
}
