// Two of our streams back to back, driven by pumps as the gateway drives them.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

@testable import StreamTLS

@Suite("TLS streams between relays", .timeLimit(.minutes(5)))
struct TLSRelayTests {
  /// Both ends of a connection between two of our streams, on the lane.
  private func pair(_ rig: TLSRig, on lane: isolated Lane) async throws -> (client: TLSStream, server: TLSStream) {
    var settings = TLSClientSettings()
    settings.ca = rig.folder / "ca.pem"
    let (near, far) = try FarEnd.pair()
    let one = try near.take()
    let other = try far.take()
    let (oneRaw, otherRaw) = (one.raw, other.raw)
    let server = try TLSHandshake(try TLSServerContext(rig.server), over: oneRaw)
    let client = try TLSHandshake(try TLSClientContext(settings), to: "gw.test", over: otherRaw)
    var finished = [false, false]
    for _ in 0..<10 where finished != [true, true] {
      if !finished[0] { finished[0] = try client.advance() == .finished }
      if !finished[1] { finished[1] = try server.advance() == .finished }
    }
    let clientStream = TLSStream(client.takeSession(), over: other, kind: .socket, on: lane.poller)
    #expect(clientStream.facts.peer?.commonName == "gw.test")
    return (clientStream, TLSStream(server.takeSession(), over: one, kind: .socket, on: lane.poller))
  }

  @Test(
    "carry everything both ways through rings of any size, and each end after the last byte",
    arguments: [1, 3, 4096, 65_536, 262_144])
  func rings(capacity: Int) async throws {
    let rig = try TLSRig()
    var random = SeededRandom()
    let length = capacity < 16 ? 5_000 : 2_000_000
    let (upBytes, downBytes) = (random.bytes(length), random.bytes(length))
    let (left, nearLeft) = try FarEnd.pair()
    let (nearRight, right) = try FarEnd.pair()
    async let atRight = onOwnThread {
      let received = try right.receiveToEnd()
      try right.send(downBytes)
      right.finishWriting()
      right.close()
      return received
    }
    async let atLeft = onOwnThread {
      try left.send(upBytes)
      left.finishWriting()
      return try left.receiveToEnd()
    }
    try await expectNoDescriptorLeak {
      try await onLane { lane in
        let (client, server) = try await pair(rig, on: lane)
        let one = Relay(try nearLeft.stream(on: lane.poller), client, capacity: capacity, on: lane.poller)
        let other = Relay(server, try nearRight.stream(on: lane.poller), capacity: capacity, on: lane.poller)
        one.start()
        other.start()
        await one.isOver.wait(on: lane)
        await other.isOver.wait(on: lane)
        #expect(one.fault == nil, "\(String(describing: one.fault))")
        #expect(other.fault == nil, "\(String(describing: other.fault))")
      }
    }
    #expect(try await atRight == upBytes, "\(random)")
    #expect(try await atLeft == downBytes, "\(random)")
  }
}
