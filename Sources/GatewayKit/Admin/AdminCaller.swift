// One client of the admin listener, and what it may do by its user's roles.

import StreamBroker

struct AdminCaller: Sendable {
  /// The user's name, or that of its certificate; nil where the gateway has no users.
  let name: String?
  /// The client for logs.
  let client: String?
  let identity: Identity
  /// Its connection; nil in tests.
  private(set) var label: AcceptedConnection.Label?
  /// Nil where the gateway has no users: then everything is allowed.
  private let user: Config.User?

  init(_ label: AcceptedConnection.Label, _ users: [Config.User]) {
    self.init(name: label.identity.name, client: label.client, users, label.identity)
    self.label = label
  }

  init(name: String?, client: String?, _ users: [Config.User], _ identity: Identity = .anonymous) {
    self.identity = identity
    self.name = name
    self.client = client
    guard users.contains(where: \.hasRole) else {
      user = nil
      return
    }
    // A name without a user has no role.
    user = users.first { $0.name == name } ?? Config.User(name: name ?? "", roles: [])
  }

  /// Nil if the route is hidden from it.
  func role(on route: String) -> Config.User.Role? { user.map { $0.fullRole(on: route) } ?? .admin }

  /// Its role where no route is meant.
  var generalRole: Config.User.Role? { user.map(\.generalRole) ?? .admin }

  /// Its name and what it may do, for a program that shows only that.
  func description(on routes: [String]) -> JSONValue {
    .object([
      "user": name.map { .text($0) }, "role": generalRole.map { .text($0.rawValue) },
      "routes": .object(
        routes.compactMap { route in
          role(on: route).map { JSONValue.Member(key: route, value: .text($0.rawValue)) }
        }),
    ])
  }

  /// A user sees the events of the routes on which it has a role, and with a role on all routes those of none.
  func sees(_ event: EventLog.Entry) -> Bool {
    event.route.map { role(on: $0) != nil } ?? (generalRole != nil)
  }
}
