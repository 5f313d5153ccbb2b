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
