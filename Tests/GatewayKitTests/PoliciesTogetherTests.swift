// Combinations of policies that are right by themselves. The fuzzer of policies (Tests/Fuzz) found each of these cases.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("Combined policies", .timeLimit(.minutes(5)))
struct PoliciesTogetherTests {
  private func says(_ text: String) -> ScriptedStream.Step { .bytes(Array(text.utf8)) }
  private func text(_ client: ScriptedStream) -> String { String(decoding: client.written, as: UTF8.self) }

  @Test(
    "start a new packet after the unreceived start of one was flushed",
    arguments: [(Config.Device.Flush.disconnect, Duration.zero, true), (.both, .seconds(5), false)])
  func flushedBeginning(flush: Config.Device.Flush, linger: Duration, isAlwaysOpen: Bool) throws {
    let rig = try LinkRig(packets: .lines) {
      $0.open = isAlwaysOpen ? .always : .onDemand
      $0.linger = linger
      $0.flush = flush
    }
    if isAlwaysOpen { rig.link.start() }
    let first = ScriptedStream(takesAll: true)
    let session = rig.join(first)
    let device = ScriptedStream()
    rig.openings[0].succeed(device)
    device.willRead(says("login: "))
    rig.wakeReader(device)
    rig.link.hub.end(session, Ending(.clientLeft))
    let clients = [ScriptedStream(takesAll: true), ScriptedStream(takesAll: true)]
    for (client, words) in zip(clients, ["x", "hello\n"]) {
      rig.join(client)
      device.willRead(says(words))
      rig.wakeReader(device)
    }
    #expect(clients.map(text) == ["xhello\n", "xhello\n"] && text(first) == "")
  }

  @Test(
    "drop nothing for a client that takes no more, in the middle of a packet or before one",
    arguments: [Config.Listen.Role.writer, .monitor], [0, 3])
  func brokenWhileBehind(role: Config.Listen.Role, taken: Int) throws {
    let rig = try HubRig(slow: .dropOldest, packets: Config.Packets(idle: nil, max: 10, delimiter: nil))
    let client = ScriptedStream(writes: taken == 0 ? [] : [.moved(taken)])
    let session = rig.join(client, role: role)
    let healthy = ScriptedStream(takesAll: true)
    let other = rig.join(healthy)
    let device = ScriptedStream(reads: [.moved(100_000)])
    rig.hub.attach(device)
    rig.wakeReader(device)
    rig.advance(by: .milliseconds(60))
    for _ in 0..<20 { rig.wakeReader(device) }
    #expect(session.down.droppedAsSlow > 0 && session.down.isBehind)
    // Its own end is not read yet: the session goes on.
    client.willWrite(.failed(SystemError("write", 32)))
    rig.wakeWriter(client)
    let (head, dropped) = (rig.hub.head, session.dropped)
    #expect(!session.down.takesOutput && UInt64(session.down.bytes) + dropped == head)
    #expect(!session.down.isBehind, "it loses nothing any more")
    for _ in 0..<100 { rig.wakeReader(device) }
    #expect(session.dropped == dropped && rig.ending(of: session) == nil)
    #expect(rig.hub.head > head + 1000 && healthy.written == pattern(0..<healthy.written.count))
    #expect(UInt64(healthy.written.count) == other.down.bytes && healthy.written.count % 10 == 0)
    // Another client fills the ring, and the hub looks for room among the slow clients.
    rig.join(ScriptedStream())
    for _ in 0..<10 { rig.wakeReader(device) }
    #expect(device.readerWaits == [])
    #expect(session.dropped == dropped && rig.ending(of: session) == nil)
  }

  @Test("read on after a flush for the last client emptied a full ring", arguments: [true, false])
  func flushedFullRing(hasLine: Bool) throws {
    let rig = try LinkRig {
      $0.open = .always
      $0.flush = .disconnect
    }
    rig.link.start()
    let session = rig.join(ScriptedStream())
    let device = ScriptedStream(reads: [.moved(1000)])
    let line = ScriptedLine()
    if hasLine { device.serialLine = line }
    rig.openings[0].succeed(device)
    rig.wakeReader(device)
    let other = rig.join(ScriptedStream())
    for _ in 0..<5 { rig.wakeReader(device) }
    #expect(device.readerWaits == [] && !rig.poller.hasAgain)
    device.hasBufferedInput = true  // no event reports these
    rig.link.hub.end(other, Ending(.kicked))
    rig.link.hub.end(session, Ending(.kicked))
    #expect(rig.poller.hasAgain)
    device.hasBufferedInput = false
    while line.asked > 0 { line.answer() }
    let client = ScriptedStream(takesAll: true)
    rig.join(client)
    for _ in 0..<30 { rig.wakeReader(device) }
    #expect(client.written.count > 700 && device.readerWaits == .readable)
  }

  @Test("never read without room, when a new client is slow after one that left in the middle of a packet")
  func readWithoutRoom() throws {
    let rig = try HubRig(
      buffer: 32, dropsWithoutClients: false, packets: Config.Packets(idle: nil, max: 16, delimiter: nil))
    let device = ScriptedStream(reads: [.moved(12), .moved(100)])  // a read without room traps
    rig.hub.attach(device)
    let first = ScriptedStream(writes: [.moved(5)])
    let session = rig.join(first)
    for _ in 0..<5 { rig.wakeReader(device) }
    rig.hub.end(session, Ending(.kicked))
    for _ in 0..<5 { rig.wakeReader(device) }
    let client = ScriptedStream()
    rig.join(client)
    for _ in 0..<5 { rig.wakeReader(device) }
    client.willWrite(.moved(1000))
    rig.wakeWriter(client)
    #expect(client.written.count == 16 && client.written == Array(ScriptedStream.pattern(16..<32)))
    // Output before its first packet blocks nothing.
    for _ in 0..<5 {
      client.willWrite(.moved(1000))
      rig.wakeReader(device)
      rig.wakeWriter(client)
    }
    #expect(client.written.count >= 64 && client.written == pattern(16..<16 + client.written.count))
  }

  @Test("never read a unit that may not fit, when the only client is slow and little is kept for it")
  func unitWithoutRoom() throws {
    let rig = try HubRig(buffer: 64)
    let device = ScriptedStream(reads: [.moved(20), .moved(48)])
    device.largestUnit = 48
    rig.hub.attach(device)
    let client = ScriptedStream()
    rig.join(client)
    for _ in 0..<5 { rig.wakeReader(device) }
    #expect(device.readCalls == 1 && device.readerWaits == [])
    client.willWrite(.moved(1000), .moved(1000))
    rig.wakeWriter(client)
    rig.wakeReader(device)
    #expect(client.written == pattern(0..<68))
  }

  @Test("still give unread output to the first client, when a reload turns packets on")
  func unheardBeforePackets() throws {
    let rig = try HubRig(dropsWithoutClients: false)
    let device = ScriptedStream(reads: [.moved(20)])
    rig.hub.attach(device)
    rig.wakeReader(device)
    var policy = rig.hub.policy
    policy.packets = .lines
    rig.hub.update(policy)
    let client = ScriptedStream(takesAll: true)
    rig.join(client)
    #expect(client.written == pattern(0..<20))
  }

  @Test("read the buffered input of a client that has lost the writer role")
  func hiddenBytes() throws {
    let rig = try HubRig(writers: .one, takeover: .newest)
    rig.hub.attach(ScriptedStream())
    let first = ScriptedStream(reads: [.moved(64), .moved(6)])
    let session = rig.join(first)
    first.hasBufferedInput = true
    rig.wakeReader(first)
    #expect(session.pump.count == 64 && first.readerWaits == [])
    rig.join(ScriptedStream())
    rig.run { !rig.poller.hasAgain }
    #expect(session.dropped == 6)
  }

  /// Why a client's input is dropped.
  enum Drop: CaseIterable { case monitor, absent }

  @Test(
    "count a client's last input before they report its end, where its input is dropped",
    arguments: Drop.allCases, [ScriptedStream.Step.failed(SystemError("read", 104)), .ended])
  func brokenWhileDropped(drop: Drop, last: ScriptedStream.Step) throws {
    let rig = try HubRig(halfClose: nil)
    rig.hub.attach(ScriptedStream())
    if drop == .absent { rig.hub.upstream.setDropsInput(true) }
    let client = ScriptedStream(reads: [.moved(5), last])
    client.hasBufferedInput = true  // so that one turn reads all
    let session = rig.join(client, role: drop == .monitor ? .monitor : .writer)
    rig.wakeReader(client)
    #expect(rig.ending(of: session) != nil && session.dropped == 5)
    #expect(rig.droppedAtEnd[session.number] == 5)
  }

  @Test("count dropped input as activity, even if nothing is kept")
  func activity() throws {
    let rig = try LinkRig { $0.absent = .discard }
    let client = ScriptedStream(reads: [.moved(5)])
    let session = rig.join(client)
    let before = session.activity
    rig.wakeReader(client)
    rig.openings[0].fail()
    #expect(session.pump.count == 0 && session.dropped == 5 && session.activity != before)
  }
}
