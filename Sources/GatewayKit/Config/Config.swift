// What the gateway shall do: plain values with every default filled in. ConfigFile makes these; the gateway compares
// and follows them. Nothing here knows YAML.

import ByteStreams
import StreamBroker

public struct Config: Hashable, Sendable {
  public var log: Log
  public var control: Control
  public var limits: Limits
  /// Whose PROXY headers are believed.
  public var proxies: [Network]
  /// In the order of the file; no two have one name.
  public var users: [User]
  /// In the order of the file; no two have one name.
  public var routes: [Route]

  public struct Log: Hashable, Sendable {
    public var level: Level
    public var format: Format
    /// What becomes of lines that clients or absent devices could repeat without end.
    public var repeats: Repeats

    public init(level: Level, format: Format, repeats: Repeats = .summary) {
      self.level = level
      self.format = format
      self.repeats = repeats
    }

    /// The levels of swift-log.
    public enum Level: String, CaseIterable, Sendable { case trace, debug, info, notice, warning, error, critical }
    public enum Format: String, CaseIterable, Sendable { case text, json }
    public enum Repeats: String, CaseIterable, Sendable { case summary, all }
  }

  public struct Control: Hashable, Sendable {
    public var socket: Socket

    public enum Socket: Hashable, Sendable {
      /// $RUNTIME_DIRECTORY, /run/baudway, else abstract.
      case automatic
      case path(String)
      case off
    }
  }

  public struct Route: Hashable, Sendable {
    /// Its identity across reloads, in logs, metrics and paths: `[a-z0-9._-]+`.
    public var name: String
    public var listen: [Listen]
    public var endpoint: EndpointURL
    public var link: Link
    public var clients: Clients
    public var device: Device
    /// Nil where bytes are passed on as they come.
    public var packets: Packets?
    /// Nil where no listener needs it.
    public var tls: TLS?
    public var websocket: WebSocket?
    /// Who may come in at listeners that know their clients.
    public var access: Access
  }

  public enum Link: String, CaseIterable, Sendable {
    /// One link for all clients of the route.
    case shared
    /// A link for each.
    case perClient = "per-client"
  }

  /// An address on which clients arrive. The URL is of ListenerSchemes.
  public struct Listen: Hashable, Sendable {
    public var url: EndpointURL

    public var scheme: String { url.scheme }
    /// What it is called in events: not by its settings, which a reload may change under it; but for the name (SNI) by which it
    /// differs from others on its port, or by what names a Bluetooth service.
    public var place: String { url.place + nameShown }
    var nameShown: String {
      isRFCOMM ? url.query { Self.rfcommNames.contains($0) } : url.query { $0 == "server-name" }
    }
    /// Nil for all addresses, IPv4 and IPv6.
    public var host: String? { url.host.isEmpty ? nil : url.host }
    /// 0 lets the system choose.
    public var port: Int { url.port ?? 0 }
    /// The most its clients may do.
    public var role: Role { Role(rawValue: url.string("role") ?? "") ?? .writer }

    public enum Role: String, CaseIterable, Sendable { case writer, monitor }
  }

  public struct Clients: Hashable, Sendable {
    public var max: Int
    public var whenFull: WhenFull
    public var writers: Writers
    /// With one writer: what becomes of the pen when somebody else wants it.
    public var takeover: Takeover
    public var slow: Slow
    /// Bytes, per direction.
    public var buffer: Int
    /// Bytes of device output kept for newcomers.
    public var backlog: Int
    /// A client ends after so long without a byte either way; nil = never.
    public var idleTimeout: Duration?
    /// Shared links: how long a client still receives after its FIN; nil = its FIN ends the session.
    public var halfClose: Duration?
    /// Whether dead peers are looked for.
    public var keepalive: Bool
    /// Whether people are told in lines of text.
    public var notices: Bool
    /// Whether a client that begins with an HTTP request is refused. Only on shared links, over TCP and TLS.
    public var refuseHttp: Bool
    /// How many of one address may be here at once, loopback and proxies apart; nil = any number.
    public var perAddress: Int?
    /// Who may come; nil = all.
    public var allow: [Network]?
    /// Who of those may not.
    public var deny: [Network]
    /// What a newcomer reads first, with `{route}`, `{endpoint}` and `{client}` to be filled in.
    public var banner: String?

    /// What happens to one client more than `max`.
    public enum WhenFull: String, CaseIterable, Sendable {
      case refuse
      /// The one who came first goes.
      case replaceOldest = "replace-oldest"
      /// He waits for a place, in the order of coming.
      case queue
    }

    /// Who may send to the endpoint.
    public enum Writers: String, CaseIterable, Sendable {
      case all
      /// The one who has the pen: the first, until he leaves or it is taken over.
      case one
      case none
    }

    public enum Takeover: Hashable, Sendable {
      case refuse
      /// Who comes last has it.
      case newest
      /// Whoever writes has it, when its holder has written nothing for so long.
      case idle(Duration)
    }

    public enum Slow: String, CaseIterable, Sendable {
      /// Alone: block. With others: disconnect.
      case automatic = "auto"
      case block, disconnect
      /// He loses the oldest of what is kept for him.
      case dropOldest = "drop-oldest"
    }
  }

  public struct Device: Hashable, Sendable {
    public var open: Open
    /// How long the link stays open after the last client.
    public var linger: Duration
    /// What becomes of clients while the device is not there.
    public var absent: Absent
    /// First and longest pause between two tries.
    public var retry: ClosedRange<Duration>
    public var connectTimeout: Duration
    /// How long without progress what a client left behind is still delivered.
    public var drain: Duration
    public var flush: Flush
    /// Sent to the device when the link has opened, and before it is closed.
    public var onOpen: [UInt8]
    public var onClose: [UInt8]

    public enum Open: String, CaseIterable, Sendable {
      case onDemand = "on-demand"
      case always
    }
    public enum Absent: String, CaseIterable, Sendable {
      /// They stay; what they send is kept up to `clients.buffer`, then not read.
      case hold
      /// They stay; what they send is dropped and counted.
      case discard
      case close
    }
    /// When what nobody has heard, or what was not sent yet, is thrown away.
    public enum Flush: String, CaseIterable, Sendable {
      case connect, none, disconnect, both

      public var atConnect: Bool { self == .connect || self == .both }
      public var atDisconnect: Bool { self == .disconnect || self == .both }
    }
  }

  /// How the device's bytes are cut into packets. One that is begun is never split between writers, and dropped only whole.
  public struct Packets: Hashable, Sendable {
    /// So long a silence ends one.
    public var idle: Duration?
    /// Bytes of the longest one.
    public var max: Int?
    /// Its last bytes.
    public var delimiter: [UInt8]?
  }
}

extension Config.Route {
  /// The most bytes it can hold at once: one ring of device output for each link, one of input for each client.
  public var worstCaseMemory: Int {
    // One who loses packets still gets the rest of the one he has half.
    let rest =
      packets == nil || clients.slow != .dropOldest ? 0 : min(packets?.max ?? .max, clients.buffer + clients.backlog)
    return switch link {
    case .shared: clients.buffer + clients.backlog + clients.max * (clients.buffer + rest)
    case .perClient: clients.max * (2 * clients.buffer + rest)
    }
  }
}
