// Runs the gateway's own layers through the suite for layers.

import ByteStreams
import StreamTestKit
import Testing

@testable import GatewayKit

@Suite("A layer of the gateway", .timeLimit(.minutes(5)))
struct LayerTests {
  @Test("that checks for HTTP requests forwards every other call", arguments: [true, false])
  func requestGuard(aborting: Bool) async throws {
    try await onLane { lane in
      let below = ScriptedStream(takesAll: true)
      LayerForwarding(HTTPRequestGuard(below, on: lane.poller), over: below).run(aborting: aborting)
    }
  }

  @Test("that has a text to send forwards every other call once the text is sent", arguments: [true, false])
  func preface(aborting: Bool) throws {
    let below = ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true)
    below.undelivered = .lostAtClose(3)
    let layer = try #require(PrefacedStream.send([1, 2], through: below) as? PrefacedStream)
    #expect(layer.hasPendingOutput && layer.undelivered == .lostAtClose(5))
    below.delegate?.stream(below, handle: .hasSpaceAvailable)
    #expect(below.written == [1, 2])
    LayerForwarding(layer, over: below).run(aborting: aborting)
  }

  @Test("that has sent its text carries bytes, in writes of any size")
  func carriage() async throws {
    try await onLane { lane in
      let (near, far) = try FarEnd.pair()
      let text = [UInt8](repeating: 7, count: 4 << 20)  // more than a socket takes at once
      let layer = try #require(PrefacedStream.send(text, through: try near.stream(on: lane.poller)) as? PrefacedStream)
      let received = try await onOwnThread { try far.receive(exactly: text.count).count }
      #expect(received == text.count)
      try await LayerCarriage(layer, to: far).run(on: lane)
    }
  }
}
