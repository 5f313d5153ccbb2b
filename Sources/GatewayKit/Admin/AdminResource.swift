// What the admin listener offers, by path. A path that is none of these may belong to a route on the same port.

/// A path of the admin listener.
enum AdminResource: Hashable, Sendable {
  /// The status page, or a file that it needs.
  case file(AdminFile)
  /// Whether the process works: all lanes answer.
  case health
  /// Whether clients can connect.
  case ready
  /// Figures for Prometheus.
  case metrics
  /// The description of the API.
  case openAPI
  /// The user's name and roles.
  case user
  case routes
  case route(String)
  case clients
  case devices
  case events
  /// The latest events: those of a route, or all.
  case log(String?)
  case reload
  case kick(String)
  case reset(String)
  case release(String)
  case reopen(String)
  case line(String)
  case writer(String)
  case send(String)
  /// A WebSocket to a route, for a terminal in a browser; and the ticket that a browser needs for it.
  case terminal(String)

  init?(path: String) {
    switch path {
    case "/healthz": self = .health
    case "/readyz": self = .ready
    case "/metrics": self = .metrics
    default:
      if let file = AdminFile(path: path) {
        self = .file(file)
        return
      }
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
    case (1, "user"): .user
    case (1, "log"): .log(nil)
    case (1, "routes"): .routes
    case (1, "clients"): .clients
    case (1, "devices"): .devices
    case (1, "events"): .events
    case (1, "reload"): .reload
    case (2, "routes"): .route(words[1])
    case (3, "routes") where words[2] == "log": .log(words[1])
    case (3, "routes") where words[2] == "kick": .kick(words[1])
    case (3, "routes") where words[2] == "reset": .reset(words[1])
    case (3, "routes") where words[2] == "release": .release(words[1])
    case (3, "routes") where words[2] == "reopen": .reopen(words[1])
    case (3, "routes") where words[2] == "line": .line(words[1])
    case (3, "routes") where words[2] == "writer": .writer(words[1])
    case (3, "routes") where words[2] == "send": .send(words[1])
    case (3, "routes") where words[2] == "terminal": .terminal(words[1])
    default: nil
    }
  }

  /// Whether no listener of a route on the same port may have this path: it is one of ours, now or in a later version.
  static func isReserved(_ path: String) -> Bool {
    ["/", "/healthz", "/readyz", "/metrics", "/api", "/page"].contains(path)
      || path.hasPrefix("/api/") || path.hasPrefix("/page/")
  }

  /// Whether programs ask for it that have neither credentials nor the gateway's name.
  var isProbe: Bool { self == .health || self == .ready }

  /// Whether a request needs credentials, where there are users. The page asks for them itself.
  var needsLogIn: Bool { if case .file = self { false } else { !isProbe } }

  /// Whether it changes something.
  var isChange: Bool {
    switch self {
    case .reload, .kick, .reset, .release, .reopen, .line, .writer, .send: true
    default: false
    }
  }

  var methods: [String] {
    switch self {
    case .terminal: ["GET", "POST"]
    case _ where isChange: ["POST"]
    default: ["GET", "HEAD"]
    }
  }

  /// Query parameters that it understands.
  var parameters: Set<String> { self == .ready ? ["route"] : [] }
}
