// In which order a plan is carried out, so that whoever takes over an address or a device finds it free: those who let go
// come first. A value: what has happened goes in, what may be done now comes out; the gateway does it.

import StreamBroker

struct Reloading {
  enum Step: Hashable {
    /// End the route. `letGo` when its listeners are closed, `over` when its device is, too.
    case stop(String)
    /// Give up the addresses that others wait for, and nothing else. `letGo` when that is done.
    case narrow(Config.Route)
    /// `over` when it is done.
    case update(Config.Route)
    case start(Config.Route)

    var name: String {
      switch self {
      case .stop(let name): name
      case .narrow(let route), .update(let route), .start(let route): route.name
      }
    }
  }

  /// Names of each route's device: as it is written, and where that leads today.
  typealias Devices = [String: Set<String>]

  private var first: [Step] = []
  /// Routes whose addresses are not free yet.
  private var closing: Set<String> = []
  private var left: [Step]
  /// Routes that something is under way with.
  private var busy: Set<String> = []
  /// What a route has and won't have any more.
  private var held: Devices = [:]
  private let wanted: Devices

  /// `had` and `wanted` are the devices before and after.
  init(_ plan: ReloadPlan, from old: [Config.Route], had: Devices = [:], wanted: Devices = [:]) {
    self.wanted = wanted
    left = plan.updated.map { .update($0) } + plan.started.map { .start($0) }
    let newcomers = plan.updated + plan.started
    for route in old {
      let dropped = (had[route.name] ?? []).subtracting(wanted[route.name] ?? [])
      if plan.stopped.contains(route.name) {
        first.append(.stop(route.name))
        held[route.name] = had[route.name] ?? []
      } else if let new = plan.updated.first(where: { $0.name == route.name }) {
        held[route.name] = dropped
        let kept = route.listen.filter { listen in
          new.listen.contains(listen)
            || !newcomers.contains { $0.name != route.name && $0.listen.contains { $0.collides(with: listen) } }
        }
        guard kept.count < route.listen.count else { continue }
        var narrow = route
        narrow.listen = kept
        first.append(.narrow(narrow))
      }
    }
    closing = Set(first.map(\.name))
  }

  var isOver: Bool { first.isEmpty && left.isEmpty && busy.isEmpty && closing.isEmpty }

  // MARK: - What has happened

  mutating func letGo(_ name: String) { closing.remove(name) }

  mutating func over(_ name: String) {
    closing.remove(name)
    busy.remove(name)
    held[name] = nil
  }

  // MARK: - What may be done

  /// Each step once, as soon as nobody else has what it needs.
  mutating func steps() -> [Step] {
    if !first.isEmpty {
      defer { first = [] }
      for case .stop(let name) in first { busy.insert(name) }
      return first
    }
    guard closing.isEmpty else { return [] }
    var ready = left.filter { mayDo($0) }
    // All wait for each other: they change places. Their links try again what is still in use.
    if ready.isEmpty && busy.isEmpty { ready = left }
    left.removeAll { ready.contains($0) }
    for case .update(let route) in ready { busy.insert(route.name) }
    return ready
  }

  private func mayDo(_ step: Step) -> Bool {
    guard !busy.contains(step.name) else { return false }  // the one of that name is still on its way out
    let needs = wanted[step.name] ?? []
    return held.allSatisfy { $0.key == step.name || $0.value.isDisjoint(with: needs) }
  }
}

extension Config.Listen {
  /// Whether one of them keeps the other from being bound.
  func collides(with other: Config.Listen) -> Bool {
    if isRFCOMM || other.isRFCOMM { return wantsChannel(of: other) }
    guard url.grammar.authority.isNetwork, other.url.grammar.authority.isNetwork else {
      return !url.path.isEmpty && url.path == other.url.path
    }
    guard port != 0, port == other.port else { return false }
    let all: Set = ["", "0.0.0.0", "::"]
    return url.host == other.url.host || all.contains(url.host) || all.contains(other.url.host)
  }
}
