// What a route is told to do, as constants that any lane may read. Made from the configuration when the route starts and at
// each reload that changes it.

import ByteStreams
import StreamBroker

/// A class, for every link of a client of his own has it: one reference to count instead of each field's.
final class RouteSettings: Sendable {
  let name: String
  /// Opens the endpoint.
  let connector: any Connector
  let url: EndpointURL
  /// The endpoint for log and status, secrets masked.
  let endpoint: String
  let maxClients: Int
  /// For one link.
  let descriptorsNeeded: Int
  let hub: Hub.Policy
  /// When the link is opened, what becomes of clients while it can't be, how it is closed.
  let device: Config.Device
  let discardsInput: Bool
  let sendsNotices: Bool
  let banner: Banner?
  /// Clients that begin with a request of HTTP are turned away.
  let refusesHTTP: Bool
  /// Nil for never.
  let idleTimeout: Duration?

  /// Without clients too.
  var staysOpen: Bool { hub.isShared && device.open == .always }
  var connectTimeout: Duration { device.connectTimeout }

  var devicePolicy: Device.Policy {
    // A link of one client is tried once.
    Device.Policy(
      retry: hub.isShared ? device.retry : nil, linger: device.linger, endsClients: device.absent == .close)
  }

  /// The configuration has been checked: every scheme in it is built, and its connector has accepted the URL.
  init(_ route: Config.Route, connector: any Connector) {
    let isShared = route.link == .shared
    let flushes = route.device.flush.atConnect
    name = route.name
    var stepped = connector as? any SteppedConnector
    stepped?.connectPatience = route.device.connectTimeout
    self.connector = stepped ?? connector
    url = route.endpoint
    maxClients = route.clients.max
    descriptorsNeeded = route.endpoint.descriptorsNeeded
    let isLine = type(of: connector).isLine
    hub = Hub.Policy(
      isShared: isShared, buffer: route.clients.buffer, backlog: route.clients.backlog,
      slow: route.clients.slow, dropsUnheard: isLine && flushes, drain: route.device.drain,
      halfClose: route.clients.halfClose,
      writers: route.clients.writers, takeover: route.clients.takeover,
      flushesBehindLast: isShared && route.device.flush.atDisconnect, packets: route.packets)
    device = route.device
    discardsInput = isLine && flushes
    sendsNotices = route.clients.notices
    let endpoint = route.endpoint.description
    self.endpoint = endpoint
    banner = route.clients.banner.map { Banner($0, route: route.name, endpoint: endpoint) }
    refusesHTTP = isShared && route.clients.refuseHttp
    idleTimeout = route.clients.idleTimeout
  }
}
