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

  init?(path: String) {
    switch path {
    case "/": self = .index
    case "/healthz": self = .health
    case "/readyz": self = .ready
    case "/metrics": self = .metrics
    default: return nil
    }
  }

  /// Whether no listener of a route on the same port may have this path: it is one of ours, now or in a later version.
  static func isReserved(_ path: String) -> Bool {
    ["/", "/healthz", "/readyz", "/metrics", "/api"].contains(path) || path.hasPrefix("/api/")
  }

  /// Whether a request needs credentials, where there are users. Probes have none.
  var needsLogIn: Bool { self != .health && self != .ready }

  /// HEAD goes with GET.
  var methods: [String] { ["GET", "HEAD"] }

  /// Query parameters that it understands.
  var parameters: Set<String> { self == .ready ? ["route"] : [] }
}
