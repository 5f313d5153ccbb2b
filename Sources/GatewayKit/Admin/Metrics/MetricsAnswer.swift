// The answer to /metrics: asks route after route, each lane for its part, then writes family after family. A family's
// samples must be together, so the figures of all routes are collected first, some 500 bytes each. Text is made for a
// few routes at a time: neither a lane that carries bytes nor the control lane is held for long.

import ByteStreams
import Dispatch
import StreamBroker

/// Lives on the lane of its query.
final class MetricsAnswer: ControlAnswer {
  private let format: MetricsFormat
  private let routes: [GatewayCore.Running]
  /// Whether the client may see the route of this name.
  private let isSeen: (String) -> Bool
  private let board: StatusBoard
  private let query: LaneQuery
  private let poller: Poller
  /// Gets what belongs to no route.
  private let gateway: (@escaping (GatewayFigures) -> Void) -> Void
  private var samples: [RouteSample] = []
  private var stage = Stage.collecting(0)
  private let whenReleased: () -> Void

  private enum Stage {
    /// Asks this route next.
    case collecting(Int)
    case ofGateway
    /// The family, and the first route of the next piece.
    case ofRoutes(Int, from: Int)
    case over
  }

  /// Routes whose samples of one family are a piece. The longest family takes half a millisecond for so few.
  private static let page = 64

  init(
    _ format: MetricsFormat, routes: [GatewayCore.Running], where isSeen: @escaping (String) -> Bool,
    board: StatusBoard, query: LaneQuery, on poller: Poller,
    gateway: @escaping (@escaping (GatewayFigures) -> Void) -> Void, whenReleased: @escaping () -> Void
  ) {
    self.format = format
    self.routes = routes
    self.isSeen = isSeen
    self.board = board
    self.query = query
    self.poller = poller
    self.gateway = gateway
    self.whenReleased = whenReleased
    samples.reserveCapacity(routes.count)
  }

  deinit {
    whenReleased()
    // To free thousands of samples takes milliseconds.
    let samples = Samples(all: samples)
    self.samples = []
    Self.queue.async { samples.all = [] }
  }

  private static let queue = DispatchQueue(label: "baudway.metrics")

  // The block of the queue is the only one that uses it.
  private final class Samples: @unchecked Sendable {
    var all: [RouteSample]
    init(all: [RouteSample]) { self.all = all }
  }

  func next(_ done: @escaping ([UInt8]?) -> Void) { makeNext { done($0.map { Array($0.utf8) }) } }

  private func makeNext(_ done: @escaping (String?) -> Void) {
    switch stage {
    case .collecting(let index) where index < routes.count:
      ask(index) { [self] in
        stage = .collecting(index + 1)
        // In a later turn: thousands of answers must not grow the stack.
        poller.timers.after(.zero) { [self] in makeNext(done) }
      }
    case .collecting:
      stage = .ofGateway
      makeNext(done)
    case .ofGateway:
      gateway { [self] figures in
        stage = .ofRoutes(0, from: 0)
        done(text(Metrics.ofGateway, of: figures))
      }
    case .ofRoutes(let index, let first) where index < Metrics.ofRoute.count:
      let family = Metrics.ofRoute[index]
      let page = samples[first..<min(first + Self.page, samples.count)]
      let isLast = page.endIndex == samples.count
      stage = isLast ? .ofRoutes(index + 1, from: 0) : .ofRoutes(index, from: page.endIndex)
      done((first == 0 ? family.family.head(format) : "") + page.map { family.samples($0, family.family) }.joined())
    case .ofRoutes:
      stage = .over
      done(MetricFamily.end(format))
    case .over: done(nil)
    }
  }

  private func text(_ families: [Metrics.Family<GatewayFigures>], of figures: GatewayFigures) -> String {
    families.map { $0.family.head(format) + $0.samples(figures, $0.family) }.joined()
  }

  // MARK: - A route

  private func ask(_ index: Int, then done: @escaping () -> Void) {
    let (config, route) = (routes[index].config, routes[index].route)
    guard isSeen(config.name) else { return done() }
    query.ask(route) { _, route in
      route.facts
    } then: { [self] answer in
      switch answer {
      case .gone: done()  // removed since the answer began
      case .stuck:
        var figures = RouteFigures()
        figures.isStuck = true
        add(config, figures)
        done()
      case .reported(let facts):
        var figures = RouteFigures()
        figures.waiting = facts.queued
        collect(facts.groups, into: figures) { [self] figures in
          add(config, figures)
          done()
        }
      }
    }
  }

  private func add(_ config: Config.Route, _ figures: RouteFigures) {
    samples.append(
      RouteSample(
        name: config.name, maxClients: config.clients.max, listeners: board.listeners(of: config.name),
        figures: figures))
  }

  /// Asks all groups at once.
  private func collect(
    _ groups: [LaneRef<SessionGroup>], into figures: RouteFigures, _ done: @escaping (RouteFigures) -> Void
  ) {
    var figures = figures
    var left = groups.count
    for group in groups {
      query.ask(group) { _, group, reported in
        group.figures(reported)
      } then: { answer in
        switch answer {
        case .reported(let part): figures.add(part)
        case .gone: break
        case .stuck: figures.isStuck = true
        }
        left -= 1
        if left == 0 { done(figures) }
      }
    }
  }
}
