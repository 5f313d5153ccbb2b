// A look-up over a socket that keeps message boundaries as L2CAP does, on a link that is never encrypted.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

@testable import StreamBrokerBluetooth

@Suite("A look-up over GATT, on a lane", .timeLimit(.minutes(5)))
struct GATTExchangeTests {
  private typealias Device = GATTStreamTests.Device

  @Test("ignores plaintext messages while it waits for encryption, sends nothing, and notices the end")
  func waitsForEncryption() async throws {
    try await onLane { lane in
      let (socket, device) = try Device.pair()
      let over = Gate()
      var failure: GATTExchange.Failure?
      let wish = GATTWish(service: BluetoothUUID(0xFFE0))
      let conversation = GATTExchange(socket, GATTLookUp(wish), on: lane.poller) { result in
        if case .failure(let why) = result { failure = why }
        over.open()
      }
      conversation.start(awaiting: .medium)
      try device.say([0x03, 0xF7, 0x00])  // an answer to a request that was not sent yet
      try device.say([0x02, 0xF7, 0x00])  // a request of its own
      let turn = Gate()
      lane.poller.timers.after(.milliseconds(200)) { turn.open() }
      await turn.wait(on: lane)
      #expect(device.handle() == nil && failure == nil)
      device.hangUp()
      await over.wait(on: lane)
      #expect(failure == .broke(SystemError("read", ECONNRESET)))
    }
  }

  @Test("can be cancelled at any step, and then reports nothing")
  func cancelled() async throws {
    try await onLane { lane in
      for security in [nil, BluetoothTarget.Security.medium] {
        let (socket, device) = try Device.pair()
        let conversation = GATTExchange(
          socket, GATTLookUp(GATTWish(service: BluetoothUUID(0xFFE0))), on: lane.poller
        ) { _ in Issue.record("it was given up") }
        conversation.start(awaiting: security)
        conversation.cancel()
        conversation.cancel()
        if security == nil {
          #expect(device.handle() == GATTLookUp(GATTWish(service: BluetoothUUID(0xFFE0))).firstRequest)
        }
        #expect(throws: SystemError.self) { try device.say([0x03, 0xF7, 0x00]) }
      }
    }
  }
}
