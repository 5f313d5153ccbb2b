// References to objects of a lane, released outside that lane.

import Dispatch
import Glibc
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams

@Suite("A lane reference", .timeLimit(.minutes(5)))
struct LaneRefTests {
  private final class Place: Sendable {
    let wasOnLane = Mutex<[Bool]>([])
    let gone = DispatchSemaphore(value: 0)
  }

  /// Records where it is released.
  private final class Object {
    private let place: Place
    private let key: DispatchSpecificKey<Bool>
    init(_ place: Place, _ key: DispatchSpecificKey<Bool>) { (self.place, self.key) = (place, key) }
    deinit {
      place.wasOnLane.withLock { $0.append(DispatchQueue.getSpecific(key: key) == true) }
      place.gone.signal()
    }
  }

  @Test("is released on its lane, wherever the last reference is dropped", arguments: [true, false])
  func release(isMadeThere: Bool) async throws {
    let lane = try Lane("reference")
    defer { lane.stop() }
    let key = DispatchSpecificKey<Bool>()
    lane.executor.queue.setSpecific(key: key, value: true)
    let place = Place()
    for _ in 0..<200 {
      let ref: LaneRef<Object>
      if isMadeThere {
        ref = LaneRef(on: lane) { _ in Object(place, key) }
      } else {
        ref = await onLane(lane) { lane in LaneRef(Object(place, key), on: lane) }
      }
      ref.post { _, _ in }
      try await onOwnThread {
        withExtendedLifetime(ref) {}
      }
    }
    try await onOwnThread {
      for _ in 0..<200 {
        guard place.gone.wait(timeout: .now() + .seconds(10)) == .success else { throw SystemError("wait", 110) }
      }
    }
    #expect(place.wasOnLane.withLock { $0.count == 200 && $0.allSatisfy(\.self) })
  }

  @Test("does not outlive a lane that has stopped")
  func stopped() async throws {
    let lane = try Lane("stopped")
    let place = Place()
    let key = DispatchSpecificKey<Bool>()
    var ref: LaneRef<Object>? = await onLane(lane) { lane in LaneRef(Object(place, key), on: lane) }
    lane.stop()
    try await onOwnThread {
      for _ in 0..<Patience.milliseconds where !lane.executor.isClosed { usleep(1000) }
      #expect(lane.executor.isClosed)
    }
    #expect(ref != nil)
    ref = nil
    try await onOwnThread { #expect(place.gone.wait(timeout: .now() + .seconds(10)) == .success) }
  }
}
