// Who has a place in the file system, and when: those who follow each other there do so in order.

import Dispatch
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A place in the file system", .timeLimit(.minutes(1)))
struct LocalBindingTests {
  /// Two that want one place, as two listeners do at a reload.
  private final class Rivals {
    var first: LocalBinding<Int>?
    var second: LocalBinding<Int>?
    var place: Int?
  }

  /// What was done, in order.
  private final class Story: Sendable {
    private let all = Mutex<[String]>([])
    let secondHasTaken = DispatchSemaphore(value: 0)
    func tell(_ event: String) { all.withLock { $0.append(event) } }
    var events: [String] { all.withLock { $0 } }
  }

  private let story = Story()

  private static func context(on lane: isolated Lane, _ route: Config.Route) -> ListenerContext {
    ListenerContext(
      route: "x", on: lane, lane.poller, status: StatusSink([]), isShared: true, door: 1,
      terms: ListenerContext.Terms(route), role: .writer, surroundings: RouteSurroundings(), report: { _, _, _ in },
      admit: { _ in })
  }

  /// `take` and `leave` run before it is told that the first has done it.
  private func withRivals(
    taking take: @escaping @Sendable () -> Void = {}, leaving leave: @escaping @Sendable () -> Void = {},
    _ body: @escaping @Sendable (Resident<Rivals>) -> Void
  ) async throws {
    let lane = try Lane("places")
    let route = try routeConfig(endpoint: "sim://echo")
    let story = story
    let rivals = Resident(on: lane) { lane in
      let rivals = Rivals()
      rivals.first = LocalBinding(Self.context(on: lane, route), listener: "first", path: "/rivals") { _ in
        take()
        story.tell("first takes")
        return .success(1)
      } leave: { _ in
        leave()
        story.tell("first leaves")
      } isThere: { _ in
        true
      }
      return rivals
    }
    try await onOwnThread { body(rivals) }
    rivals.evict()
    lane.stop()
  }

  /// The first goes and is forgotten, and the second comes.
  private static func exchange(_ rivals: Rivals, on lane: isolated Lane, _ route: Config.Route, _ story: Story) {
    rivals.first?.stop(rivals.place) {}
    rivals.first = nil
    let second = LocalBinding<Int>(context(on: lane, route), listener: "second", path: "/rivals") { _ in
      story.tell("second takes")
      story.secondHasTaken.signal()
      return .success(2)
    } leave: { _ in
    } isThere: { _ in
      true
    }
    rivals.second = second
    second.start { _ in }
  }

  @Test("is left before the next takes it, though nobody keeps the one before any more")
  func leftFirst() async throws {
    let route = try routeConfig(endpoint: "sim://echo")
    let story = story
    // Slow enough to be overtaken, if anything lets the other by.
    try await withRivals(leaving: {
      if story.secondHasTaken.wait(timeout: .now() + 0.2) == .success { story.secondHasTaken.signal() }
    }) { rivals in
      let isThere = DispatchSemaphore(value: 0)
      rivals.post { _, rivals in
        rivals.first?.start { place in
          rivals.place = place
          isThere.signal()
        }
      }
      #expect(isThere.wait(timeout: .now() + 30) == .success)
      rivals.post { lane, rivals in Self.exchange(rivals, on: lane, route, story) }
      #expect(story.secondHasTaken.wait(timeout: .now() + 30) == .success)
    }
    #expect(story.events == ["first takes", "first leaves", "second takes"])
  }

  @Test("is left before the next takes it, also by one who was only about to take it")
  func leftWhileTaken() async throws {
    let route = try routeConfig(endpoint: "sim://echo")
    let story = story
    let mayTake = DispatchSemaphore(value: 0)
    try await withRivals(taking: { _ = mayTake.wait(timeout: .now() + 30) }) { rivals in
      rivals.post { lane, rivals in
        rivals.first?.start { _ in story.tell("first serves") }
        Self.exchange(rivals, on: lane, route, story)
        mayTake.signal()
      }
      #expect(story.secondHasTaken.wait(timeout: .now() + 30) == .success)
    }
    #expect(story.events == ["first takes", "first leaves", "second takes"])
  }
}
