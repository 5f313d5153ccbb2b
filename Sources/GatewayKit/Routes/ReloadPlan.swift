// What a new configuration (SIGHUP, `reload`) changes for each route: a value, from two configurations compared by
// name. GatewayCore+Reload.swift carries it out; Link+Reload.swift exchanges the endpoint of a route that stays.

import StreamBroker

struct ReloadPlan {
  /// Routes that are removed, and those that are replaced by one of the same name: their sessions end.
  private(set) var stopped: [String] = []
  /// Routes that get other settings; their clients stay.
  private(set) var updated: [Config.Route] = []
  /// Routes that start, including the replaced ones.
  private(set) var started: [Config.Route] = []
  private(set) var report = ReloadReport()

  /// Whether a device may move from one route to another.
  var movesDevices: Bool {
    let changes = report.changed.contains { $0.keys.contains { $0.hasPrefix("endpoint") } }
    return !started.isEmpty && !stopped.isEmpty || changes
  }

  init(from old: Config, to new: Config) {
    let before = Dictionary(uniqueKeysWithValues: old.routes.map { ($0.name, $0) })
    let names = Set(new.routes.map(\.name))
    report.removed = old.routes.map(\.name).filter { !names.contains($0) }
    stopped = report.removed
    for route in new.routes { compare(route, with: before[route.name]) }
    report.settings = new.settingsThatDiffer(from: old)
    if new.log != old.log { report.log = new.log }
  }

  private mutating func compare(_ route: Config.Route, with old: Config.Route?) {
    guard let old else {
      report.added.append(route.name)
      return started.append(route)
    }
    guard route != old else {
      report.untouched += 1
      return
    }
    report.changed.append(ReloadReport.Change(route: route.name, keys: route.keysThatDiffer(from: old)))
    // A change between a shared link and per-client links replaces the route: no client could keep its link.
    if route.link == old.link {
      updated.append(route)
    } else {
      stopped.append(route.name)
      started.append(route)
    }
  }
}
