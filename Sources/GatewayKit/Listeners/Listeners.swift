// The list of listener kinds: one line each.

import ByteStreams

/// Where a route's clients arrive, from the configuration.
struct ListenAddress: Hashable, Sendable {
  let scheme: String
  /// Nil for all addresses.
  let host: String?
  let port: UInt16
  let url: String
}

enum Listeners {
  static func make(_ address: ListenAddress, _ context: ListenerContext) -> any Listener {
    switch address.scheme {
    case "tcp": TCPListener(host: address.host, port: address.port, url: address.url, context)
    default: preconditionFailure("the configuration lets no listener through that is not built")
    }
  }
}
