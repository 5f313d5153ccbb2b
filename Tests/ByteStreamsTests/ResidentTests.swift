// References to what lives on a lane, dropped where it does not.

import Dispatch
import Glibc
import StreamTestKit
import Synchronization
import Testing

@testable import ByteStreams

@Suite("A resident", .timeLimit(.minutes(1)))
struct ResidentTests {
  private final class Place: Sendable {
    let wasOnLane = Mutex<[Bool]>([])
    let gone = DispatchSemaphore(value: 0)
  }

  /// Notes where it goes.
  private final class Guest {
    private let place: Place
    private let key: DispatchSpecificKey<Bool>
    init(_ place: Place, _ key: DispatchSpecificKey<Bool>) { (self.place, self.key) = (place, key) }
    deinit {
      place.wasOnLane.withLock { $0.append(DispatchQueue.getSpecific(key: key) == true) }
      place.gone.signal()
    }
  }

  @Test("is released on its lane, wherever the last reference to it drops", arguments: [true, false])
  func release(isMadeThere: Bool) async throws {
    let lane = try Lane("resident")
    defer { lane.stop() }
    let key = DispatchSpecificKey<Bool>()
    lane.executor.queue.setSpecific(key: key, value: true)
    let place = Place()
    for _ in 0..<200 {
      let resident: Resident<Guest>
      if isMadeThere {
        resident = Resident(on: lane) { _ in Guest(place, key) }
      } else {
        resident = await onLane(lane) { lane in Resident(Guest(place, key), on: lane) }
      }
      resident.post { _, _ in }
      try await onOwnThread {
        withExtendedLifetime(resident) {}
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
    var resident: Resident<Guest>? = await onLane(lane) { lane in Resident(Guest(place, key), on: lane) }
    lane.stop()
    try await onOwnThread {
      for _ in 0..<1000 where !lane.executor.isClosed { usleep(1000) }
      #expect(lane.executor.isClosed)
    }
    #expect(resident != nil)
    resident = nil
    try await onOwnThread { #expect(place.gone.wait(timeout: .now() + .seconds(10)) == .success) }
  }
}
