// What the admin listener offers, by path. A path that is none of these may belong to a route on the same port.

/// A path of the admin listener.
enum AdminResource: Hashable, Sendable {
  /// A list of the others, for people.
  case index
  /// Whether the process works: all lanes answer.
  case health
  /// Whether clients can connect.
  case ready
  /// Figures for Prometheus.
  case metrics
  /// The description of the API.
  case openAPI
  case routes
  case route(String)
  case clients
  case devices
  case events
  case reload
  case kick(String)
  case reset(String)

  init?(path: String) {
    switch path {
    case "/": self = .index
    case "/healthz": self = .health
    case "/readyz": self = .ready
    case "/metrics": self = .metrics
    default:
      guard path.hasPrefix(Self.api) else { return nil }
      let words = path.dropFirst(Self.api.count).split(separator: "/", omittingEmptySubsequences: false).map(
        String.init)
      guard words.allSatisfy({ !$0.isEmpty }), let one = Self.api(words) else { return nil }
      self = one
    }
  }

  static let api = "/api/v1/"

  private static func api(_ words: [String]) -> AdminResource? {
    switch (words.count, words[0]) {
    case (1, "openapi.json"): .openAPI
    case (1, "routes"): .routes
    case (1, "clients"): .clients
    case (1, "devices"): .devices
    case (1, "events"): .events
    case (1, "reload"): .reload
    case (2, "routes"): .route(words[1])
    case (3, "routes") where words[2] == "kick": .kick(words[1])
    case (3, "routes") where words[2] == "reset": .reset(words[1])
    default: nil
    }
  }

  /// Whether no listener of a route on the same port may have this path: it is one of ours, now or in a later version.
  static func isReserved(_ path: String) -> Bool {
    ["/", "/healthz", "/readyz", "/metrics", "/api"].contains(path) || path.hasPrefix("/api/")
  }

  /// Whether a request needs credentials, where there are users. Probes have none.
  var needsLogIn: Bool { self != .health && self != .ready }

  /// Whether it changes something.
  var isChange: Bool {
    switch self {
    case .reload, .kick, .reset: true
    default: false
    }
  }

  var methods: [String] { isChange ? ["POST"] : ["GET", "HEAD"] }

  /// Query parameters that it understands.
  var parameters: Set<String> { self == .ready ? ["route"] : [] }
}
