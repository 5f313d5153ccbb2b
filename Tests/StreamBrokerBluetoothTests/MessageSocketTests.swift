// What look-ups have in common: one message per call, a deadline, and a socket that can be taken back.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

@testable import StreamBrokerBluetooth

@Suite("A socket of messages", .timeLimit(.minutes(5)))
struct MessageSocketTests {
  private typealias Device = GATTStreamTests.Device

  /// The messages received, up to the first failure.
  private final class Ear {
    var messages: [[UInt8]] = []
    var failure: MessageSocket.Failure?
    let failed = Gate()
    func handle(_ news: Result<[UInt8], MessageSocket.Failure>) {
      switch news {
      case .success(let message): messages.append(message)
      case .failure(let why):
        failure = why
        failed.open()
      }
    }
  }

  @Test("receives messages sent before a hang-up, each once, then the hang-up")
  func hears() async throws {
    try await onLane { lane in
      let (parcel, device) = try Device.pair()
      let ear = Ear()
      let socket = MessageSocket(parcel, longest: 4, on: lane.poller)
      socket.start { ear.handle($0) }
      socket.send([7, 8], timeout: .seconds(30))
      #expect(device.handle() == [7, 8])
      for message in [[1], [2, 3], [4, 5, 6, 7, 8]] as [[UInt8]] { try device.say(message) }
      device.hangUp()
      await ear.failed.wait(on: lane)
      #expect(ear.messages == [[1], [2, 3], [4, 5, 6, 7]])
      #expect(ear.failure == .broke(SystemError("read", ECONNRESET)))
      #expect(socket.take() == nil)
    }
  }

  @Test("waits for an answer for a limited time")
  func silence() async throws {
    try await onLane { lane in
      let (parcel, device) = try Device.pair()
      defer { device.hangUp() }
      let ear = Ear()
      let socket = MessageSocket(parcel, longest: 4, on: lane.poller)
      socket.start { ear.handle($0) }
      socket.send([7], timeout: .milliseconds(10))
      await ear.failed.wait(on: lane)
      #expect(ear.failure == .silent)
      #expect(socket.raw == nil)
    }
  }

  @Test("delivers nothing while paused, not even messages that arrived together with the pausing one")
  func deaf() async throws {
    try await onLane { lane in
      let (parcel, device) = try Device.pair()
      let ear = Ear()
      let socket = MessageSocket(parcel, longest: 4, on: lane.poller)
      let first = Gate()
      socket.start { news in
        ear.handle(news)
        socket.isPaused = true
        first.open()
      }
      try device.say([1])
      try device.say([2])
      await first.wait(on: lane)
      #expect(ear.messages == [[1]])
      let second = Gate()
      socket.take().map { parcel in  // unread messages stay for the next owner
        let next = MessageSocket(parcel, longest: 4, on: lane.poller)
        next.start { news in
          ear.handle(news)
          next.take()
          second.open()
        }
      }
      await second.wait(on: lane)
      #expect(ear.messages == [[1], [2]])
      #expect(ear.failure == nil)
    }
  }

  @Test("that can't be polled reports that at once")
  func closed() async throws {
    try await onLane { lane in
      let (parcel, _) = try Device.pair()
      _ = parcel.take()
      let ear = Ear()
      let socket = MessageSocket(parcel, longest: 4, on: lane.poller)
      socket.start { ear.handle($0) }
      #expect(ear.failure == .broke(SystemError("send", EBADF)))
      socket.send([1], timeout: .milliseconds(1))
      #expect(ear.messages.isEmpty)
    }
  }
}
