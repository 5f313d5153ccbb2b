// Which keys of two configurations differ, by the names that the file has for them. For people who reload: it says what
// was changed, not to what, so no secret gets out.

import StreamBroker

extension Config.Route {
  /// "listen", "endpoint", "endpoint.baud", "clients.max", …; in the order of the type. Empty when they are equal.
  func keysThatDiffer(from old: Config.Route) -> [String] {
    var keys = listen == old.listen ? [] : ["listen"]
    keys += endpoint.keysThatDiffer(from: old.endpoint)
    if link != old.link { keys.append("link") }
    keys += differingProperties(clients, old.clients).map { "clients.\($0)" }
    // What follows from `max` where the file says nothing is no change of the file's.
    if clients.followsMax && old.clients.followsMax { keys.removeAll { $0 == "clients.per-address" } }
    keys += differingProperties(device, old.device).map { "device.\($0)" }
    switch (packets, old.packets) {
    case (let packets?, let old?): keys += differingProperties(packets, old).map { "packets.\($0)" }
    case (nil, nil): break
    default: keys.append("packets")
    }
    switch (tls, old.tls) {
    case (let tls?, let old?): keys += differingProperties(tls, old).map { "tls.\($0)" }
    case (nil, nil): break
    default: keys.append("tls")
    }
    switch (websocket, old.websocket) {
    case (let websocket?, let old?): keys += differingProperties(websocket, old).map { "websocket.\($0)" }
    case (nil, nil): break
    default: keys.append("websocket")
    }
    if access.only != old.access.only { keys.append("clients.users") }
    if access.members != old.access.members { keys.append("users") }
    return keys
  }
}

extension Config {
  /// Keys beside the routes: "log.level", "control.socket".
  func settingsThatDiffer(from old: Config) -> [String] {
    differingProperties(log, old.log).map { "log.\($0)" }
      + differingProperties(control, old.control).map { "control.\($0)" }
      + differingProperties(limits, old.limits).map { "limits.\($0)" }
      + (proxies == old.proxies ? [] : ["proxies"]) + (users == old.users ? [] : ["users"])
  }
}

extension Config.Clients {
  fileprivate var followsMax: Bool { perAddress == Self.standardPerAddress(max) }
}

extension EndpointURL {
  fileprivate func keysThatDiffer(from old: EndpointURL) -> [String] {
    guard self != old else { return [] }
    guard place == old.place else { return ["endpoint"] }
    let (new, before) = (settingsInForce, old.settingsInForce)
    return grammar.parameters.map(\.name).filter { name in
      new.filter { $0.name == name } != before.filter { $0.name == name }
    }.map { "endpoint.\($0)" }
  }
}

/// The names in the file of the properties that differ: `idleTimeout` stands there as `idle-timeout`. By reflection, so that
/// no new key can be forgotten.
private func differingProperties(_ new: some Hashable, _ old: some Hashable) -> [String] {
  zip(Mirror(reflecting: new).children, Mirror(reflecting: old).children).compactMap { new, old in
    guard let label = new.label, let one = new.value as? any Hashable, let other = old.value as? any Hashable else {
      return nil
    }
    return AnyHashable(one) == AnyHashable(other) ? nil : kebab(label)
  }
}

private func kebab(_ name: String) -> String {
  name.reduce(into: "") { $0 += $1.isUppercase ? "-\($1.lowercased())" : String($1) }
}
