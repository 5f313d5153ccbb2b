// Which listener owns a path in the file system, and when: successive owners follow each other in order.

import Dispatch
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A path in the file system", .timeLimit(.minutes(5)))
struct ListenPathTests {
  /// Two listeners that want one path, as at a reload.
  private final class Rivals {
    var first: ListenPath<Int>?
    var second: ListenPath<Int>?
    var entry: Int?
  }

  /// The actions, in order.
  private final class Story: Sendable {
    private let all = Mutex<[String]>([])
    let secondHasTaken = DispatchSemaphore(value: 0)
    func report(_ event: String) { all.withLock { $0.append(event) } }
    var events: [String] { all.withLock { $0 } }
  }

  private let story = Story()

  private static func context(on lane: isolated Lane, _ route: Config.Route) -> ListenerContext {
    let owner = ListenerContext.Owner(
      route: "x", isShared: true, listenerNumber: 1, lane: lane, poller: lane.poller, status: StatusSink([]))
    return ListenerContext(
      of: owner, terms: ListenerContext.Terms(route), role: .writer, environment: RouteEnvironment(),
      report: { _, _, _ in }, admit: { _ in })
  }

  /// `take` and `leave` run before the first listener's action is recorded.
  private func withRivals(
    taking take: @escaping @Sendable () -> Void = {}, leaving leave: @escaping @Sendable () -> Void = {},
    _ body: @escaping @Sendable (LaneRef<Rivals>) -> Void
  ) async throws {
    let lane = try Lane("places")
    let route = try routeConfig(endpoint: "sim://echo")
    let story = story
    let rivals = LaneRef(on: lane) { lane in
      let rivals = Rivals()
      rivals.first = ListenPath(Self.context(on: lane, route), listener: "first", path: "/rivals") { _ in
        take()
        story.report("first takes")
        return .success(1)
      } leave: { _ in
        leave()
        story.report("first leaves")
      } isThere: { _ in
        true
      }
      return rivals
    }
    try await onOwnThread { body(rivals) }
    rivals.evict()
    lane.stop()
  }

  /// The first listener stops and is released, and the second starts.
  private static func exchange(_ rivals: Rivals, on lane: isolated Lane, _ route: Config.Route, _ story: Story) {
    rivals.first?.stop(rivals.entry) {}
    rivals.first = nil
    let second = ListenPath<Int>(context(on: lane, route), listener: "second", path: "/rivals") { _ in
      story.report("second takes")
      story.secondHasTaken.signal()
      return .success(2)
    } leave: { _ in
    } isThere: { _ in
      true
    }
    rivals.second = second
    second.start { _ in }
  }

  @Test("is released before the next listener takes it, though no reference to the former one is left")
  func leftFirst() async throws {
    let route = try routeConfig(endpoint: "sim://echo")
    let story = story
    // Slow enough to be overtaken, if the order is not enforced.
    try await withRivals(leaving: {
      if story.secondHasTaken.wait(timeout: .now() + 0.2) == .success { story.secondHasTaken.signal() }
    }) { rivals in
      let isThere = DispatchSemaphore(value: 0)
      rivals.post { _, rivals in
        rivals.first?.start { entry in
          rivals.entry = entry
          isThere.signal()
        }
      }
      #expect(isThere.wait(timeout: .now() + 30) == .success)
      rivals.post { lane, rivals in Self.exchange(rivals, on: lane, route, story) }
      #expect(story.secondHasTaken.wait(timeout: .now() + 30) == .success)
    }
    #expect(story.events == ["first takes", "first leaves", "second takes"])
  }

  @Test("is released before the next listener takes it, also by a listener that was still taking it")
  func leftWhileTaken() async throws {
    let route = try routeConfig(endpoint: "sim://echo")
    let story = story
    let mayTake = DispatchSemaphore(value: 0)
    try await withRivals(taking: { _ = mayTake.wait(timeout: .now() + 30) }) { rivals in
      rivals.post { lane, rivals in
        rivals.first?.start { _ in story.report("first serves") }
        Self.exchange(rivals, on: lane, route, story)
        mayTake.signal()
      }
      #expect(story.secondHasTaken.wait(timeout: .now() + 30) == .success)
    }
    #expect(story.events == ["first takes", "first leaves", "second takes"])
  }
}
