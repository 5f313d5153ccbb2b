// What a new configuration means for the routes that there are: a value, compared by name. The gateway carries it out.

import StreamBroker

struct ReloadPlan {
  /// Those that go, and those of the same name that can't stay what they are: their sessions end.
  private(set) var stopped: [String] = []
  /// Those that stay and take on other settings; their clients stay with them.
  private(set) var updated: [Config.Route] = []
  /// Those that begin, the replaced ones among them.
  private(set) var started: [Config.Route] = []
  private(set) var report = ReloadReport()

  /// Whether a device may pass from one route to another.
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
    // A link of its own for each client is another kind of route than one for all: no client could stay on his.
    if route.link == old.link {
      updated.append(route)
    } else {
      stopped.append(route.name)
      started.append(route)
    }
  }
}
