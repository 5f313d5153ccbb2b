// The order in which a plan is carried out: routes that give up an address or a device come before those that need it.
// A value: what has happened goes in, the next steps come out; the gateway carries them out.

import StreamBroker

struct ReloadSequence {
  enum Step: Hashable {
    /// Stop the route. Call `letGo` when its listeners are closed, `over` when its device is closed, too.
    case stop(String)
    /// Close the listeners whose addresses others need, and nothing else. Call `letGo` when that is done.
    case narrow(Config.Route)
    /// Call `over` when it is done.
    case update(Config.Route)
    case start(Config.Route)

    var name: String {
      switch self {
      case .stop(let name): name
      case .narrow(let route), .update(let route), .start(let route): route.name
      }
    }
  }

  /// Names of each route's device: as written, and where that leads now.
  typealias Devices = [String: Set<String>]

  private var first: [Step] = []
  /// Routes whose addresses are not free yet.
  private var closing: Set<String> = []
  /// Remaining steps, one per route.
  private var left: [String: Step] = [:]
  private let order: [String]
  /// For each blocked route, the routes that hold what it needs; and the reverse.
  private var blockers: [String: Set<String>] = [:]
  private var blocked: [String: [String]] = [:]
  /// Routes that can be started or updated now.
  private var free: [String] = []
  /// Routes with a step in progress.
  private var busy: Set<String> = []

  /// `had` and `wanted` are the devices before and after.
  init(_ plan: ReloadPlan, from old: [Config.Route], had: Devices = [:], wanted: Devices = [:]) {
    let newcomers = plan.updated + plan.started
    let listeners = Listeners(newcomers)
    let stopped = Set(plan.stopped)
    let updated = Dictionary(uniqueKeysWithValues: plan.updated.map { ($0.name, $0) })
    // The routes that give up each device.
    var holders: [String: [String]] = [:]
    for route in old {
      let own = had[route.name] ?? []
      if stopped.contains(route.name) {
        first.append(.stop(route.name))
        for device in own { holders[device, default: []].append(route.name) }
      } else if let new = updated[route.name] {
        for device in own.subtracting(wanted[route.name] ?? []) { holders[device, default: []].append(route.name) }
        let kept = route.listen.filter { new.listen.contains($0) || !listeners.collide(with: $0, of: route.name) }
        guard kept.count < route.listen.count else { continue }
        var narrow = route
        narrow.listen = kept
        first.append(.narrow(narrow))
      }
    }
    closing = Set(first.map(\.name))
    order = newcomers.map(\.name)
    for step in plan.updated.map({ Step.update($0) }) + plan.started.map({ Step.start($0) }) {
      let name = step.name
      left[name] = step
      var others = Set((wanted[name] ?? []).flatMap { holders[$0] ?? [] })
      others.remove(name)
      if stopped.contains(name) { others.insert(name) }  // the old route of that name is still stopping
      if others.isEmpty {
        free.append(name)
      } else {
        for other in others { blocked[other, default: []].append(name) }
        blockers[name] = others
      }
    }
  }

  var isOver: Bool { first.isEmpty && left.isEmpty && busy.isEmpty && closing.isEmpty }

  // MARK: - Progress

  mutating func letGo(_ name: String) { closing.remove(name) }

  mutating func over(_ name: String) {
    closing.remove(name)
    busy.remove(name)
    for waiting in blocked.removeValue(forKey: name) ?? [] {
      blockers[waiting]?.remove(name)
      guard blockers[waiting]?.isEmpty ?? false else { continue }
      blockers[waiting] = nil
      free.append(waiting)
    }
  }

  // MARK: - Next steps

  /// Returns each step once, as soon as no other route holds what it needs.
  mutating func steps() -> [Step] {
    if !first.isEmpty {
      defer { first = [] }
      for case .stop(let name) in first { busy.insert(name) }
      return first
    }
    guard closing.isEmpty else { return [] }
    // All wait for each other, because they swap devices. Their links retry those that are still in use.
    if free.isEmpty && busy.isEmpty && !left.isEmpty { free = order }
    let ready = free.compactMap { left.removeValue(forKey: $0) }
    free = []
    for case .update(let route) in ready { busy.insert(route.name) }
    return ready
  }

  /// The addresses of routes, to find out whether another route needs one that collides with a given listener.
  private struct Listeners {
    /// At most two names: one of them may be the route that asks.
    private typealias Names = Set<String>
    private struct Port {
      var any: Names = []
      var all: Names = []
      var hosts: [String: Names] = [:]
    }
    private var ports: [Int: Port] = [:]
    private var paths: [String: Names] = [:]
    private var channels: [(name: String, listen: Config.Listen)] = []

    init(_ routes: [Config.Route]) {
      func add(_ name: String, to names: inout Names) { if names.count < 2 { names.insert(name) } }
      for route in routes {
        for listen in route.listen {
          if listen.isRFCOMM {
            channels.append((route.name, listen))
          } else if !listen.url.grammar.authority.isNetwork {
            add(route.name, to: &paths[listen.url.path, default: []])
          } else if listen.port != 0 {
            add(route.name, to: &ports[listen.port, default: Port()].any)
            if listen.isForAllAddresses { add(route.name, to: &ports[listen.port, default: Port()].all) }
            add(route.name, to: &ports[listen.port, default: Port()].hosts[listen.url.host, default: []])
          }
        }
      }
    }

    func collide(with listen: Config.Listen, of route: String) -> Bool {
      func hasAnother(_ names: Names?) -> Bool { names?.contains { $0 != route } ?? false }
      if listen.isRFCOMM { return channels.contains { $0.name != route && $0.listen.collides(with: listen) } }
      guard listen.url.grammar.authority.isNetwork else {
        return !listen.url.path.isEmpty && hasAnother(paths[listen.url.path])
      }
      guard let port = ports[listen.port] else { return false }
      return listen.isForAllAddresses
        ? hasAnother(port.any) : hasAnother(port.all) || hasAnother(port.hosts[listen.url.host])
    }
  }
}

extension Config.Listen {
  /// Whether the two cannot be bound at the same time.
  func collides(with other: Config.Listen) -> Bool {
    if isRFCOMM || other.isRFCOMM { return wantsChannel(of: other) }
    guard url.grammar.authority.isNetwork, other.url.grammar.authority.isNetwork else {
      return !url.path.isEmpty && url.path == other.url.path
    }
    guard port != 0, port == other.port else { return false }
    return url.host == other.url.host || isForAllAddresses || other.isForAllAddresses
  }

  /// All addresses of IPv4, IPv6 or both.
  fileprivate var isForAllAddresses: Bool { ["", "0.0.0.0", "::"].contains(url.host) }
}
