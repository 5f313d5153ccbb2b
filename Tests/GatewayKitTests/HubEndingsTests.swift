// When a session ends, and which bytes are delivered before: every ending that the hub decides, with its counts.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A session on a shared link", .timeLimit(.minutes(5)))
struct SharedEndingsTests {
  /// A client that has sent two bytes and its FIN, on a device that takes everything.
  private func halfClosed(_ rig: HubRig, writes: [ScriptedStream.Step] = []) throws -> (
    session: Session, client: ScriptedStream, endpoint: ScriptedStream
  ) {
    let client = ScriptedStream(reads: [.bytes([1, 2]), .ended], writes: writes, takesAll: true)
    client.hasBufferedInput = true
    let session = rig.join(client)
    let endpoint = ScriptedStream(takesAll: true)
    rig.hub.attach(endpoint)
    rig.wakeReader(client)
    #expect(endpoint.written == [1, 2] && !endpoint.finishedWriting)
    return (session, client, endpoint)
  }

  @Test("receives after its FIN for the half-close time, counted from the FIN or from the last byte sent to it")
  func halfClosed() throws {
    let rig = try HubRig()
    let (session, client, endpoint) = try halfClosed(rig)
    #expect(session.isHalfClosed)
    rig.advance(by: .seconds(4))
    endpoint.willRead(.moved(7))
    rig.wakeReader(endpoint)
    rig.advance(by: .milliseconds(4980))
    #expect(rig.ending(of: session) == nil && client.written == pattern(0..<7))
    rig.advance(by: .milliseconds(40))
    #expect(rig.ending(of: session) == .clientLeft, "5 s after the byte, and not in whole 5 s after the FIN")
    #expect(session.up.bytes == 2 && session.down.bytes == 7 && session.dropped == 0)
  }

  @Test("ends 5 s after its FIN if nothing is sent to it")
  func halfClosedInSilence() throws {
    let rig = try HubRig()
    let (session, _, _) = try halfClosed(rig)
    rig.advance(by: .milliseconds(4980))
    #expect(rig.ending(of: session) == nil)
    rig.advance(by: .milliseconds(40))
    #expect(rig.ending(of: session) == .noAnswer, "what it asked for may come later")
  }

  @Test("ends with its FIN if half-close is off, after receiving what was kept for it")
  func halfCloseOff() throws {
    let rig = try HubRig(halfClose: nil)
    #expect(rig.ending(of: try halfClosed(rig).session) == .clientLeft)
    let slow = ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true)
    let session = rig.join(slow)
    let endpoint = ScriptedStream(reads: [.moved(3)], takesAll: true)
    _ = rig.hub.detach()
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    slow.willRead(.ended)
    rig.wakeReader(slow)
    #expect(rig.ending(of: session) == nil && session.leaving?.word == .clientLeft)
    rig.wakeWriter(slow)
    #expect(rig.ending(of: session) == .clientLeft && slow.written.count == 3 && session.dropped == 0)
  }

  @Test("has 30 s after its FIN while output waits for it: closing its socket now would send a reset")
  func halfClosedAndSlow() throws {
    let rig = try HubRig()
    let (session, client, endpoint) = try halfClosed(rig, writes: [.blocked(until: .writable)])
    endpoint.willRead(.moved(7))
    rig.wakeReader(endpoint)
    rig.advance(by: .seconds(27))
    #expect(rig.ending(of: session) == nil)
    rig.wakeWriter(client)
    #expect(client.written == pattern(0..<7))
    rig.advance(by: .milliseconds(4980))
    #expect(rig.ending(of: session) == nil)
    rig.advance(by: .milliseconds(40))
    #expect(rig.ending(of: session) == .clientLeft && session.dropped == 0)

    let (other, _, again) = try halfClosed(rig, writes: [.blocked(until: .writable)])
    again.willRead(.moved(7))
    rig.wakeReader(again)
    rig.advance(by: .seconds(29))
    #expect(rig.ending(of: other) == nil)
    rig.advance(by: .seconds(2))
    #expect(rig.ending(of: other) == .clientLeft && other.dropped == 7, "it took none of it")
  }

  @Test("follows a half-close time that a reload changes", arguments: [Duration.seconds(60), .seconds(1), nil])
  func halfCloseReloaded(other: Duration?) throws {
    let rig = try HubRig()
    let (session, _, _) = try halfClosed(rig)
    rig.advance(by: .milliseconds(500))
    var policy = rig.hub.policy
    policy.halfClose = other
    rig.hub.update(policy)
    #expect(rig.ending(of: session) == (other == nil ? .clientLeft : nil))
    guard let other else { return }
    rig.advance(by: other - .milliseconds(520))
    #expect(rig.ending(of: session) == nil)
    rig.advance(by: .milliseconds(40))
    #expect(rig.ending(of: session) == .noAnswer)
  }

  @Test("ends after device.drain when the device takes nothing of the input before its FIN")
  func stuckDevice() throws {
    let rig = try HubRig(drain: .seconds(5))
    let client = ScriptedStream(reads: [.moved(20), .ended])
    client.hasBufferedInput = true
    let session = rig.join(client)
    rig.hub.attach(ScriptedStream(writes: [.blocked(until: .writable)]))
    rig.wakeReader(client)
    #expect(session.pump.sourceEnded && !session.isHalfClosed && session.ending.finishedAt != nil)
    rig.advance(by: .milliseconds(4980))
    #expect(rig.ending(of: session) == nil)
    rig.advance(by: .milliseconds(40))
    #expect(rig.ending(of: session) == .clientLeft && session.dropped == 20, "not half a minute, or 5 s, later")
  }

  @Test("has its input delivered after its client left, as long as that makes progress")
  func drain() throws {
    let rig = try HubRig(drain: .seconds(5))
    let client = ScriptedStream(reads: [.moved(40), .failed(SystemError("read", 104))])
    client.hasBufferedInput = true
    let session = rig.join(client)
    let endpoint = ScriptedStream(writes: [.blocked(until: .writable)])
    rig.hub.attach(endpoint)
    rig.wakeReader(client)
    for _ in 0..<10 {
      rig.advance(by: .seconds(4), step: .seconds(1))
      #expect(rig.ending(of: session) == nil)
      endpoint.willWrite(.moved(2))
      rig.wakeWriter(endpoint)
    }
    #expect(endpoint.written.count == 20)
    rig.advance(by: .seconds(11), step: .seconds(1))
    #expect(rig.ending(of: session) == .clientLost)
    #expect(session.up.bytes == 20 && session.dropped == 20)
  }

  @Test("does not wait forever to read the end of a client that closed while its ring was full and the endpoint away")
  func leftBehindAFullRing() throws {
    let rig = try HubRig(buffer: 16, drain: .seconds(5))
    let client = ScriptedStream(reads: [.moved(1000), .ended])
    let session = rig.join(client)
    rig.wakeReader(client)
    #expect(client.readerWaits == [] && session.pump.count == 16)
    rig.advance(by: .seconds(60), step: .seconds(1))
    #expect(session.pump.count == 16, "he may be there still")
    rig.report(client, .inputEnded)
    rig.advance(by: .seconds(4), step: .seconds(1))
    #expect(session.pump.count == 16 && !session.isHalfClosed)
    rig.advance(by: .seconds(2), step: .seconds(1))
    #expect(session.isHalfClosed && session.dropped == 16, "his place is free for somebody else")
    rig.advance(by: .seconds(31), step: .seconds(1))
    #expect(rig.ending(of: session) == .clientLeft && session.dropped == 16)
  }

  @Test(
    "that is ended in order delivers the input its client has sent so far, also unread input",
    arguments: [[.moved(100), .ended], [.moved(100)]] as [[ScriptedStream.Step]])
  func sentAway(reads: [ScriptedStream.Step]) throws {
    let rig = try HubRig(buffer: 16)
    let client = ScriptedStream(reads: reads)
    client.hasBufferedInput = true
    let session = rig.join(client)
    let endpoint = ScriptedStream(writes: [.blocked(until: .writable)])
    rig.hub.attach(endpoint)
    rig.hub.leaveAll(Ending(.shutdown))
    for _ in 0..<60 where rig.ending(of: session) == nil {
      rig.advance(by: .seconds(4), step: .seconds(1))
      endpoint.willWrite(.moved(2), .blocked(until: .writable))
      rig.wakeWriter(endpoint)
      rig.wakeReader(client)
    }
    #expect(rig.ending(of: session) == .shutdown && endpoint.written == pattern(0..<100) && session.dropped == 0)
  }

  @Test(
    "that is ended in order delivers input that the client's kernel could send only after ours had room",
    arguments: [19, 21])
  func sentAwayBehindFullBuffers(gap: Int) throws {
    let rig = try HubRig()
    let client = ScriptedStream(reads: [.bytes([1])])
    let session = rig.join(client)
    let endpoint = ScriptedStream(takesAll: true)
    rig.hub.attach(endpoint)
    rig.hub.leaveAll(Ending(.shutdown))
    for byte in UInt8(2)...4 {
      rig.advance(by: .milliseconds(gap), step: .milliseconds(1))
      client.willRead(.bytes([byte]))
      rig.wakeReader(client)
    }
    #expect(endpoint.written == (gap < 20 ? [1, 2, 3, 4] : [1]))
    rig.advance(by: .milliseconds(40))
    #expect(rig.ending(of: session) == .shutdown)
  }

  @Test("that is ended in order does not last as long as its client keeps sending")
  func sentAwayWhileSending() throws {
    let rig = try HubRig(buffer: 65_536)
    let client = ScriptedStream(reads: [.moved(1 << 30)])
    let session = rig.join(client)
    let endpoint = ScriptedStream(takesAll: true)
    rig.hub.attach(endpoint)
    rig.hub.leaveAll(Ending(.shutdown))
    for _ in 0..<1000 where rig.ending(of: session) == nil { rig.wakeReader(client) }
    #expect(rig.ending(of: session) == .shutdown && endpoint.written.count < 5 << 20)
  }

  @Test("has all input delivered after its client left, though there was no room to read it")
  func leftBehindASlowEndpoint() throws {
    let rig = try HubRig(buffer: 16, drain: .seconds(5))
    let client = ScriptedStream(reads: [.moved(100), .ended])
    client.hasBufferedInput = true
    let session = rig.join(client)
    let endpoint = ScriptedStream(writes: [.blocked(until: .writable)])
    rig.hub.attach(endpoint)
    rig.wakeReader(client)
    rig.report(client, .inputEnded)
    for _ in 0..<50 {
      rig.advance(by: .seconds(4), step: .seconds(1))
      endpoint.willWrite(.moved(2), .blocked(until: .writable))
      rig.wakeWriter(endpoint)
    }
    #expect(endpoint.written == pattern(0..<100))
    #expect(session.isHalfClosed && session.dropped == 0)
  }

  @Test(
    "ends as client-lost when its client's stream fails, with the stream's error",
    arguments: [SystemError("read", 104), SystemError("write", 110)])
  func lost(error: SystemError) throws {
    let rig = try HubRig()
    let client = ScriptedStream(takesAll: true)
    let session = rig.join(client)
    rig.report(client, .errorOccurred(error))
    #expect(rig.ending(of: session) == .clientLost)
    #expect(rig.endings[session.number]?.first?.cause as? SystemError == error)
  }

  // EPIPE follows an end that came before the reset. Any other reset is reported once: to the write or to the read.
  @Test(
    "ends as client-left after EPIPE and the client's FIN, and as client-lost if a write failed otherwise",
    arguments: [(Int32(32), Ending.Word.clientLeft), (104, .clientLost), (110, .clientLost)])
  func brokenPipe(errno: Int32, word: Ending.Word) throws {
    let rig = try HubRig()
    let client = ScriptedStream(reads: [.ended], writes: [.failed(SystemError("write", errno))])
    let session = rig.join(client)
    let endpoint = ScriptedStream(reads: [.moved(9)])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    #expect(rig.ending(of: session) == nil && session.dropped == 9)
    rig.wakeReader(client)
    #expect(rig.ending(of: session) == word && session.down.bytes == 0 && session.dropped == 9)
  }

  @Test("ends as internal when there is no memory for its ring", arguments: [true, false])
  func noMemory(up: Bool) throws {
    // A ring that no machine can map; the configuration allows 16 MiB.
    let rig = try HubRig(buffer: 1 << 56)
    let clients = (0..<1000).map { _ in ScriptedStream(reads: [.bytes([1])], takesAll: true) }
    let sessions = clients.map { rig.join($0) }
    let endpoint = ScriptedStream(reads: [.bytes([1])], takesAll: true)
    rig.hub.attach(endpoint)
    if up {
      for client in clients { rig.wakeReader(client) }
    } else {
      rig.wakeReader(endpoint)
      #expect(endpoint.readerWaits == [] && !endpoint.isClosed)
    }
    #expect(sessions.allSatisfy { rig.ending(of: $0) == .internal })
    guard !up else { return }
    // With the next client, reading is tried again: that client must not get nothing for ever.
    let newcomer = rig.join(ScriptedStream(takesAll: true))
    #expect(endpoint.readerWaits == .readable)
    rig.wakeReader(endpoint)
    #expect(endpoint.readerWaits == [] && rig.ending(of: newcomer) == .internal)
  }

  @Test("that is ended in order receives all output from before, and no later output delays its end")
  func leaveAll() throws {
    let rig = try HubRig()
    let slow = ScriptedStream(reads: [.bytes([5])], writes: [.moved(1), .blocked(until: .writable)])
    let quick = ScriptedStream(takesAll: true)
    let (late, early) = (rig.join(slow), rig.join(quick))
    let endpoint = ScriptedStream(reads: [.moved(10)], writes: [.blocked(until: .writable)], takesAll: true)
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    rig.wakeReader(slow)
    rig.hub.leaveAll(Ending(.shutdown))
    rig.advance(by: .milliseconds(20))
    #expect(rig.ending(of: early) == .shutdown && rig.ending(of: late) == nil)
    endpoint.willRead(.moved(10))  // output that arrives after the ending began does not delay it
    rig.wakeReader(endpoint)
    slow.willWrite(.moved(9), .blocked(until: .writable))
    rig.wakeWriter(slow)
    #expect(rig.ending(of: late) == nil, "his input is still on its way")
    rig.wakeWriter(endpoint)
    #expect(rig.ending(of: late) == .shutdown && late.up.bytes == 1 && late.down.bytes == 10)
  }

  @Test("that is ended in order drops and counts what it can't deliver")
  func stuckLeaving() throws {
    let rig = try HubRig(slow: .disconnect, drain: .seconds(5))
    let session = rig.join(ScriptedStream())
    let endpoint = ScriptedStream(reads: [.moved(10)])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    rig.hub.leaveAll(Ending(.routeRemoved))
    rig.advance(by: .seconds(6), step: .seconds(1))
    #expect(rig.ending(of: session) == .routeRemoved && session.dropped == 10)
  }

  @Test(
    "of a slow client that is ended in order waits as long as the policy did, while the client reads",
    arguments: [Config.Clients.Slow.block, .automatic, .disconnect])
  func leavingSlowly(slow: Config.Clients.Slow) throws {
    let rig = try HubRig(slow: slow, drain: .seconds(5))
    let client = ScriptedStream()
    let session = rig.join(client)
    let endpoint = ScriptedStream(reads: [.moved(10)])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    client.undelivered = .onItsWay(100_000)
    rig.hub.leaveAll(Ending(.deviceLost))
    rig.advance(by: .seconds(6), step: .seconds(1))
    guard slow != .disconnect else { return #expect(rig.ending(of: session) == .deviceLost) }
    for _ in 0..<3 {  // the client reads, though there is no room for more yet
      client.undelivered = .onItsWay(client.undelivered.onItsWay - 10_000)
      rig.advance(by: .seconds(29), step: .seconds(1))
      #expect(rig.ending(of: session) == nil)
    }
    rig.advance(by: .seconds(61), step: .seconds(1))
    #expect(rig.ending(of: session) == .deviceLost && session.dropped == 10)
  }

  @Test("that is ended in order without an endpoint drops kept input at once")
  func leavingWithoutEndpoint() throws {
    let rig = try HubRig()
    let client = ScriptedStream(reads: [.moved(10)])
    let session = rig.join(client)
    rig.wakeReader(client)
    rig.hub.leaveAll(Ending(.shutdown))
    #expect(rig.ending(of: session) == .shutdown && session.dropped == 10 && session.up.bytes == 0)
  }
}

@Suite("A session on a per-client link", .timeLimit(.minutes(5)))
struct OwnLinkEndingsTests {
  private func rig() throws -> HubRig {
    let rig = try HubRig(isShared: false)
    rig.keepsEndedEndpoint = true
    return rig
  }

  @Test("has its input delivered after its client's end for the time of device.drain, and at least 30 s")
  func drain() throws {
    for (drain, limit) in [(Duration.seconds(5), 30), (.seconds(60), 60)] {
      let rig = try HubRig(isShared: false, drain: drain)
      let client = ScriptedStream(reads: [.moved(3), .ended])
      client.hasBufferedInput = true
      let session = rig.join(client)
      rig.hub.attach(ScriptedStream())
      rig.wakeReader(client)
      rig.advance(by: .seconds(limit - 1), step: .seconds(1))
      #expect(rig.ending(of: session) == nil)
      rig.advance(by: .seconds(2), step: .seconds(1))
      #expect(rig.ending(of: session) == .clientLeft && session.dropped == 3)
    }
  }

  @Test("forwards the client's end, and waits for the endpoint's end as long as it takes")
  func clientFirst() throws {
    let rig = try rig()
    let client = ScriptedStream(reads: [.moved(3), .ended], takesAll: true)
    client.hasBufferedInput = true
    let session = rig.join(client)
    // The last bytes are blocked for a while: the time limit for that must not end the wait that follows.
    let endpoint = ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true)
    rig.hub.attach(endpoint)
    rig.wakeReader(client)
    #expect(!endpoint.finishedWriting)
    rig.advance(by: .seconds(20), step: .seconds(1))
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == pattern(0..<3) && endpoint.finishedWriting)
    rig.advance(by: .seconds(600), step: .seconds(10))
    #expect(rig.ending(of: session) == nil)
    endpoint.willRead(.moved(50), .ended)
    rig.wakeReader(endpoint)
    rig.wakeReader(endpoint)
    #expect(client.written == pattern(0..<50))
    #expect(
      rig.ending(of: session) == .clientLeft && session.up.bytes == 3 && session.down.bytes == 50
        && session.dropped == 0)
  }

  @Test("forwards the endpoint's end after its last bytes, and the client may go on sending")
  func endpointFirst() throws {
    let rig = try rig()
    let client = ScriptedStream(writes: [.moved(4), .blocked(until: .writable)], takesAll: true)
    let session = rig.join(client)
    let endpoint = ScriptedStream(reads: [.moved(20), .ended], takesAll: true)
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    rig.wakeReader(endpoint)
    #expect(!client.finishedWriting)
    rig.wakeWriter(client)
    #expect(client.finishedWriting && client.written == pattern(0..<20))
    for _ in 0..<5 {
      rig.advance(by: .seconds(29), step: .seconds(1))
      client.willRead(.bytes([7]))
      rig.wakeReader(client)
    }
    #expect(endpoint.written.count == 5 && rig.ending(of: session) == nil)
    client.willRead(.ended)
    rig.wakeReader(client)
    #expect(rig.ending(of: session) == .endpointLeft && session.up.bytes == 5 && session.down.bytes == 20)
  }

  @Test("ends when the client does nothing for 30 s after its endpoint's end")
  func idleAfterEnd() throws {
    let rig = try rig()
    let client = ScriptedStream(takesAll: true)
    let session = rig.join(client)
    let endpoint = ScriptedStream(reads: [.ended])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    rig.advance(by: .seconds(61), step: .seconds(1))
    #expect(rig.ending(of: session) == .endpointLeft)
  }

  @Test("never delivers input with a gap: once a part is dropped, the rest is dropped too")
  func noHole() throws {
    let rig = try rig()
    let client = ScriptedStream(reads: [.moved(10)], takesAll: true)
    let session = rig.join(client)
    let endpoint = ScriptedStream(reads: [.ended])
    rig.hub.attach(endpoint)
    rig.wakeReader(client)
    rig.wakeReader(endpoint)
    rig.advance(by: .seconds(61), step: .seconds(1))
    #expect(rig.ending(of: session) == .endpointLeft && session.dropped == 10 && endpoint.written.isEmpty)
  }

  @Test("ends after the endpoint's last bytes are delivered, when both its directions are over")
  func endpointHangsUp() throws {
    let rig = try rig()
    let client = ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true)
    let session = rig.join(client)
    let endpoint = ScriptedStream(reads: [.moved(8), .ended])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    rig.wakeReader(endpoint)
    rig.report(endpoint, .endEncountered)
    #expect(rig.ending(of: session) == nil)
    rig.wakeWriter(client)
    #expect(client.written == pattern(0..<8) && rig.ending(of: session) == .endpointLeft)
  }

  @Test("ends with its client if the endpoint can't be half-closed")
  func noHalfClose() throws {
    let rig = try rig()
    let client = ScriptedStream(reads: [.ended], takesAll: true)
    let session = rig.join(client)
    let endpoint = ScriptedStream()
    endpoint.closeBehavior.canHalfClose = false
    rig.hub.attach(endpoint)
    rig.wakeReader(client)
    #expect(rig.ending(of: session) == .clientLeft && !endpoint.finishedWriting)
  }

  @Test("gives a blocked endpoint 30 s for the client's last bytes, then counts them as dropped")
  func stuckEndpoint() throws {
    let rig = try rig()
    let client = ScriptedStream(reads: [.moved(3), .ended], takesAll: true)
    client.hasBufferedInput = true
    let session = rig.join(client)
    let endpoint = ScriptedStream()
    rig.hub.attach(endpoint)
    rig.wakeReader(client)
    rig.advance(by: .seconds(29), step: .seconds(1))
    #expect(rig.ending(of: session) == nil)
    rig.advance(by: .seconds(2), step: .seconds(1))
    #expect(rig.ending(of: session) == .clientLeft && session.dropped == 3 && !endpoint.finishedWriting)
  }
}
