// A look-up over a socket that keeps messages apart as L2CAP's does, on a link that is never encrypted.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

@testable import StreamBrokerBluetooth

@Suite("A look-up over GATT, on a lane", .timeLimit(.minutes(1)))
struct GATTConversationTests {
  private typealias Device = GATTStreamTests.Device

  @Test("believes nothing that is said in clear while it waits for encryption, says nothing, and hears of the end")
  func waitsForEncryption() async throws {
    try await onLane { lane in
      let (socket, device) = try Device.pair()
      let over = Gate()
      var failure: GATTConversation.Failure?
      let wish = GATTWish(service: BluetoothUUID(0xFFE0))
      let conversation = GATTConversation(socket, GATTLookUp(wish), on: lane.poller) { result in
        if case .failure(let why) = result { failure = why }
        over.open()
      }
      conversation.start(awaiting: .medium)
      try device.say([0x03, 0xF7, 0x00])  // an answer to what was not asked yet
      try device.say([0x02, 0xF7, 0x00])  // a question of its own
      let turn = Gate()
      lane.poller.timers.after(.milliseconds(200)) { turn.open() }
      await turn.wait(on: lane)
      #expect(device.hear() == nil && failure == nil)
      device.hangUp()
      await over.wait(on: lane)
      #expect(failure == .broke(SystemError("read", ECONNRESET)))
    }
  }

  @Test("is left at any step, and says no more")
  func cancelled() async throws {
    try await onLane { lane in
      for security in [nil, BluetoothTarget.Security.medium] {
        let (socket, device) = try Device.pair()
        let conversation = GATTConversation(
          socket, GATTLookUp(GATTWish(service: BluetoothUUID(0xFFE0))), on: lane.poller
        ) { _ in Issue.record("it was given up") }
        conversation.start(awaiting: security)
        conversation.cancel()
        conversation.cancel()
        if security == nil {
          #expect(device.hear() == GATTLookUp(GATTWish(service: BluetoothUUID(0xFFE0))).firstRequest)
        }
        #expect(throws: SystemError.self) { try device.say([0x03, 0xF7, 0x00]) }
      }
    }
  }
}
