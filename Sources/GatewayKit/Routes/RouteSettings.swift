// The settings of a route as constants that any lane may read. Made from the configuration when the route starts, and
// at each reload that changes it.

import ByteStreams
import StreamBroker

/// A class, since every per-client link has it: one reference to count instead of one for each field.
final class RouteSettings: Sendable {
  let name: String
  /// Opens the endpoint.
  let connector: any Connector
  /// Reports the endpoint's messages for people.
  let remark: @Sendable (EndpointRemark) -> Void
  let url: EndpointURL
  /// Finds out whether the endpoint leads back to the route; nil for one that can't.
  private let origin: OwnConnections.Origin?
  /// The endpoint for log and status, secrets masked.
  let endpoint: String
  /// Descriptors that one link needs.
  let descriptorsNeeded: Int
  /// One copy for all hubs.
  let hubPolicy: Hub.SharedPolicy
  var hub: Hub.Policy { hubPolicy.value }
  /// When the link is opened, what happens to clients while it can't be, how it is closed.
  let device: Config.Device
  let discardsInput: Bool
  let sendsNotices: Bool
  let banner: Banner?
  /// Refuses clients that begin with an HTTP request.
  let refusesHTTP: Bool
  /// Nil = never.
  let idleTimeout: Duration?
  /// Nil: nothing is recorded.
  let capture: Config.Capture?

  /// The link stays open without clients.
  var staysOpen: Bool { hub.isShared && device.open == .always }
  var connectTimeout: Duration { device.connectTimeout }
  /// Nil: connecting is the only step.
  var longestOpening: Duration? { connector.longestOpening(connectTimeout: connectTimeout) }

  let devicePolicy: LinkStateMachine.Policy

  /// For a connection to the endpoint; nil for one that can't come back.
  func dial() -> OwnConnections.Dial? { origin.map(OwnConnections.Dial.init) }

  /// The configuration has been checked: every scheme in it is built, and its connector has accepted the URL.
  init(
    _ route: Config.Route, connector: any Connector, ownConnections: OwnConnections = OwnConnections(),
    remark: @escaping @Sendable (EndpointRemark) -> Void = { _ in }
  ) {
    let isShared = route.link == .shared
    let flushes = route.device.flush.atConnect
    name = route.name
    self.connector = connector
    self.remark = remark
    url = route.endpoint
    let connects = url.grammar.authority.isNetwork || url.scheme == EndpointSchemes.unix.scheme
    origin = connects ? OwnConnections.Origin(name, url, in: ownConnections) : nil
    descriptorsNeeded = route.endpoint.descriptorsNeeded
    let isLine = type(of: connector).isLine
    let hub = Hub.Policy(
      isShared: isShared, buffer: route.clients.buffer, backlog: route.clients.backlog,
      slow: route.clients.slow, dropsWithoutClients: isLine && flushes, drain: route.device.drain,
      halfClose: route.clients.halfClose,
      writers: route.clients.writers, takeover: route.clients.takeover,
      flushesAfterLast: isShared && route.device.flush.atDisconnect, packets: route.packets,
      reset: route.device.reset)
    hubPolicy = Hub.SharedPolicy(hub)
    device = route.device
    // A per-client link is tried once.
    devicePolicy = LinkStateMachine.Policy(
      retry: isShared ? route.device.retry : nil, linger: route.device.linger,
      endsClients: route.device.absent == .close)
    discardsInput = isLine && flushes
    sendsNotices = route.clients.notices
    let endpoint = route.endpoint.description
    self.endpoint = endpoint
    banner = route.clients.banner.map { Banner($0, route: route.name, endpoint: endpoint) }
    refusesHTTP = isShared && route.clients.refuseHttp
    idleTimeout = route.clients.idleTimeout
    capture = route.capture
  }
}
