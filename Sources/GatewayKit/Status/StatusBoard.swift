// The current picture, put together from events: what `health` asks today, status page and API later. Any thread.

import Synchronization

public final class StatusBoard: Sendable {
  private struct Picture {
    var waiting: [String: Set<String>] = [:]  // route → listeners that can't be bound
    var routes = 0
    var isRunning = false
  }

  private let picture = Mutex(Picture())

  public init() {}

  public func observe(_ event: StatusEvent) {
    switch event {
    // The many: lanes need not meet at the lock for them.
    case .sessionOpened, .sessionEnded, .link, .writerChanged, .dropped, .linkDropped: return
    default: break
    }
    picture.withLock { picture in
      switch event {
      case .started(let routes):
        picture.routes = routes
        picture.isRunning = true
      case .listenerWaits(let route, let listener, _, _): picture.waiting[route, default: []].insert(listener)
      case .listening(let route, let listener, _): picture.waiting[route]?.remove(listener)
      case .routeStopped(let route): picture.waiting[route] = nil
      case .reloaded(let report): picture.routes = report.routes
      case .stopping: picture.isRunning = false
      default: break
      }
    }
  }

  /// Serves on every address it was told to. A device that is away is awaited and does no harm here.
  public var isHealthy: Bool {
    picture.withLock { $0.isRunning && $0.waiting.values.allSatisfy(\.isEmpty) }
  }

  /// One line of JSON.
  var health: String {
    picture.withLock { picture in
      let waiting = picture.waiting.values.reduce(0) { $0 + $1.count }
      let isHealthy = picture.isRunning && waiting == 0
      return #"{"healthy":\#(isHealthy),"routes":\#(picture.routes),"listeners-waiting":\#(waiting)}"#
    }
  }
}
