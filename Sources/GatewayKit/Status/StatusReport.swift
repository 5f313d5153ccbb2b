// The answer to `status`, made route by route while the client reads it, so that ten thousand clients are never in
// memory at once. Figures come from the lanes that own them, asked at that moment for one page of clients at a time.
// Bytes are counted in no other place.

import ByteStreams
import StreamBroker

/// What a route's home lane knows.
struct RouteFacts: Sendable {
  var queued = 0
  var groups: [LaneRef<SessionGroup>]
}

/// What one lane knows of a route's sessions.
struct GroupFacts: Sendable {
  var state: Snapshot.LinkState?
  var capture: Snapshot.Capture?
  var links: [String: Int] = [:]
  var totals = Snapshot.Totals()
  /// At most one page, in the order of their numbers.
  var clients: [Snapshot.Client] = []
  var hasMore = false
}

/// Lives on the lane of its query.
final class StatusReport: ControlAnswer {
  private enum Stage {
    case opening
    /// Asks this route next.
    case route(Int)
    /// Within its clients: the groups that have more, and how many more times they are asked.
    case clients(Int, [(group: LaneRef<SessionGroup>, last: UInt64)], turns: Int)
    case over
  }

  /// What the report contains.
  enum Form {
    /// Everything, with what belongs to no route.
    case status
    /// The one route alone.
    case route
    /// The clients of all routes, each with the name of its route.
    case clients
  }

  private let form: Form
  private let head: Snapshot
  private let routes: [GatewayCore.Running]
  private let board: StatusBoard
  private let query: LaneQuery
  private let lanes: [Lane]
  private var stage = Stage.opening
  private var isFirst = true
  /// Clients that a lane is asked for at a time; that costs it some 50 µs.
  static let page = 256

  var whenReleased: () -> Void = {}
  deinit { whenReleased() }

  init(
    _ head: Snapshot, as form: Form = .status, routes: [GatewayCore.Running], board: StatusBoard, lanes: [Lane],
    query: LaneQuery
  ) {
    self.form = form
    self.head = head
    self.routes = routes
    self.board = board
    self.lanes = lanes
    self.query = query
  }

  func next(_ done: @escaping ([UInt8]?) -> Void) { makeNext { done($0.map { Array($0.utf8) }) } }

  private func makeNext(_ done: @escaping (String?) -> Void) {
    switch stage {
    case .opening:
      stage = .route(0)
      query.knock(at: lanes) { [self] in done(opening) }
    case .route(let index) where index < routes.count: ask(index, done)
    case .route:
      stage = .over
      done(closing + "\n")
    case .clients(let index, let more, let turns): askOn(index, more, turns, done)
    case .over: done(nil)
    }
  }

  private var opening: String {
    switch form {
    case .status: head.opening
    case .route: ""
    case .clients: "{\"clients\":["
    }
  }

  private var closing: String {
    switch form {
    case .status: Snapshot.closing
    // Removed since the report began.
    case .route: isFirst ? "null" : ""
    case .clients: "]}"
    }
  }

  // MARK: - A route

  private func ask(_ index: Int, _ done: @escaping (String?) -> Void) {
    let (config, route) = (routes[index].config, routes[index].route)
    var picture = Snapshot.Route(
      name: config.name, endpoint: config.endpoint.description, link: config.link, maxClients: config.clients.max)
    picture.listeners = board.listeners(of: config.name)
    query.ask(route) { _, route in
      route.facts
    } then: { [self] answer in
      guard case .reported(let facts) = answer else {
        picture.isStuck = if case .stuck = answer { true } else { false }
        if !picture.isStuck {  // removed since the report began
          stage = .route(index + 1)
          return makeNext(done)
        }
        return finish(index, picture, [], done)
      }
      picture.queued = facts.queued
      collect(facts.groups, after: [:]) { [self] answers in
        for (_, facts) in answers { picture.add(facts) }
        finish(index, picture, answers, done)
      }
    }
  }

  private typealias Answers = [(group: LaneRef<SessionGroup>, facts: GroupFacts?)]

  /// Asks all groups at once. The facts of one that hangs are nil.
  private func collect(
    _ groups: [LaneRef<SessionGroup>], after last: [Int: UInt64], _ done: @escaping (Answers) -> Void
  ) {
    var answers: Answers = groups.map { ($0, nil) }
    var left = groups.count
    for (index, group) in groups.enumerated() {
      let after = last[index] ?? 0
      query.ask(group) { _, group, reported in
        group.refreshed(after: after) { reported(group.facts(after: after, atMost: Self.page)) }
      } then: { answer in
        switch answer {
        case .reported(let facts): answers[index].facts = facts
        case .gone: answers[index].facts = GroupFacts()
        case .stuck: break
        }
        left -= 1
        if left == 0 { done(answers) }
      }
    }
  }

  private func finish(
    _ index: Int, _ picture: Snapshot.Route, _ answers: Answers, _ done: @escaping (String?) -> Void
  ) {
    var piece = ""
    if form != .clients {
      piece = (isFirst ? "" : ",") + picture.opening
      isFirst = false
    }
    piece += list(answers, of: index, isFirst: true)
    // Clients that connect meanwhile have higher numbers. `turns` is bounded, or a report of many short sessions would
    // not end.
    done(piece + advance(index, answers, turns: routes[index].config.clients.max / Self.page + 1))
  }

  // MARK: - Its clients

  private func askOn(
    _ index: Int, _ more: [(group: LaneRef<SessionGroup>, last: UInt64)], _ turns: Int,
    _ done: @escaping (String?) -> Void
  ) {
    let last = Dictionary(uniqueKeysWithValues: more.enumerated().map { ($0.offset, $0.element.last) })
    collect(more.map(\.group), after: last) { [self] answers in
      done(list(answers, of: index, isFirst: false) + advance(index, answers, turns: turns - 1))
    }
  }

  private func list(_ answers: Answers, of index: Int, isFirst: Bool) -> String {
    let clients = answers.flatMap { $0.facts?.clients ?? [] }.sorted { $0.number < $1.number }
    guard form == .clients else {
      let text = clients.map(\.json.description).joined(separator: ",")
      return isFirst || text.isEmpty ? text : "," + text
    }
    guard !clients.isEmpty else { return "" }
    let route = JSONValue.Member(key: "route", value: .text(routes[index].config.name))
    let text = clients.map { JSONValue.object([route] + ($0.json.members ?? [])).description }.joined(separator: ",")
    defer { self.isFirst = false }
    return self.isFirst ? text : "," + text
  }

  /// Continues with the groups that have more clients, or ends the route.
  private func advance(_ index: Int, _ answers: Answers, turns: Int) -> String {
    let more = answers.compactMap { group, facts in
      facts.flatMap { $0.hasMore ? $0.clients.last.map { (group: group, last: $0.number) } : nil }
    }
    let isOver = more.isEmpty || turns <= 0
    stage = isOver ? .route(index + 1) : .clients(index, more, turns: turns)
    return isOver && form != .clients ? Snapshot.Route.closing : ""
  }
}

extension Snapshot.Route {
  fileprivate mutating func add(_ facts: GroupFacts?) {
    guard let facts else { return isStuck = true }
    state = state ?? facts.state
    capture = capture ?? facts.capture
    links.merge(facts.links, uniquingKeysWith: +)
    totals.add(facts.totals)
  }
}
