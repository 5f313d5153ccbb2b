// What the gateway shall do: plain values with every default filled in. ConfigFile makes these; the gateway compares
// and follows them. Nothing here knows YAML.

import StreamBroker

public struct Config: Hashable, Sendable {
  public var log: Log
  public var control: Control
  /// In the order of the file; no two have one name.
  public var routes: [Route]

  public struct Log: Hashable, Sendable {
    public var level: Level
    public var format: Format

    /// The levels of swift-log.
    public enum Level: String, CaseIterable, Sendable { case trace, debug, info, notice, warning, error, critical }
    public enum Format: String, CaseIterable, Sendable { case text, json }
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
    /// Nil for all addresses, IPv4 and IPv6.
    public var host: String? { url.host.isEmpty ? nil : url.host }
    /// 0 lets the system choose.
    public var port: Int { url.port ?? 0 }
  }

  public struct Clients: Hashable, Sendable {
    public var max: Int
    public var slow: Slow
    /// Bytes, per direction.
    public var buffer: Int
    /// Bytes of device output kept for newcomers.
    public var backlog: Int
    /// Whether dead peers are looked for.
    public var keepalive: Bool
    /// Whether people are told in lines of text.
    public var notices: Bool

    public enum Slow: String, CaseIterable, Sendable {
      /// Alone: block. With others: disconnect.
      case automatic = "auto"
      case block, disconnect
    }
  }

  public struct Device: Hashable, Sendable {
    public var open: Open
    /// First and longest pause between two tries.
    public var retry: ClosedRange<Duration>
    public var connectTimeout: Duration
    /// How long without progress what a client left behind is still delivered.
    public var drain: Duration
    public var flush: Flush

    public enum Open: String, CaseIterable, Sendable {
      case onDemand = "on-demand"
      case always
    }
    public enum Flush: String, CaseIterable, Sendable { case connect, none }
  }
}

extension Config.Route {
  /// The most bytes its rings can hold at once: one ring of device output for each link, one of input for each client.
  public var worstCaseMemory: Int {
    switch link {
    case .shared: clients.buffer + clients.backlog + clients.max * clients.buffer
    case .perClient: 2 * clients.max * clients.buffer
    }
  }
}
