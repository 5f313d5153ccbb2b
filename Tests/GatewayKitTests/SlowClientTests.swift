// Clients that delay others, on a manual clock: the counter of their time, and the hub that uses it.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A slow clock", .timeLimit(.minutes(5)))
struct SlowClockTests {
  private func milliseconds(_ count: UInt64) -> UInt64 { count * 1_000_000 }

  // The macro can't call methods that mutate the clock.
  private func mustAllow(_ isTooMuch: Bool) { #expect(!isTooMuch) }
  private func mustEnd(_ isTooMuch: Bool) { #expect(isTooMuch) }

  @Test("allows one stretch of less than 40 ms")
  func oneStretch() {
    var clock = SlowClientClock()
    mustAllow(clock.charge(milliseconds(39), at: milliseconds(100)))
    mustEnd(clock.charge(milliseconds(1), at: milliseconds(101)))
  }

  @Test("starts a new stretch after the hub could read on")
  func anew() {
    var clock = SlowClientClock()
    mustAllow(clock.charge(milliseconds(39), at: milliseconds(100)))
    clock.stretchEnded()
    mustAllow(clock.charge(milliseconds(39), at: milliseconds(200)))
  }

  @Test("allows 150 ms in any five seconds, in stretches of any length", arguments: [UInt64(1), 3, 10, 30])
  func window(length: UInt64) {
    var clock = SlowClientClock()
    var charged: UInt64 = 0
    var now = milliseconds(1)
    while charged + length < 150 {
      mustAllow(clock.charge(milliseconds(length), at: now))
      clock.stretchEnded()
      charged += length
      now += milliseconds(20)
    }
    mustEnd(clock.charge(milliseconds(length), at: now))
  }

  @Test("forgets time more than five seconds ago")
  func forgets() {
    var clock = SlowClientClock()
    for second in 0..<60 as Range<UInt64> {
      mustAllow(clock.charge(milliseconds(28), at: milliseconds(second * 1100)))
      clock.stretchEnded()
    }
  }
}

@Suite("A hub with a slow client", .timeLimit(.minutes(5)))
struct SlowClientTests {
  /// A hub whose ring is full: `stuck` took nothing, `healthy` everything.
  private func fullHub(
    slow: Config.Clients.Slow = .automatic
  ) throws -> (rig: HubRig, stuck: Session, stream: ScriptedStream, healthy: Session, endpoint: ScriptedStream) {
    let rig = try HubRig(slow: slow)
    let stream = ScriptedStream()
    let stuck = rig.join(stream)
    let healthy = rig.join(ScriptedStream(takesAll: true))
    let endpoint = ScriptedStream(reads: [.moved(100_000)])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    #expect(endpoint.readerWaits == [] && healthy.down.bytes == 64)
    return (rig, stuck, stream, healthy, endpoint)
  }

  @Test("ends the client after delaying another for 40 to 50 ms, counts its lost output, and reads on")
  func ends() throws {
    let (rig, stuck, _, healthy, endpoint) = try fullHub()
    rig.advance(by: .milliseconds(39), step: .milliseconds(1))
    #expect(rig.ending(of: stuck) == nil)
    rig.advance(by: .milliseconds(11), step: .milliseconds(1))
    #expect(rig.ending(of: stuck) == .tooSlow)
    #expect(stuck.down.bytes == 0 && stuck.dropped == 64)
    #expect(rig.ending(of: healthy) == nil && healthy.down.bytes > 64)
    #expect(endpoint.readerWaits == .readable)
  }

  @Test("waits for the client without limit where the policy is block")
  func blocks() throws {
    let (rig, stuck, _, healthy, endpoint) = try fullHub(slow: .block)
    rig.advance(by: .seconds(60), step: .milliseconds(100))
    #expect(rig.ending(of: stuck) == nil && rig.ending(of: healthy) == nil)
    #expect(endpoint.readerWaits == [])
  }

  @Test("ends a client that reads in trickles by the sum of the delays it causes")
  func trickles() throws {
    let (rig, stuck, stream, _, _) = try fullHub()
    var steps = 0
    while rig.ending(of: stuck) == nil, steps < 1000 {
      steps += 1
      rig.advance(by: .milliseconds(20))
      stream.willWrite(.moved(8))
      rig.wakeWriter(stream)
    }
    #expect(rig.ending(of: stuck) == .tooSlow)
    #expect(6...12 ~= steps, "150 ms in stretches of 20 ms, not \(steps)")
  }

  @Test("does not charge a client for the lane's own delay")
  func lateLane() throws {
    let (rig, stuck, stream, _, _) = try fullHub()
    rig.advance(by: .milliseconds(400), step: .milliseconds(400))  // the whole process had no CPU
    stream.willWrite(.moved(64))
    rig.wakeWriter(stream)
    #expect(rig.ending(of: stuck) == nil)
  }

  @Test("uses plain back-pressure while all clients are slow")
  func allLag() throws {
    let rig = try HubRig()
    let sessions = (0..<3).map { _ in rig.join(ScriptedStream()) }
    let endpoint = ScriptedStream(reads: [.moved(100_000)])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    rig.advance(by: .seconds(60), step: .milliseconds(100))
    #expect(sessions.allSatisfy { rig.ending(of: $0) == nil } && endpoint.readerWaits == [])
  }

  @Test("ends a lone, blocked client when another client comes that would wait for it")
  func newcomer() throws {
    let rig = try HubRig()
    let stuck = rig.join(ScriptedStream())
    let endpoint = ScriptedStream(reads: [.moved(100_000)])
    rig.hub.attach(endpoint)
    for _ in 0..<3 { rig.wakeReader(endpoint) }
    // A lone client fills half the ring. With another client the rest is filled too, and then the other waits.
    let newcomer = rig.join(ScriptedStream(takesAll: true))
    for _ in 0..<3 { rig.wakeReader(endpoint) }
    rig.advance(by: .milliseconds(50))
    #expect(rig.ending(of: stuck) == .tooSlow && rig.ending(of: newcomer) == nil)
  }

  @Test("keeps a slow client when the clients that it delayed have gone")
  func leftAlone() throws {
    let (rig, stuck, _, healthy, _) = try fullHub()
    rig.advance(by: .milliseconds(35), step: .milliseconds(5))
    rig.hub.end(healthy, Ending(.clientLeft))
    rig.advance(by: .seconds(10))
    #expect(rig.ending(of: stuck) == nil)
  }

  @Test("makes no client wait when the device is away")
  func absentDevice() throws {
    let (rig, stuck, _, _, endpoint) = try fullHub()
    rig.report(endpoint, .errorOccurred(SystemError("read", 5)))
    rig.hub.detach()?.close()
    rig.advance(by: .seconds(10))
    #expect(rig.ending(of: stuck) == nil)
  }
}
