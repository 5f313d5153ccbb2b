// A WebSocket stream over a scripted one: what it returns, what it sends, what it waits for.

import ByteStreams
import Glibc
import StreamTestKit
import Testing

@testable import StreamWebSocket

/// A stream over a scripted one, on a lane.
struct StreamRig {
  let below: ScriptedStream
  let stream: WebSocketStream
  let recorder = EventRecorder()

  init(
    _ below: ScriptedStream = ScriptedStream(takesAll: true), as role: WebSocketRole = .server,
    _ settings: WebSocketStream.Settings = .init(), early: [UInt8] = [], on lane: isolated Lane
  ) {
    self.below = below
    stream = WebSocketStream(over: below, as: role, settings, early: early, on: lane.poller)
    stream.delegate = recorder
  }

  /// Supplies `bytes` and reads until nothing is left.
  func handle(_ bytes: [UInt8]) throws -> [UInt8] {
    below.willRead(.bytes(bytes))
    return try readAll()
  }

  func readAll() throws -> [UInt8] {
    var received: [UInt8] = []
    while let some = try stream.readSome() { received += some }
    return received
  }

  func tellSpace() { below.delegate?.stream(below, handle: .hasSpaceAvailable) }
}

@Suite("A WebSocket stream", .timeLimit(.minutes(5)))
struct StreamTests {
  @Test("returns early bytes first, and holds them until then")
  func early() async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let rig = StreamRig(early: wire(2, [1, 2]), on: lane)
      #expect(rig.stream.hasBufferedInput)
      #expect(try rig.handle(wire(2, [3])) == [1, 2, 3] && !rig.stream.hasBufferedInput)
      rig.stream.close()
    }
  }

  @Test("sends text if it is told to: characters are never cut, and what is no UTF-8 is replaced")
  func text() async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      var settings = WebSocketStream.Settings(pingInterval: nil)
      settings.sendsText = true
      let rig = StreamRig(.init(takesAll: true), settings, on: lane)
      func write(_ bytes: [UInt8]) throws -> Transfer { try bytes.withUnsafeBytes { try rig.stream.write($0) } }
      let euro = Array("€".utf8)
      #expect(try write([65] + euro[..<2]) == .moved(3) && write([euro[2]]) == .moved(1))
      #expect(rig.below.written == wire(1, [65], mask: nil) + wire(1, euro, mask: nil))
      #expect(try write([0xFF, 66, 0xC3]) == .moved(3))
      let replaced = Array("\u{FFFD}".utf8)
      let sent = wire(1, [65], mask: nil) + wire(1, euro, mask: nil) + wire(1, replaced + [66], mask: nil)
      #expect(rig.below.written == sent)
      rig.stream.finishWriting()
      #expect(rig.below.written.starts(with: sent + wire(1, replaced, mask: nil)))
      rig.stream.close()

      // Each split of a text of all lengths, and random bytes: the same as Swift's own repair, in valid frames.
      let whole = Array("aé€😀z".utf8)
      for cut in 0...whole.count {
        let rig = StreamRig(.init(takesAll: true), settings, on: lane)
        for part in [whole[..<cut], whole[cut...]] where !part.isEmpty {
          let bytes = Array(part)
          #expect(try bytes.withUnsafeBytes { try rig.stream.write($0) } == .moved(bytes.count))
        }
        let client = StreamRig(.init(reads: [.bytes(rig.below.written)]), as: .client, on: lane)
        #expect(try client.readAll() == whole, "\(cut)")
        rig.stream.close()
        client.stream.close()
      }
      let noise = [UInt8](repeating: 0xFE, count: 20_000)
      let rigOfNoise = StreamRig(.init(takesAll: true), settings, on: lane)
      guard case .moved(let count) = try noise.withUnsafeBytes({ try rigOfNoise.stream.write($0) }) else { return }
      #expect(count > 5000 && rigOfNoise.below.written.count <= WebSocketStream.largestPayload + 4)
      rigOfNoise.stream.close()
    }
  }

  @Test("sends large runs as frames of 16 KiB in one call, and keeps what is left of one that was begun")
  func writes() async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let bytes = ScriptedStream.pattern(0..<40_000)
      let largest = WebSocketStream.largestPayload
      let frames =
        wire(2, Array(bytes[..<largest]), mask: nil) + wire(2, Array(bytes[largest..<2 * largest]), mask: nil)
        + wire(2, Array(bytes[(2 * largest)...]), mask: nil)
      let whole = StreamRig(on: lane)
      #expect(try whole.stream.write(bytes) == .moved(40_000))
      #expect(whole.below.written == frames)
      // Every cut through a header, and some others.
      for cut in [1, 2, 3, 4, 5, 100, 16_383, 16_384, 16_385, 16_388, 32_768, 32_769, 40_000, 40_011] {
        let rig = StreamRig(ScriptedStream(writes: [.moved(cut)]), on: lane)
        let taken = try rig.stream.write(bytes)
        let begun = (cut + 16_383) / 16_384
        #expect(taken == .moved(min(begun * largest, 40_000)), "cut \(cut)")
        #expect(rig.stream.hasPendingOutput == (cut % 16_384 != 0) && rig.stream.undelivered.onItsWay <= 16_384)
        rig.below.willWrite(.moved(100_000))
        rig.tellSpace()
        #expect(!rig.stream.hasPendingOutput)
        #expect(rig.below.written == Array(frames[..<min(begun * 16_384, frames.count)]), "cut \(cut)")
        rig.stream.close()
      }
      whole.stream.close()
    }
  }

  @Test("takes nothing more while a unit is held, and waits for space itself")
  func held() async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let rig = StreamRig(ScriptedStream(writes: [.moved(3)]), on: lane)
      #expect(try rig.stream.write([1, 2, 3]) == .moved(3))
      #expect(rig.stream.hasPendingOutput && rig.below.writerWaits == .writable && rig.stream.writerWaits == [])
      #expect(try rig.stream.write([4]) == .blocked(until: .writable))
      rig.stream.writerWaits = .writable
      rig.below.willWrite(.moved(1))
      rig.tellSpace()
      #expect(rig.recorder.events.isEmpty && rig.stream.hasPendingOutput)
      rig.below.willWrite(.moved(1))
      rig.tellSpace()
      #expect(rig.recorder.events == [.hasSpaceAvailable] && !rig.stream.hasPendingOutput)
      #expect(rig.below.written == wire(2, [1, 2, 3], mask: nil))
      rig.stream.writerWaits = []
      #expect(rig.below.writerWaits == [])
      rig.stream.close()
    }
  }

  @Test("answers a ping, and only the newest of many that it can't answer at once")
  func pongs() async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let rig = StreamRig(on: lane)
      #expect(try rig.handle(wire(9, [7]) + wire(2, [1]) + wire(9, [8]) + wire(10, [9])) == [1])
      #expect(rig.below.written == wire(10, [7], mask: nil) + wire(10, [8], mask: nil))
      let blocked = StreamRig(ScriptedStream(), on: lane)
      for count in 0..<1000 { _ = try blocked.handle(wire(9, [UInt8](repeating: UInt8(count % 251), count: 125))) }
      #expect(blocked.stream.undelivered.onItsWay < 400)
      blocked.below.willWrite(.moved(1000), .moved(1000))
      blocked.tellSpace()
      #expect(
        blocked.below.written.suffix(125).allSatisfy { $0 == UInt8(999 % 251) } && blocked.below.written.count < 300)

      // A client that is reset meanwhile is read once more, and reported as lost.
      let reset = StreamRig(ScriptedStream(), as: .server, .init(terms: .init(subprotocol: .baudwayV1)), on: lane)
      while reset.stream.send(event: [UInt8](repeating: 65, count: 1000)) {}
      reset.below.willRead(.bytes(wire(1, [68])))
      #expect(try reset.stream.read() == .moved(0) && reset.stream.takeControlText() == nil)
      let met = Gate()
      reset.stream.delegate = EventRecorder { if $0 == .hasBytesAvailable { met.open() } }
      reset.below.willWrite(.failed(SystemError("write", ECONNRESET)))
      reset.tellSpace()
      await met.wait(on: lane)
      #expect(reset.stream.takeControlText()?.bytes == [68])
      #expect(throws: SystemError.self) { try reset.stream.read() }
      for stream in [rig.stream, blocked.stream, reset.stream] { stream.close() }
    }
  }

  @Test("answers a flood of pings in one piece with a few pongs, including the last")
  func floodOfPings() async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let rig = StreamRig(on: lane)
      let flood = (0..<10_000).flatMap { wire(9, [UInt8($0 % 251)]) }
      #expect(try rig.handle(flood + wire(2, [1])) == [1])
      #expect(
        rig.below.writeCalls < 500 && rig.below.written.suffix(3) == wire(10, [UInt8(9999 % 251)], mask: nil)[...])
      rig.stream.close()
    }
  }

  @Test(
    "answers a close frame with its code, after what came before, and ends both ways",
    arguments: [([], []), ([3, 232], [3, 232]), ([0x0F, 0xA0, 65], [0x0F, 0xA0])] as [([UInt8], [UInt8])])
  func receivedClose(payload: [UInt8], answer: [UInt8]) async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let rig = StreamRig(on: lane)
      #expect(try rig.handle(wire(2, [1]) + wire(8, payload) + wire(2, [2])) == [1])
      #expect(rig.below.written == wire(8, answer, mask: nil))
      #expect(rig.stream.sawEnd && rig.stream.receivedClose != nil)
      #expect(try rig.stream.write([1]) == .ended)
      rig.stream.finishWriting()
      rig.stream.close()
      #expect(rig.below.written == wire(8, answer, mask: nil) && rig.below.isClosed)
    }
  }

  @Test("reports the end in the same turn as the bytes before it", arguments: [wire(8, []), wire(3, [])])
  func endBehindBytes(last: [UInt8]) async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let rig = StreamRig(on: lane)
      rig.below.willRead(.bytes(wire(2, [1]) + last))
      #expect(try rig.stream.readSome() == [1])
      #expect(rig.stream.hasBufferedInput)  // otherwise a pump would wait for bytes that never come
      _ = try? rig.stream.read()
      #expect(!rig.stream.hasBufferedInput)
      rig.stream.close()
    }
  }

  @Test(
    "closes with a reason after a protocol error, and throws it after the bytes before it",
    arguments: [
      (wire(3, []), 1002), (wire(1, [0xFF]), 1007), (wire(2, [UInt8](repeating: 1, count: 200)), 1009),
      (wire(8, [3]), 1002),
      (wire(8, [3, 237]), 1002), (wire(8, [3, 232, 0xFF]), 1007),
    ] as [([UInt8], Int)])
  func faults(bytes: [UInt8], code: Int) async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let rig = StreamRig(as: .server, .init(longestMessage: 100), on: lane)
      rig.below.willRead(.bytes(wire(2, [1]) + bytes))
      #expect(try rig.stream.readSome() == [1])
      #expect(throws: WebSocketFault.self) { try rig.stream.read() }
      rig.below.willRead(.bytes(wire(2, [2])), .ended)  // dropped: unread bytes would make a reset
      #expect(rig.stream.closeBehavior.hasClosingHandshake)
      let afterwards = (try rig.stream.read(), try rig.stream.read())
      #expect(afterwards == (.moved(0), .ended) && !rig.stream.closeBehavior.hasClosingHandshake)
      let sent = rig.below.written
      #expect(sent[0] == 0x88 && Int(sent[2]) << 8 | Int(sent[3]) == code && sent.count > 10)
      #expect(try rig.stream.write([1]) == .ended)
      rig.stream.close()
    }
  }

  @Test(
    "distinguishes an end between messages from one within",
    arguments: [[], [0x82], Array(wire(2, [1, 2]).dropLast()), wire(2, [], final: false)])
  func endsWithoutClose(bytes: [UInt8]) async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let rig = StreamRig(on: lane)
      if !bytes.isEmpty { _ = try rig.handle(bytes) }
      rig.below.willRead(.ended)
      if bytes.isEmpty {
        let gate = Gate()
        let recorder = EventRecorder { if $0 == .endEncountered { gate.open() } }
        rig.stream.delegate = recorder
        #expect(try rig.stream.read() == .ended)
        await gate.wait(on: lane)  // WebSocket has no half-close, so the end is reported at once
        #expect(recorder.events == [.endEncountered])
      } else {
        #expect { try rig.stream.read() } throws: { ($0 as? WebSocketFault)?.code == .truncated }
      }
      rig.stream.close()
      #expect(rig.below.written.isEmpty == !bytes.isEmpty)  // a lost peer gets no close frame
    }
  }

  @Test("sends its close frame once, after a held unit, and then reads until the other side ends")
  func finishes() async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let rig = StreamRig(ScriptedStream(writes: [.moved(1)]), on: lane)
      _ = try rig.stream.write([1])
      rig.stream.closing = WebSocketClose(1011, "device lost")
      rig.stream.finishWriting()
      rig.stream.finishWriting()
      #expect(
        rig.stream.hasPendingOutput && rig.stream.closeBehavior.hasClosingHandshake
          && !rig.stream.closeBehavior.canHalfClose)
      rig.below.willWrite(.moved(100), .moved(100))
      rig.tellSpace()
      #expect(rig.below.written == wire(2, [1], mask: nil) + wire(8, [3, 243] + Array("device lost".utf8), mask: nil))
      #expect(try rig.handle(wire(2, [5])) == [5])
      #expect(try rig.handle(wire(8, [3, 243])) == [] && rig.stream.sawEnd)
      rig.stream.close()
      #expect(rig.below.written.count == 3 + 15)
    }
  }

  @Test("masks what a client sends, each frame with a mask of its own")
  func masks() async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let client = StreamRig(as: .client, on: lane)
      for _ in 0..<8 { #expect(try client.stream.write([0, 0, 0, 0]) == .moved(4)) }
      let masks = Set(stride(from: 0, to: 80, by: 10).map { Array(client.below.written[($0 + 2)..<($0 + 6)]) })
      #expect(masks.count == 8 && client.below.written[1] == 0x84)
      let server = StreamRig(on: lane)
      #expect(try server.handle(client.below.written) == [UInt8](repeating: 0, count: 32))
      #expect(try client.handle(wire(2, [1], mask: nil)) == [1])
      client.stream.close()
      server.stream.close()
    }
  }

  @Test("carries control texts both ways at their positions, and no more than it may keep")
  func controlTexts() async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let rig = StreamRig(as: .server, .init(terms: .init(subprotocol: .baudwayV1)), on: lane)
      #expect(try rig.handle(wire(2, [1, 2]) + wire(1, [65]) + wire(2, [3]) + wire(1, [66])) == [1, 2, 3])
      #expect(rig.stream.takeControlText() == .init(bytes: [65], position: 2))
      #expect(rig.stream.takeControlText() == .init(bytes: [66], position: 3))
      #expect(rig.stream.takeControlText() == nil)
      #expect(rig.stream.send(event: Array("{}".utf8)) && rig.below.written == wire(1, Array("{}".utf8), mask: nil))

      let many = (0..<100).flatMap { wire(1, [UInt8($0)]) } + wire(2, [9])
      rig.below.willRead(.bytes(many))
      #expect(try rig.stream.read() == .moved(0))
      #expect(try rig.stream.read() == .blocked(until: []))
      #expect(rig.stream.hasBufferedInput)
      for count in 0..<100 {
        #expect(rig.stream.takeControlText()?.bytes == [UInt8(count)])
        if count == 63 { #expect(try rig.readAll() == [9]) }
      }
      let blocked = StreamRig(ScriptedStream(), as: .server, .init(terms: .init(subprotocol: .baudwayV1)), on: lane)
      var accepted = 0
      while accepted < 10_000, blocked.stream.send(event: [UInt8](repeating: 65, count: 1000)) { accepted += 1 }
      #expect(accepted >= 60 && blocked.stream.undelivered.onItsWay <= 70_000)

      // While a client does not read its events, its requests are not read either; reading continues when it reads
      // again.
      blocked.below.willRead(.bytes(wire(1, [67])))
      #expect(try blocked.stream.read() == .moved(0) && blocked.stream.takeControlText() == nil)
      let gate = Gate()
      blocked.stream.delegate = EventRecorder { if $0 == .hasBytesAvailable { gate.open() } }
      blocked.below.willWrite(.moved(100_000), .moved(100_000))
      blocked.tellSpace()
      await gate.wait(on: lane)
      #expect(blocked.stream.takeControlText()?.bytes == [67])
      rig.stream.close()
      blocked.stream.close()
    }
  }

  @Test("closes the stream below, returns ended, and releases its delegate")
  func closes() async throws {
    try await onLane { (lane: isolated Lane) async throws -> Void in
      let rig = StreamRig(on: lane)
      rig.stream.close()
      rig.stream.close()
      #expect(rig.below.written == wire(8, [3, 232], mask: nil) && rig.below.isClosed && rig.recorder.closings == 1)
      let answers = (try rig.stream.read(), try rig.stream.write([1]))
      #expect(answers == (.ended, .ended))
      let broken = StreamRig(on: lane)
      broken.stream.abort()
      #expect(broken.below.isAborted && broken.below.written.isEmpty)
    }
  }
}
