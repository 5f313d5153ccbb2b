// The current state of routes and their listeners, collected from events, for `health` and the listeners' part of
// `status`. Figures that change with every client are not here: StatusReport asks the lanes for them. Any thread may
// use it.

import ByteStreams
import StreamBroker
import Synchronization

package final class StatusBoard: Sendable {
  struct Listener: Sendable {
    let url: String
    var state: Snapshot.Listener.State
    /// Nanoseconds on the lanes' clock.
    var since: UInt64
    var limit: String?
  }

  fileprivate struct Picture {
    /// The listeners of each route, in the order of the configuration.
    var listeners: [String: [Listener]] = [:]
    var isRunning = false
    var certificateFaults: [String] = []
    var failedReload: (problems: [String], at: UInt64)?
  }

  private let picture = Mutex(Picture())
  /// Clients that were refused since the start, by reason: see CountedRefusal.
  private let refusals = Mutex<[String: UInt64]>([:])

  private let clock: LaneClock

  package init(clock: LaneClock = .monotonic) { self.clock = clock }

  // MARK: - Events

  package func observe(_ event: StatusEvent) {
    switch event {
    case .sessionEnded(_, _, _, let report):
      switch report.ending.word {
      case .denied, .full: return count(report.ending.cause)
      default: return
      }
    case .requestRefused(_, let fault): return count(fault)
    // Frequent events change nothing here, so lanes need not wait for the lock.
    case .sessionOpened, .link, .clientLink, .writerChanged, .lineAsked, .dropped, .linkDropped, .deviceKnown,
      .portShared, .subprotocolUnknown, .captureBegun, .captureDrops, .captureStopped:
      return
    default: break
    }
    let now = clock.now()
    picture.withLock { picture in
      switch event {
      case .started: picture.isRunning = true
      case .routeConfigured(let route, let urls): picture.expect(urls, of: route, at: now)
      case .listening(let route, let url, let bound):
        picture.note(.listening(bound), of: url, route, at: now) { $0.bound == nil }
      case .listenerWaits(let route, let url, let error, let retry):
        picture.note(.waiting(error: error.description, retry: retry), of: url, route, at: now) { $0.bound == nil }
      case .listenerClosed(let route, let url, let bound):
        picture.forget(url, route) { $0.bound == bound }
      case .listenerLimited(let route, let name, let limits):
        picture.limit(limits.isEmpty ? nil : limits.map(\.description).joined(separator: " | "), name, route)
      case .routeStopped(let route): picture.listeners[route] = nil
      case .certificateFaults(let faults): picture.certificateFaults = faults
      case .reloadFailed(let problems): picture.failedReload = (problems, now)
      case .reloaded(let report) where !report.newerWasRefused: picture.failedReload = nil
      case .stopping: picture.isRunning = false
      default: break
      }
    }
  }

  /// The route will start, or get these listeners. `isHealthy` is false until each of them is bound.
  func expect(_ urls: [String], of route: String) { picture.withLock { $0.expect(urls, of: route, at: clock.now()) } }

  private func count(_ fault: (any Error)?) {
    guard let counter = (fault as? any CountedRefusal)?.counter else { return }
    refusals.withLock { $0[counter, default: 0] += 1 }
  }

  // MARK: - Queries

  /// Clients that were refused since the start, by reason.
  var refused: [String: UInt64] { refusals.withLock { $0 } }

  /// The gateway runs and every listener is bound. An absent device does not matter here.
  package var isHealthy: Bool { picture.withLock { $0.isHealthy } }

  /// Every listener has been tried at least once.
  var isSettled: Bool {
    picture.withLock { picture in
      picture.listeners.values.allSatisfy { listeners in listeners.allSatisfy { $0.state != .starting } }
    }
  }

  /// Faults of certificate files.
  var certificateFaults: [String] { picture.withLock { $0.certificateFaults } }

  /// Nil when the newest reload was carried out, or there was none.
  var failedReload: Snapshot.FailedReload? {
    let now = clock.now()
    return picture.withLock { $0.failedReload }.map { failed in
      Snapshot.FailedReload(problems: failed.problems, nanoseconds: now &- failed.at)
    }
  }

  func listeners(of route: String) -> [Snapshot.Listener] {
    let now = clock.now()
    return picture.withLock { picture in
      (picture.listeners[route] ?? []).map { listener in
        Snapshot.Listener(
          url: listener.url, state: listener.state, nanoseconds: now &- listener.since, limit: listener.limit)
      }
    }
  }

  var health: JSONValue {
    picture.withLock { picture in
      let waiting = picture.listeners.values.joined().count { $0.bound == nil }
      let routes = picture.listeners.count { $0.key != AdminServer.owner }
      return .object([
        "healthy": .bool(picture.isHealthy), "routes": .integer(routes),
        "listeners-waiting": .integer(waiting),
        "reload-failed": picture.failedReload == nil ? nil : .bool(true),
        // Not part of "healthy": a restart would lose the old certificate that is still in use.
        "certificate-faults": picture.certificateFaults.isEmpty
          ? nil : .array(picture.certificateFaults.map { .text($0) }),
      ])
    }
  }
}

extension StatusBoard.Listener {
  fileprivate var bound: String? { if case .listening(let bound) = state { bound } else { nil } }
}

extension StatusBoard.Picture {
  fileprivate var isHealthy: Bool {
    isRunning && listeners.values.allSatisfy { listeners in listeners.allSatisfy { $0.bound != nil } }
  }

  /// Known listeners keep their state. One that is no longer named reports itself when it closes.
  fileprivate mutating func expect(_ urls: [String], of route: String, at now: UInt64) {
    var known = listeners[route] ?? []
    var new: [StatusBoard.Listener] = []
    for url in urls {
      if let index = known.firstIndex(where: { $0.url == url }) {
        new.append(known.remove(at: index))
      } else {
        new.append(StatusBoard.Listener(url: url, state: .starting, since: now))
      }
    }
    // Removed listeners report their closing, except one that was given up before it was tried.
    listeners[route] = new + known.filter { $0.state != .starting }
  }

  /// Two listeners of a route may have the same URL, with port 0: `isMeant` selects the right one.
  fileprivate mutating func note(
    _ state: Snapshot.Listener.State, of url: String, _ route: String, at now: UInt64,
    _ isMeant: (StatusBoard.Listener) -> Bool
  ) {
    guard let index = listeners[route]?.firstIndex(where: { $0.url == url && isMeant($0) }) else {
      listeners[route, default: []].append(StatusBoard.Listener(url: url, state: state, since: now))
      return
    }
    listeners[route]?[index].state = state
    listeners[route]?[index].since = now
  }

  /// `name` is the bound address, or the URL where there is none.
  fileprivate mutating func limit(_ text: String?, _ name: String, _ route: String) {
    guard let index = listeners[route]?.firstIndex(where: { ($0.bound ?? $0.url) == name }) else { return }
    listeners[route]?[index].limit = text
  }

  fileprivate mutating func forget(_ url: String, _ route: String, _ isMeant: (StatusBoard.Listener) -> Bool) {
    guard let index = listeners[route]?.firstIndex(where: { $0.url == url && isMeant($0) }) else { return }
    listeners[route]?.remove(at: index)
  }
}
