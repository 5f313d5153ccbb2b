// `drop-oldest`: a slow client loses its oldest kept output, so that the device and other clients need not wait. Tested
// are when and how much, and that the client receives the endpoint's output except for whole pieces, which are counted.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A hub with 'slow: drop-oldest'", .timeLimit(.minutes(5)))
struct DropOldestTests {
  private func hub(buffer: Int = 64, packets: Config.Packets? = nil) throws -> HubRig {
    try HubRig(buffer: buffer, slow: .dropOldest, packets: packets)
  }

  /// The endpoint sends `count` more bytes, as a device that never waits: one step per millisecond.
  private func say(_ count: Int, _ endpoint: ScriptedStream, _ rig: HubRig, step: Int = 8) {
    for _ in 0..<count / step {
      endpoint.willRead(.moved(step))
      rig.wakeReader(endpoint)
      rig.advance(by: .milliseconds(1), step: .milliseconds(1))
      rig.wakeReader(endpoint)
    }
  }

  @Test("lets a lone client delay the endpoint for at most 50 ms, and gives it the newest output")
  func alone() throws {
    let rig = try hub()
    let client = ScriptedStream()
    let session = rig.join(client)
    let endpoint = ScriptedStream(reads: [.moved(100)])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    rig.wakeReader(endpoint)
    #expect(endpoint.readerWaits == [] && rig.hub.head == 64, "the whole ring is his")
    rig.advance(by: .milliseconds(39), step: .milliseconds(1))
    #expect(session.dropped == 0)
    rig.advance(by: .milliseconds(11), step: .milliseconds(1))
    #expect(session.dropped == 64 && rig.hub.head == 100, "twice the older half: the ring was full again")
    for _ in 0..<10 { rig.wakeReader(endpoint) }
    #expect(rig.hub.head == 100 && endpoint.readerWaits == .readable)
    client.willWrite(.moved(1000))
    rig.wakeWriter(client)
    let (dropped, down) = (Int(session.dropped), Int(session.down.bytes))
    #expect(dropped + down == 100 && dropped == Int(session.down.droppedAsSlow) && down >= 32)
    #expect(client.written == pattern(dropped..<100))
    #expect(rig.ending(of: session) == nil)
  }

  @Test(
    "drops output of a terminal only, whatever the route's policy for slow clients",
    arguments: [
      Config.Clients.Slow.automatic, .block, .disconnect,
    ])
  func terminal(slow: Config.Clients.Slow) throws {
    let rig = try HubRig(buffer: 64, slow: slow)
    let (stuck, healthy) = (ScriptedStream(), ScriptedStream(takesAll: true))
    let terminal = rig.join(stuck, isTerminal: true)
    let other = rig.join(healthy)
    #expect(stuck.unsentLimits == [64] && healthy.unsentLimits == [])
    let endpoint = ScriptedStream()
    rig.hub.attach(endpoint)
    say(1600, endpoint, rig)
    #expect(rig.hub.head > 1200 && other.dropped == 0)
    #expect(terminal.dropped > 0 && terminal.dropped == terminal.down.droppedAsSlow)
    rig.hub.end(other, Ending(.clientLeft))
    say(1600, endpoint, rig)
    #expect(rig.hub.head > 2400, "nor does a terminal that is alone delay the device")
    #expect(rig.ending(of: terminal) == nil && rig.drops[terminal.number] != nil)
  }

  @Test(
    "does not end a client that is alone but for a terminal, and lets it delay the device",
    arguments: [Config.Clients.Slow.block, .automatic])
  func besideTerminal(slow: Config.Clients.Slow) throws {
    let rig = try HubRig(buffer: 64, slow: slow)
    let (stuck, terminal) = (ScriptedStream(), ScriptedStream(takesAll: true))
    let session = rig.join(stuck)
    rig.join(terminal, isTerminal: true)
    let endpoint = ScriptedStream()
    rig.hub.attach(endpoint)
    say(400, endpoint, rig)
    rig.advance(by: .seconds(30), step: .milliseconds(100))
    #expect(rig.hub.head == 64 && session.dropped == 0 && rig.ending(of: session) == nil)
  }

  @Test("drops nothing of a terminal whose link is its own: it delays nobody else")
  func ownLink() throws {
    let rig = try HubRig(buffer: 64, slow: .automatic)
    let terminal = rig.join(ScriptedStream(), isTerminal: true, hasOwnLink: true)
    let endpoint = ScriptedStream()
    rig.hub.attach(endpoint)
    say(400, endpoint, rig)
    #expect(rig.hub.head <= 64 && terminal.dropped == 0 && rig.ending(of: terminal) == nil)
  }

  @Test("bounds what the kernel keeps unsent for a client by its buffer, also after a reload, and else leaves it alone")
  func kernel() throws {
    let rig = try hub(buffer: 4096)
    let client = ScriptedStream()
    rig.join(client)
    #expect(client.unsentLimits == [4096])
    var policy = rig.hub.policy
    policy.buffer = 1 << 20
    rig.hub.update(policy)
    policy.slow = .automatic
    rig.hub.update(policy)
    #expect(client.unsentLimits == [4096, 128 << 10, 128 << 10], "the usual limit is also the highest")
    let other = try HubRig(buffer: 4096)
    let free = ScriptedStream()
    other.join(free)
    #expect(free.unsentLimits == [])
  }

  @Test("lets a slow client delay the others once, for at most 50 ms, and not again before it has caught up")
  func others() throws {
    let rig = try hub()
    let (stuck, healthy) = (ScriptedStream(), ScriptedStream(takesAll: true))
    let session = rig.join(stuck)
    rig.join(healthy)
    let endpoint = ScriptedStream()
    rig.hub.attach(endpoint)
    var longest = 0
    var delay = 0
    for step in 1...400 {
      endpoint.willRead(.moved(8))
      rig.advance(by: .milliseconds(1), step: .milliseconds(1))
      for _ in 0..<100 { rig.wakeReader(endpoint) }
      delay = healthy.written.count < 8 * step ? delay + 1 : 0
      longest = max(longest, delay)
      // Once it is known to be slow, nothing waits for it.
      if session.dropped > 64 { #expect(delay == 0) }
    }
    #expect(1...50 ~= longest && healthy.written == pattern(0..<3200))
    #expect(session.dropped > 3000 && rig.ending(of: session) == nil)
    // It catches up, and may be slow again for a while.
    stuck.willWrite(.moved(1000))
    rig.wakeWriter(stuck)
    #expect(session.dropped + session.down.bytes == 3200 && stuck.written.last == pattern(3199..<3200)[0])
    rig.advance(by: .seconds(6), step: .milliseconds(100))
    let before = session.dropped
    endpoint.willRead(.moved(100))
    for _ in 0..<5 { rig.wakeReader(endpoint) }
    #expect(session.dropped == before && endpoint.readerWaits == [])
  }

  @Test("reports drops at once, then their sum once a second")
  func events() throws {
    let rig = try hub()
    let session = rig.join(ScriptedStream())
    let endpoint = ScriptedStream()
    rig.hub.attach(endpoint)
    say(8 * 5000, endpoint, rig)  // five seconds
    let reported = try #require(rig.drops[session.number])
    #expect(5...6 ~= reported.count && reported[0] == 32)
    rig.advance(by: .seconds(2))
    let all = try #require(rig.drops[session.number])
    #expect(all.count <= reported.count + 1 && all.reduce(0, +) == session.down.droppedAsSlow)
    rig.hub.end(session, Ending(.clientLeft))
    rig.advance(by: .seconds(2))
    #expect(rig.drops[session.number] == all, "the ending has the sum")
  }

  @Test("keeps the backlog that new clients are promised")
  func backlog() throws {
    let rig = try HubRig(buffer: 16, backlog: 32, slow: .dropOldest)
    rig.join(ScriptedStream())
    let endpoint = ScriptedStream()
    rig.hub.attach(endpoint)
    say(800, endpoint, rig)
    #expect(rig.hub.head == 800)
    let newcomer = ScriptedStream(takesAll: true)
    rig.join(newcomer)
    #expect(newcomer.written == pattern(768..<800))
  }

  @Test("waits again after a reload to block, and disconnects the client after one to disconnect")
  func reload() throws {
    for slow in [Config.Clients.Slow.block, .automatic] {
      let rig = try hub()
      let session = rig.join(ScriptedStream())
      rig.join(ScriptedStream(takesAll: true))
      let endpoint = ScriptedStream()
      rig.hub.attach(endpoint)
      say(800, endpoint, rig)
      let dropped = session.dropped
      var policy = rig.hub.policy
      policy.slow = slow
      rig.hub.update(policy)
      say(800, endpoint, rig)
      if slow == .block {
        #expect(session.dropped == dropped && rig.ending(of: session) == nil && endpoint.readerWaits == [])
        policy.slow = .automatic
        rig.hub.update(policy)
        rig.advance(by: .milliseconds(50))
      }
      #expect(rig.ending(of: session) == .tooSlow)
    }
  }

  // MARK: - Packets

  private func lines(_ range: Range<Int>) -> [UInt8] { range.flatMap { Array("line \($0)\n".utf8) } }

  @Test("drops whole packets, after it has finished a packet that was half sent")
  func packets() throws {
    let rig = try hub(packets: .lines)
    let client = PieceStream()
    let session = rig.join(client)
    let endpoint = PieceStream(lines(0..<100))
    rig.hub.attach(endpoint)
    client.mostTaken = 3
    client.isStuck = true
    endpoint.mostSaid = 12
    rig.wakeReader(endpoint)
    client.isStuck = false
    // Three bytes of the first line go out, and no more.
    client.limit = 3
    rig.wakeWriter(client)
    #expect(client.taken == Array("lin".utf8))
    for _ in 0..<300 {
      rig.wakeReader(endpoint)
      rig.advance(by: .milliseconds(1), step: .milliseconds(1))
    }
    #expect(endpoint.hasSaidAll && session.dropped > 500)
    client.limit = nil
    client.mostTaken = .max
    rig.wakeWriter(client)
    let text = String(decoding: client.taken, as: UTF8.self)
    let received = text.split(separator: "\n").map(String.init)
    #expect(received.first == "line 0" && text.hasSuffix("line 99\n"))
    let numbers = received.compactMap { Int($0.dropFirst("line ".count)) }
    #expect(numbers == [0] + Array((100 - numbers.count + 1)..<100))
    #expect(Int(session.dropped) + text.utf8.count == lines(0..<100).count)
    #expect(client.pieces.dropFirst(2).allSatisfy { $0.last == 10 }, "each in one piece")
  }

  @Test("counts the rest of a half-sent packet when the client fails or is ended", arguments: [true, false])
  func restGivenUp(breaks: Bool) throws {
    let rig = try hub(buffer: 16, packets: .lines)
    let client = ScriptedStream(writes: [.moved(3), .blocked(until: .writable)])
    let session = rig.join(client)
    let endpoint = PieceStream(lines(0..<100))
    rig.hub.attach(endpoint)
    for _ in 0..<300 {
      rig.wakeReader(endpoint)
      rig.advance(by: .milliseconds(1), step: .milliseconds(1))
    }
    #expect(endpoint.hasSaidAll && session.down.hasRest)
    if breaks {
      client.willWrite(.failed(SystemError("write", 32)))
      rig.wakeWriter(client)
    } else {
      rig.hub.end(session, Ending(.shutdown))
    }
    #expect(Int(session.dropped) == lines(0..<100).count - 3 && session.down.bytes == 3)
  }

  @Test("finishes a leaving client's half-sent packet before the session ends")
  func leaving() throws {
    let rig = try hub(buffer: 16, packets: .lines)
    let client = ScriptedStream(writes: [.moved(3), .blocked(until: .writable)])
    let session = rig.join(client)
    let endpoint = PieceStream(lines(0..<20))
    rig.hub.attach(endpoint)
    for _ in 0..<200 {
      rig.wakeReader(endpoint)
      rig.advance(by: .milliseconds(1), step: .milliseconds(1))
    }
    #expect(session.down.hasRest)
    rig.hub.leaveAll(Ending(.shutdown))
    #expect(rig.ending(of: session) == nil, "the rest is still for him")
    client.willWrite(.moved(100), .moved(100), .moved(100), .moved(100))
    rig.wakeWriter(client)
    rig.advance(by: .milliseconds(20))
    #expect(rig.ending(of: session) == .shutdown)
    #expect(client.written.starts(with: Array("line 0\n".utf8)) && client.written.suffix(8) == Array("line 19\n".utf8))
  }
}

@Suite("A hub with 'slow: disconnect'", .timeLimit(.minutes(5)))
struct LoneSlowClientTests {
  @Test(
    "ends a lone client that has taken nothing for 5 s with a full ring, and keeps one that takes a little",
    arguments: [false, true])
  func alone(besideTerminal: Bool) throws {
    for takes in [true, false] {
      let rig = try HubRig(slow: .disconnect)
      let client = ScriptedStream()
      let session = rig.join(client)
      if besideTerminal { rig.join(ScriptedStream(takesAll: true), isTerminal: true) }
      let endpoint = ScriptedStream(reads: [.moved(100_000)])
      rig.hub.attach(endpoint)
      rig.wakeReader(endpoint)
      for _ in 0..<10 {
        rig.advance(by: .milliseconds(4900), step: .milliseconds(100))
        #expect(rig.ending(of: session) == nil)
        guard takes else { break }
        client.willWrite(.moved(1), .blocked(until: .writable))
        rig.wakeWriter(client)
      }
      rig.advance(by: .milliseconds(takes ? 50 : 5100), step: .milliseconds(100))
      #expect(rig.ending(of: session) == (takes ? nil : .tooSlow))
    }
  }
}
