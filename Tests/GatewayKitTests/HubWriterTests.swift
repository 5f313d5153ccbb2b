// Which clients may write: monitors, one writer and the order of the writer role, and how other clients' input is
// handled.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A hub with several writers", .timeLimit(.minutes(5)))
struct HubWriterTests {
  private static let takesNothing = [ScriptedStream.Step.blocked(until: .writable)]

  @Test("lets the first writer write, and drops and counts the input of others")
  func one() throws {
    let rig = try HubRig(writers: .one)
    let (monitor, first, second) = (ScriptedStream(), ScriptedStream(), ScriptedStream())
    let watcher = rig.join(monitor, role: .monitor)
    let (holder, other) = (rig.join(first), rig.join(second))
    let endpoint = ScriptedStream(takesAll: true)
    rig.hub.attach(endpoint)
    #expect(rig.hub.upstream.writer === holder && rig.writers == [holder.number])
    for (client, byte) in [(monitor, 1), (first, 2), (second, 3)] {
      client.willRead(.bytes([UInt8(byte), UInt8(byte)]))
      rig.wakeReader(client)
    }
    #expect(endpoint.written == [2, 2])
    #expect(holder.up.bytes == 2 && holder.dropped == 0)
    for session in [watcher, other] {
      #expect(session.up.bytes == 0 && session.dropped == 2)
    }
    #expect(monitor.readerWaits == .readable && second.readerWaits == .readable)
  }

  @Test("lets all writers write but no monitor, and none if none may", arguments: [true, false])
  func allOrNone(all: Bool) throws {
    let rig = try HubRig(writers: all ? .all : .none)
    let (monitor, writer) = (ScriptedStream(reads: [.bytes([1])]), ScriptedStream(reads: [.bytes([2])]))
    let (watcher, session) = (rig.join(monitor, role: .monitor), rig.join(writer))
    let endpoint = ScriptedStream(takesAll: true)
    rig.hub.attach(endpoint)
    rig.wakeReader(monitor)
    rig.wakeReader(writer)
    #expect(endpoint.written == (all ? [2] : []) && rig.hub.upstream.writer == nil && rig.writers.isEmpty)
    #expect(watcher.dropped == 1 && session.dropped == (all ? 0 : 1))
  }

  @Test("gives the writer role of a client that finished to the oldest writer, once the input is delivered")
  func finished() throws {
    let rig = try HubRig(writers: .one)
    let clients = (0..<4).map { _ in ScriptedStream(takesAll: true) }
    let sessions = [
      rig.join(clients[0]), rig.join(clients[1], role: .monitor), rig.join(clients[2]), rig.join(clients[3]),
    ]
    let endpoint = ScriptedStream(writes: Self.takesNothing, takesAll: true)
    rig.hub.attach(endpoint)
    // An order that differed from the order of arrival for a while.
    rig.hub.end(rig.join(ScriptedStream()), Ending(.clientLeft))
    clients[0].hasBufferedInput = true
    clients[0].willRead(.bytes([1, 2]), .ended)
    rig.wakeReader(clients[0])
    #expect(rig.hub.upstream.writer === sessions[0], "his input is on its way")
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == [1, 2] && rig.hub.upstream.writer === sessions[2])
    clients[2].willRead(.ended)
    rig.wakeReader(clients[2])
    #expect(rig.hub.upstream.writer === sessions[3])
    clients[3].willRead(.ended)
    rig.wakeReader(clients[3])
    #expect(rig.hub.upstream.writer == nil, "monitors never have it")
    #expect(rig.writers == [1, 3, 4, nil])
    // They still receive, and a new client may write.
    endpoint.willRead(.moved(3))
    rig.wakeReader(endpoint)
    #expect(clients.allSatisfy { $0.written == pattern(0..<3) })
    let newcomer = rig.join(ScriptedStream())
    #expect(rig.hub.upstream.writer === newcomer)
  }

  @Test("gives the writer role of a reset client to the next only after the reset client's input is delivered")
  func reset() throws {
    let rig = try HubRig(writers: .one)
    let (lost, next) = (ScriptedStream(), ScriptedStream(reads: [.bytes([7])]))
    let (holder, heir) = (rig.join(lost), rig.join(next))
    let endpoint = ScriptedStream(writes: Self.takesNothing, takesAll: true)
    rig.hub.attach(endpoint)
    lost.hasBufferedInput = true
    lost.willRead(.bytes([1, 2]), .failed(SystemError("read", 104)))
    rig.wakeReader(lost)
    #expect(rig.hub.upstream.writer === holder)
    rig.wakeReader(next)
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == [1, 2] && rig.hub.upstream.writer === heir && heir.dropped == 1)
    #expect(rig.ending(of: holder) == .clientLost)
  }

  @Test("gives the writer role of an ended session to the next at once, and counts its kept input as dropped")
  func ended() throws {
    let rig = try HubRig(writers: .one)
    let (first, second) = (ScriptedStream(reads: [.bytes([1, 2])]), ScriptedStream(reads: [.bytes([3])]))
    let (holder, heir) = (rig.join(first), rig.join(second))
    let endpoint = ScriptedStream(writes: Self.takesNothing, takesAll: true)
    rig.hub.attach(endpoint)
    rig.wakeReader(first)
    rig.hub.end(holder, Ending(.shutdown))
    rig.wakeReader(second)
    rig.wakeWriter(endpoint)
    #expect(holder.dropped == 2 && rig.hub.upstream.writer === heir && endpoint.written == [3])
    #expect(rig.writers == [holder.number, heir.number])
  }

  @Test("does not pass the writer role on while all sessions end")
  func dismissed() throws {
    let rig = try HubRig(writers: .one)
    for _ in 0..<3 { rig.join(ScriptedStream()) }
    rig.hub.attach(ScriptedStream(takesAll: true))
    rig.hub.leaveAll(Ending(.shutdown))
    rig.advance(by: .milliseconds(20))
    #expect(rig.writers == [1, nil] && rig.hub.sessions.isEmpty)
  }

  // MARK: - Takeover

  @Test("gives the writer role to the newest client, and delivers its predecessor's kept input first")
  func newest() throws {
    let rig = try HubRig(buffer: 64, writers: .one, takeover: .newest)
    let old = ScriptedStream(reads: [.bytes([1, 1, 1])])
    let before = rig.join(old)
    let endpoint = ScriptedStream(writes: Self.takesNothing)
    rig.hub.attach(endpoint)
    rig.wakeReader(old)
    rig.join(ScriptedStream(), role: .monitor)
    #expect(rig.hub.upstream.writer === before)
    let new = ScriptedStream(reads: [.bytes([2, 2, 2])])
    let session = rig.join(new)
    #expect(rig.hub.upstream.writer === session && rig.writers == [1, 3])
    rig.wakeReader(new)
    old.willRead(.bytes([9, 9]))  // too late
    rig.wakeReader(old)
    // One byte at a time: the two inputs must not mix.
    for _ in 0..<6 {
      endpoint.willWrite(.moved(1), .blocked(until: .writable))
      rig.wakeWriter(endpoint)
    }
    #expect(endpoint.written == [1, 1, 1, 2, 2, 2])
    #expect(before.up.bytes == 3 && before.dropped == 2 && session.up.bytes == 3)
  }

  @Test("reads on from a client that lost the writer role, though its kept input fills its ring")
  func fullRing() throws {
    let rig = try HubRig(buffer: 8, writers: .one, takeover: .newest)
    let old = ScriptedStream(reads: [.moved(20), .ended])
    let before = rig.join(old)
    let endpoint = ScriptedStream(writes: Self.takesNothing, takesAll: true)
    rig.hub.attach(endpoint)
    rig.wakeReader(old)
    #expect(old.readerWaits == [])
    rig.join(ScriptedStream())
    for _ in 0..<3 { rig.wakeReader(old) }
    #expect(before.pump.sourceEnded && before.dropped == 12, "his end is seen")
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == pattern(0..<8))
  }

  @Test("gives the writer role of an idle holder to a client that sends, and loses none of its bytes")
  func idle() throws {
    let rig = try HubRig(writers: .one, takeover: .idle(.seconds(30)))
    let (first, second) = (ScriptedStream(), ScriptedStream())
    let (holder, other) = (rig.join(first), rig.join(second))
    let endpoint = ScriptedStream(takesAll: true)
    rig.hub.attach(endpoint)
    func say(_ client: ScriptedStream, _ byte: UInt8) {
      client.willRead(.bytes([byte, byte]))
      rig.wakeReader(client)
    }
    rig.advance(by: .seconds(20), step: .seconds(1))
    say(first, 1)
    rig.advance(by: .seconds(29), step: .seconds(1))
    say(second, 2)
    #expect(rig.hub.upstream.writer === holder && endpoint.written == [1, 1] && other.dropped == 2)
    rig.advance(by: .seconds(1), step: .seconds(1))
    say(second, 3)
    #expect(rig.hub.upstream.writer === other && endpoint.written == [1, 1, 3, 3])
    say(first, 4)
    #expect(endpoint.written == [1, 1, 3, 3] && holder.dropped == 2)
    rig.advance(by: .seconds(30), step: .seconds(1))
    say(first, 5)
    #expect(endpoint.written == [1, 1, 3, 3, 5, 5] && rig.writers == [1, 2, 1])
  }

  @Test("does not count a writer with undelivered input as idle, nor pass the role to a client that only closes")
  func notIdle() throws {
    let rig = try HubRig(writers: .one, takeover: .idle(.seconds(1)))
    let (first, second, third) = (ScriptedStream(reads: [.bytes([1])]), ScriptedStream(), ScriptedStream())
    let holder = rig.join(first)
    rig.join(second)
    rig.join(third)
    let endpoint = ScriptedStream(writes: Self.takesNothing, takesAll: true)
    rig.hub.attach(endpoint)
    rig.wakeReader(first)
    rig.advance(by: .seconds(60), step: .seconds(1))
    second.willRead(.bytes([2]))
    rig.wakeReader(second)
    rig.wakeWriter(endpoint)
    second.willRead(.bytes([2]))
    rig.wakeReader(second)
    #expect(endpoint.written == [1] && rig.hub.upstream.writer === holder, "it was delivered just now")
    rig.advance(by: .seconds(2), step: .seconds(1))
    third.willRead(.ended)
    rig.wakeReader(third)
    #expect(rig.writers == [holder.number])
  }

  // MARK: - Clients without the role

  @Test("drops with the lane's shared ring, delays no client, and notices the end", arguments: [true, false])
  func dropping(isAway: Bool) throws {
    let rig = try HubRig(writers: .one)
    let (holding, dropping) = (ScriptedStream(reads: [.bytes([1])]), ScriptedStream(takesAll: true))
    rig.join(holding)
    let session = rig.join(dropping)
    let endpoint = ScriptedStream(writes: Self.takesNothing)
    if !isAway { rig.hub.attach(endpoint) }
    rig.wakeReader(holding)  // keeps a ring, so that a second one is needed
    dropping.willRead(.moved(1000))
    rig.wakeReader(dropping)
    let warm = try rig.poller.rings.borrow(capacity: 64)
    rig.poller.rings.giveBack(warm)
    for _ in 0..<20 { rig.wakeReader(dropping) }
    #expect(session.dropped == 1000 && dropping.readerWaits == .readable)
    #expect(try rig.poller.rings.borrow(capacity: 64) === warm)
    dropping.willRead(.ended)
    rig.wakeReader(dropping)
    #expect(session.isHalfClosed)
  }

  @Test("drops all buffered input of a stream, and ends a session whose stream fails")
  func hiddenBytes() throws {
    let rig = try HubRig(writers: .none)
    let client = ScriptedStream(reads: [.bytes([1]), .bytes([2]), .moved(0), .failed(SystemError("read", 104))])
    client.hasBufferedInput = true
    let session = rig.join(client)
    rig.wakeReader(client)
    #expect(rig.ending(of: session) == .clientLost && session.dropped == 2)
  }

  // MARK: - Reload

  @Test("applies new rules for writers at once, and delivers input kept before")
  func update() throws {
    let rig = try HubRig()
    let (first, second) = (ScriptedStream(reads: [.bytes([1])]), ScriptedStream(reads: [.bytes([2])]))
    let sessions = [rig.join(first), rig.join(second)]
    let endpoint = ScriptedStream(writes: Self.takesNothing, takesAll: true)
    rig.hub.attach(endpoint)
    rig.wakeReader(second)
    rig.wakeReader(first)
    func write(_ writers: Config.Clients.Writers, _ takeover: Config.Clients.Takeover = .refuse) {
      var policy = rig.hub.policy
      (policy.writers, policy.takeover) = (writers, takeover)
      rig.hub.update(policy)
    }
    write(.one)
    #expect(rig.hub.upstream.writer === sessions[0])
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == [2, 1])
    func say() -> [UInt8] {
      let before = endpoint.written.count
      first.willRead(.bytes([3]))
      second.willRead(.bytes([4]))
      rig.wakeReader(first)
      rig.wakeReader(second)
      return Array(endpoint.written[before...])
    }
    #expect(say() == [3])
    write(.one, .idle(.seconds(1)))
    rig.advance(by: .seconds(2))
    #expect(say() == [3])
    rig.advance(by: .seconds(2))
    second.willRead(.bytes([5]))
    rig.wakeReader(second)
    #expect(rig.hub.upstream.writer === sessions[1])
    write(.all)
    #expect(rig.hub.upstream.writer == nil && say() == [3, 4])
    write(.none)
    #expect(say() == [])
    write(.one)
    #expect(rig.writers == [1, 2, nil, 1] && say() == [3])
  }
}
