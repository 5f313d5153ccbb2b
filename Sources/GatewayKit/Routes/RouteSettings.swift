// What a route is told to do, as values that any lane may read. Made from the configuration once, when the route starts.

import ByteStreams
import StreamBroker

struct RouteSettings: Sendable {
  let name: String
  /// Opens the endpoint.
  let connector: any Connector
  /// The endpoint for log and status, secrets masked.
  let endpoint: String
  let maxClients: Int
  let hub: Hub.Policy
  let staysOpen: Bool
  /// Pauses between tries to open a shared link; nil on links of one client, which are tried once.
  let retry: ClosedRange<Duration>?
  let connectTimeout: Duration
  let discardsInput: Bool
  let sendsNotices: Bool
}

extension RouteSettings {
  /// The configuration has been checked: every scheme in it is built, and its connector has accepted the URL.
  init(_ route: Config.Route, connector: any Connector) {
    let isShared = route.link == .shared
    let flushes = route.device.flush.atConnect
    name = route.name
    self.connector = connector
    endpoint = route.endpoint.description
    maxClients = route.clients.max
    let isLine = type(of: connector).isLine
    hub = Hub.Policy(
      isShared: isShared, buffer: route.clients.buffer, backlog: route.clients.backlog,
      slow: route.clients.slow, dropsUnheard: isLine && flushes, drain: route.device.drain)
    staysOpen = isShared && route.device.open == .always
    retry = isShared ? route.device.retry : nil
    connectTimeout = route.device.connectTimeout
    discardsInput = isLine && flushes
    sendsNotices = route.clients.notices
  }
}
