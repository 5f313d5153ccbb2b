// The keys in which two configurations differ, by their names in the file. For the report of a reload: it has names and
// no values, so it shows no secret.

import StreamBroker

extension Config.Route {
  /// "listen", "endpoint", "endpoint.baud", "clients.max", …; in the order of `check`. Empty when they are equal.
  func keysThatDiffer(from old: Config.Route) -> [String] {
    var keys = ConfigKeys.ofRoute.differences(self, old)
    // A default that follows from `max` is no change of the file.
    if clients.followsMax && old.clients.followsMax { keys.removeAll { $0 == "clients.per-address" } }
    let hasOtherUsers = access.members != old.access.members || terminals.members != old.terminals.members
    if hasOtherUsers { keys.append("users") }
    return keys
  }
}

extension Config {
  /// Keys outside the routes: "log.level", "control.socket".
  func settingsThatDiffer(from old: Config) -> [String] {
    ConfigKeys.global.differences(self, old) + (users == old.users ? [] : ["users"])
  }
}

extension Config.Clients {
  fileprivate var followsMax: Bool { perAddress == Self.standardPerAddress(max) }
}

extension EndpointURL {
  func keysThatDiffer(from old: EndpointURL) -> [String] {
    guard self != old else { return [] }
    guard target == old.target else { return ["endpoint"] }
    let (new, before) = (settingsInForce, old.settingsInForce)
    return grammar.parameters.map(\.name).filter { name in
      new.filter { $0.name == name } != before.filter { $0.name == name }
    }.map { "endpoint.\($0)" }
  }
}
