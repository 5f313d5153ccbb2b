// The configuration as plain values, with every default filled in. ConfigFile makes them from YAML; the gateway
// compares and applies them. ConfigKeys binds each property to its key. The key's default is the property's initial
// value.

import ByteStreams
import StreamBroker

package struct Config: Hashable, Sendable, KeyOwner {
  package var log = Log()
  package var control = Control()
  package var admin = Admin()
  package var limits = Limits()
  /// Networks whose PROXY headers are believed.
  package var proxies: [AddressBlock] = []
  /// In the order of the file; names are unique.
  package var users: [User] = []
  /// In the order of the file; names are unique.
  package var routes: [Route] = []
  /// Paths of included files, with `*` for any ending, for `serve --watch`. Only of a configuration that was loaded.
  package var includes: [String] = []

  package struct Log: Hashable, Sendable, KeyOwner {
    package var level = Level.info
    package var format = Format.text
    /// How to log lines that clients or absent devices could repeat without end.
    package var repeats = Repeats.summary

    init() {}

    package init(level: Level, format: Format, repeats: Repeats = .summary) {
      self.level = level
      self.format = format
      self.repeats = repeats
    }

    /// The levels of swift-log.
    package enum Level: String, CaseIterable, Sendable { case trace, debug, info, notice, warning, error, critical }
    package enum Format: String, CaseIterable, Sendable { case text, json }
    package enum Repeats: String, CaseIterable, Sendable { case summary, all }
  }

  package struct Control: Hashable, Sendable, KeyOwner {
    package var socket = Socket.automatic

    package enum Socket: Hashable, Sendable {
      /// In $RUNTIME_DIRECTORY or /run/baudway, else at an abstract address.
      case automatic
      case path(String)
      case off
    }
  }

  package struct Route: Hashable, Sendable {
    /// Identifies the route across reloads, in logs, metrics and paths: `[a-z0-9._-]+`.
    package var name: String
    package var listen: [Listen]
    package var endpoint: EndpointURL
    package var link: Link
    package var clients: Clients
    package var device: Device
    /// Nil = bytes are forwarded as they come.
    package var packets: Packets?
    /// Nil = nothing is recorded.
    package var capture: Capture?
    /// Nil when no listener uses TLS.
    package var tls: TLS?
    package var websocket: WebSocket?
    /// Which users may connect, where a listener can identify them.
    package var access: Access
    /// Which users may open a terminal at the admin listener.
    package var terminals = Access.open
  }

  package enum Link: String, CaseIterable, Sendable {
    /// One link for all clients of the route.
    case shared
    /// One link for each client.
    case perClient = "per-client"
  }

  /// An address on which clients connect. Its scheme is one of ListenerSchemes.
  package struct Listen: Hashable, Sendable {
    package var url: EndpointURL

    package var scheme: String { url.scheme }
    /// The listener's name in events: the URL without its settings, which a reload may change. It keeps `server-name`
    /// (SNI), by which listeners on one port differ, and the settings that name a Bluetooth service.
    package var target: String { url.target + nameShown }
    var nameShown: String {
      isRFCOMM ? url.query { Self.rfcommNames.contains($0) } : url.query { $0 == "server-name" }
    }
    /// Nil = all addresses, IPv4 and IPv6.
    package var host: String? { url.host.isEmpty ? nil : url.host }
    /// 0 = the system chooses.
    package var port: Int { url.port ?? 0 }
    /// The highest role of its clients.
    package var role: Role { Role(rawValue: url.string("role") ?? "") ?? .writer }

    package enum Role: String, CaseIterable, Sendable { case writer, monitor }
  }

  package struct Clients: Hashable, Sendable, KeyOwner {
    package var max = 8
    package var whenFull = WhenFull.refuse
    package var writers = Writers.all
    /// With one writer: what happens when another client wants the writer role.
    package var takeover = Takeover.refuse
    package var slow = Slow.automatic
    /// Bytes, per direction.
    package var buffer = 64 << 10
    /// Bytes of device output kept for new clients.
    package var backlog = 0
    /// A client is disconnected after this time without a byte in either direction; nil = never.
    package var idleTimeout: Duration?
    /// Shared links: how long a client still receives after its FIN; nil = its FIN ends the session.
    package var halfClose: Duration? = .seconds(5)
    /// Whether dead peers are detected.
    package var keepalive = true
    /// Whether clients get notices as lines of text, such as why they are refused.
    package var notices = true
    /// Whether a client that begins with an HTTP request is refused. Only on shared links, over TCP and TLS.
    package var refuseHttp = true
    /// The most clients of one address at a time, except loopback and proxies; nil = any number.
    package var perAddress: Int?
    /// Networks that may connect; nil = all.
    package var allow: [AddressBlock]?
    /// Networks among them that may not.
    package var deny: [AddressBlock] = []
    /// Names of users and subjects of certificates that may connect; nil = all that can log in.
    package var users: [String]?
    /// The first text for a new client; `{route}`, `{endpoint}` and `{client}` are filled in.
    package var banner: String?

    /// What happens to a client that connects beyond `max`.
    package enum WhenFull: String, CaseIterable, Sendable {
      case refuse
      /// The client that has been connected longest is disconnected.
      case replaceOldest = "replace-oldest"
      /// The client waits for a slot, in order of arrival.
      case queue
    }

    /// Which clients may send to the endpoint.
    package enum Writers: String, CaseIterable, Sendable {
      case all
      /// Only the client with the writer role: the first, until it disconnects or another takes over the role.
      case one
      case none
    }

    package enum Takeover: Hashable, Sendable {
      case refuse
      /// The client that connected last gets the role.
      case newest
      /// A client that writes gets the role, if its holder has written nothing for this long.
      case idle(Duration)
    }

    package enum Slow: String, CaseIterable, Sendable {
      /// One client: block. Several: disconnect.
      case automatic = "auto"
      case block, disconnect
      /// The client loses the oldest bytes kept for it.
      case dropOldest = "drop-oldest"
    }
  }

  package struct Device: Hashable, Sendable, KeyOwner {
    package var open = Open.onDemand
    /// How long the link stays open after the last client.
    package var linger = Duration.zero
    /// What happens to clients while the device is absent.
    package var absent = Absent.hold
    /// First and longest pause between two tries.
    package var retry: ClosedRange<Duration> = .milliseconds(250) ... .seconds(30)
    package var connectTimeout = Duration.seconds(10)
    /// Input of a client that has left is given up after this long without progress.
    package var drain = Duration.seconds(5)
    package var flush = Flush.connect
    /// Sent to the device when the link has opened, and before it is closed.
    package var onOpen: [UInt8] = []
    package var onClose: [UInt8] = []
    /// The sequence on DTR and RTS that is recognised and replayed with exact times. Nil: none.
    package var reset: ResetRecipe?

    package enum Open: String, CaseIterable, Sendable {
      case onDemand = "on-demand"
      case always
    }
    package enum Absent: String, CaseIterable, Sendable {
      /// Clients stay; their input is kept up to `clients.buffer`, then not read.
      case hold
      /// Clients stay; their input is dropped and counted.
      case discard
      case close
    }
    /// When the gateway drops output that no client got, and input that is not sent yet.
    package enum Flush: String, CaseIterable, Sendable {
      case connect, none, disconnect, both

      package var atConnect: Bool { self == .connect || self == .both }
      package var atDisconnect: Bool { self == .disconnect || self == .both }
    }
  }

  /// How the device's bytes are divided into packets. A packet is never split between writers, and dropped only whole.
  package struct Packets: Hashable, Sendable, KeyOwner {
    /// Idle gap that ends a packet.
    package var idle: Duration?
    /// Bytes of the longest packet.
    package var max: Int?
    /// The last bytes of a packet.
    package var delimiter: [UInt8]?
    /// How long the device may take for its answer to one client's packet. Nil: packets go out as they come.
    package var exchange: Duration?
  }

  /// How the bytes of a shared link are recorded.
  package struct Capture: Hashable, Sendable, KeyOwner {
    /// With `{route}` and `{date}`; a relative name begins in the state folder.
    package var file = ""
    package var format = Format.pcapng
    /// The size at which the next file begins, in bytes.
    package var rotate: Int? = 100 << 20
    /// At multiples of this time the next file begins; since 1970, in UTC.
    package var rotateEvery: Duration?
    /// Older files that stay. Nil: all.
    package var keep: Int? = 10

    package enum Format: String, CaseIterable, Sendable {
      case pcapng, text, hex, raw
    }
  }
}

extension Config.Route {
  /// The most bytes that the route can hold: one ring of device output for each link, one of input for each client.
  package var worstCaseMemory: Int {
    // A slow client that loses packets, as any terminal may, still receives the rest of a packet that it has received in
    // part.
    let rest = packets == nil ? 0 : min(packets?.max ?? .max, clients.buffer + clients.backlog)
    return switch link {
    case .shared:
      clients.buffer + clients.backlog + clients.max * (clients.buffer + rest)
        + (capture == nil ? 0 : CaptureBuffer.capacity)
    case .perClient: clients.max * (2 * clients.buffer + rest)
    }
  }
}
