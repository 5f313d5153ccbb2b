// One client of the admin listener, and what it may do by its user's roles.

import StreamBroker

struct AdminCaller: Sendable {
  /// The user's name, or that of its certificate; nil where the gateway has no users.
  let name: String?
  /// The client for logs.
  let client: String?
  /// Nil where the gateway has no users: then everything is allowed.
  private let user: Config.User?

  init(_ label: AcceptedConnection.Label, _ users: [Config.User]) {
    self.init(name: label.identity.name, client: label.client, users)
  }

  init(name: String?, client: String?, _ users: [Config.User]) {
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
}
