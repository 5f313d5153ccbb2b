// permessage-deflate: compressed messages decompress to the same bytes, within bounds, and broken ones are reported.

import ByteStreams
import StreamTestKit
import Testing

@testable import StreamWebSocket

/// `bytes` as one compressed message of a client.
private func packed(_ bytes: [UInt8], fragments: Int = 1) throws -> [UInt8] {
  let whole = try bytes.withUnsafeBytes { try Deflater(windowBits: 15).compress($0, endsMessage: true) }
  guard fragments > 1 else { return wire(2, whole, reserved: 4) }
  let size = whole.count / fragments
  return wire(2, Array(whole[..<size]), final: false, reserved: 4) + wire(0, Array(whole[size...]))
}

private func settings(_ deflate: DeflateTerms = DeflateTerms(), longest: Int = 16 << 20) -> WebSocketStream.Settings {
  .init(terms: .init(deflate: deflate), longestMessage: longest, pingInterval: nil)
}

@Suite("Compressed messages", .timeLimit(.minutes(5)))
struct DeflateTests {
  @Test(
    "decompress to the original, whatever terms are negotiated",
    arguments: [(15, true), (9, true), (12, false), (15, false)], [WebSocketRole.server, .client])
  func roundTrip(agreed: (bits: Int, takeover: Bool), role: WebSocketRole) async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      var own = DeflateTerms()
      (own.ownWindowBits, own.ownContextTakeover) = (agreed.bits, agreed.takeover)
      var other = DeflateTerms()
      (other.otherWindowBits, other.otherContextTakeover) = (agreed.bits, agreed.takeover)
      let sender = StreamRig(as: role, settings(own), on: lane)
      let receiver = StreamRig(as: role == .server ? .client : .server, settings(other), on: lane)
      var random = SeededRandom()
      let seed = random.seed
      var all: [UInt8] = []
      for size in [1, 10, 1000, 16_380, 16_381, 100_000] {
        // Half of the bytes compress well, half not at all.
        let bytes = random.bytes(size / 2 + 1) + [UInt8](repeating: 7, count: size / 2)
        try await sender.stream.writeAll(bytes, on: lane)
        all += bytes
      }
      #expect(try receiver.handle(sender.below.written) == all, "seed \(seed)")
      #expect(sender.below.written[0] == 0xC2)
      sender.stream.close()
      receiver.stream.close()
    }
  }

  @Test("that expand a thousand times are read in small pieces, and no further than the limit")
  func bomb() async throws {
    let bomb = try packed([UInt8](repeating: 0, count: 32 << 20))
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let rig = StreamRig(as: .server, settings(longest: 1 << 20), on: lane)
      rig.below.willRead(.bytes(bomb))
      var received = 0
      var fault: WebSocketFault?
      while fault == nil, received < 8 << 20 {
        do {
          let some = try rig.stream.readSome()
          received += some?.count ?? 0
        } catch { fault = error as? WebSocketFault }
      }
      #expect(fault?.code == .messageTooBig && received <= 1 << 20 && received > 1 << 19)
      // Otherwise a reader would be called again without end.
      #expect(!rig.stream.hasBufferedInput && !rig.stream.input.decoder.holdsOutput)
      rig.stream.close()
    }
  }

  @Test("are refused if they are broken, or if a continuation frame is marked compressed")
  func broken() {
    let deflate = FrameDecoder.Settings(deflate: DeflateTerms())
    #expect(
      FrameDecoder.handle([wire(2, [0xFF, 0xFF, 0xFF], reserved: 4)], deflate, room: 64).fault == .invalidPayload)
    #expect(
      FrameDecoder.handle([wire(2, [1], final: false) + wire(0, [1], reserved: 4)], deflate, room: 64).fault
        == .protocolError)
    #expect(FrameDecoder.handle([wire(9, [], reserved: 4)], deflate, room: 64).fault == .protocolError)
    #expect(FrameDecoder.handle([wire(2, [0], reserved: 4) + wire(2, [5])], deflate, room: 64) == Heard(bytes: [5]))
  }

  @Test("are read in any pieces and with any space")
  func pieces() throws {
    var random = SeededRandom()
    let seed = random.seed
    let bytes = random.bytes(500) + [UInt8](repeating: 1, count: 5000)
    let wire = try packed(bytes, fragments: 2) + wire(9, []) + packed(bytes)
    let expected = Heard(bytes: bytes + bytes, events: ["ping 0"])
    for room in [1, 2, 7, 100, 20_000] {
      let cut = StreamWebSocketTests.pieces(of: wire, most: 60, &random)
      #expect(
        FrameDecoder.handle(cut, .init(deflate: DeflateTerms()), room: room) == expected, "seed \(seed), room \(room)")
    }
  }
}

@Suite("WebSocket streams", .timeLimit(.minutes(5)))
struct WebSocketRelayTests {
  @Test(
    "carry everything both ways between relays, whatever the rings",
    arguments: [1, 3, 4096, 65_536], [false, true])
  func relays(capacity: Int, isCompressed: Bool) async throws {
    var random = SeededRandom()
    let seed = random.seed
    let length = capacity < 16 ? 4_000 : 500_000
    let (upBytes, downBytes) = (random.bytes(length), random.bytes(length))
    let (left, nearLeft) = try FarEnd.pair()
    let (innerLeft, innerRight) = try FarEnd.pair()
    let (nearRight, right) = try FarEnd.pair()
    async let atRight = onOwnThread {
      let received = try right.receive(exactly: length)
      try right.send(downBytes)
      _ = try right.receiveToEnd()
      right.close()
      return received
    }
    async let atLeft = onOwnThread {
      try left.send(upBytes)
      let received = try left.receive(exactly: length)
      left.close()
      return received
    }
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let poller = lane.poller
      let settings = WebSocketStream.Settings(
        terms: .init(deflate: isCompressed ? DeflateTerms() : nil), pingInterval: .seconds(20))
      let client = WebSocketStream(over: try innerLeft.stream(on: poller), as: .client, settings, on: poller)
      let server = WebSocketStream(over: try innerRight.stream(on: poller), as: .server, settings, on: poller)
      let outer = Relay(try nearLeft.stream(on: poller), client, capacity: capacity, on: poller)
      let inner = Relay(server, try nearRight.stream(on: poller), capacity: capacity, on: poller)
      outer.start()
      inner.start()
      await outer.isOver.wait(on: lane)
      await inner.isOver.wait(on: lane)
      #expect(outer.fault == nil && inner.fault == nil)
    }
    #expect(try await atRight == upBytes, "seed \(seed)")
    #expect(try await atLeft == downBytes, "seed \(seed)")
  }

  @Test("ping a silent peer and end one that does not answer; a peer that is not read owes no answer")
  func pings() async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let settings = WebSocketStream.Settings(pingInterval: .milliseconds(20))
      let unread = StreamRig(as: .server, settings, on: lane)
      let silent = StreamRig(as: .server, settings, on: lane)
      let gate = Gate()
      silent.recorder.onEvent = { _ in gate.open() }
      silent.stream.readerWaits = .readable
      await gate.wait(on: lane)
      #expect(silent.recorder.events == [.errorOccurred(SystemError("ping", 110))])
      #expect(silent.below.written == [0x89, 0] && !silent.stream.closeBehavior.hasClosingHandshake)
      #expect(unread.recorder.events.isEmpty && unread.below.written.isEmpty)
      silent.stream.close()
      #expect(silent.below.written == [0x89, 0])  // a close frame would claim a clean end
      unread.stream.close()
    }
  }

  @Test("fail in order whichever call below fails")
  func failNth() async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      for step in 0..<50 {
        let faults = Faults(failing: step)
        let steps: [ScriptedStream.Step] = [
          .bytes(wire(9, [1]) + wire(2, [2])), .bytes(wire(2, [3, 4])), .bytes(wire(8, [])),
        ]
        let rig = StreamRig(ScriptedStream(reads: steps, takesAll: true, faults: faults), on: lane)
        rig.stream.readerWaits = .readable
        var isBroken = false
        do {
          while try rig.stream.read() != .ended { _ = try rig.stream.write([1]) }
        } catch { isBroken = true }
        #expect(!isBroken || faults.wasReached)
        rig.stream.close()
        #expect(rig.below.isClosed && rig.recorder.closings == 1)
        if !faults.wasReached { return }
      }
      Issue.record("it never ends")
    }
  }
}
