// The WebSocket stream in the suite for layers.

import ByteStreams
import StreamTestKit
import StreamWebSocket
import Testing

@Suite("A WebSocket stream as a layer", .timeLimit(.minutes(5)))
struct LayerTests {
  @Test("forwards everything else", arguments: [true, false])
  func forwarding(aborting: Bool) async throws {
    try await onLane { lane in
      let rig = StreamRig(on: lane)
      LayerForwarding(rig.stream, over: rig.below, answersItself: [.closeBehavior, .finishWriting]).run(
        aborting: aborting)
    }
  }

  @Test("carries bytes as frames, however they are written")
  func carriage() async throws {
    try await onLane { lane in
      let (near, far) = try FarEnd.pair()
      let stream = WebSocketStream(over: try near.stream(on: lane.poller), as: .server, .init(), on: lane.poller)
      try await LayerCarriage(stream, to: WireEnd(below: far)).run(on: lane)
    }
  }
}
