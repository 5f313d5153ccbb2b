// A reload changes the policies of a hub at work: sizes of rings in use, and what is kept in them. Writers are tested
// in HubWriterTests, packets in HubPacketWritersTests, drops in DropOldestTests.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A hub that is reloaded", .timeLimit(.minutes(5)))
struct HubUpdateTests {
  private func resize(_ rig: HubRig, buffer: Int, backlog: Int = 0) {
    var policy = rig.hub.policy
    (policy.buffer, policy.backlog) = (buffer, backlog)
    rig.hub.update(policy)
  }

  @Test("has room at once when the buffer grows, and reads on")
  func grows() throws {
    let rig = try HubRig(buffer: 16, slow: .block)
    let client = ScriptedStream()
    rig.join(client)
    rig.join(ScriptedStream(takesAll: true))
    let endpoint = ScriptedStream(reads: [.moved(100)])
    rig.hub.attach(endpoint)
    for _ in 0..<5 { rig.wakeReader(endpoint) }
    #expect(rig.hub.head == 16 && endpoint.readerWaits == [])
    resize(rig, buffer: 64)
    for _ in 0..<5 { rig.wakeReader(endpoint) }
    #expect(rig.hub.head == 64)
    client.willWrite(.moved(1000))
    rig.wakeWriter(client)
    rig.wakeReader(endpoint)
    client.willWrite(.moved(1000))
    rig.wakeWriter(client)
    #expect(client.written == pattern(0..<100))
  }

  @Test("keeps its output in a ring that shrinks, and uses a smaller ring once the output fits")
  func shrinks() throws {
    let rig = try HubRig(buffer: 64, slow: .block)
    let client = ScriptedStream()
    let session = rig.join(client)
    rig.join(ScriptedStream(takesAll: true))
    let endpoint = ScriptedStream(reads: [.moved(64)])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    resize(rig, buffer: 8)
    #expect(session.down.kept(head: rig.hub.head) == 64)
    for _ in 0..<12 {
      client.willWrite(.moved(5), .blocked(until: .writable))
      rig.wakeWriter(client)
    }
    endpoint.willRead(.moved(100))
    for _ in 0..<5 { rig.wakeReader(endpoint) }
    #expect(rig.hub.head == 68 && session.down.kept(head: 68) == 8, "four bytes were left, and four more are read")
    client.willWrite(.moved(100))
    rig.wakeWriter(client)
    #expect(client.written.starts(with: pattern(0..<68)))
  }

  @Test("keeps as much of the existing backlog as a longer or shorter one allows", arguments: [4, 40, 0])
  func backlog(new: Int) throws {
    let rig = try HubRig(buffer: 8, backlog: 16)
    rig.join(ScriptedStream(takesAll: true))
    let endpoint = ScriptedStream(reads: [.moved(100)])
    rig.hub.attach(endpoint)
    for _ in 0..<20 { rig.wakeReader(endpoint) }
    resize(rig, buffer: 8, backlog: new)
    let first = ScriptedStream(takesAll: true)
    rig.join(first)
    #expect(first.written == pattern(100 - min(16, new)..<100))
    endpoint.willRead(.moved(100))
    for _ in 0..<20 { rig.wakeReader(endpoint) }
    let second = ScriptedStream(takesAll: true)
    rig.join(second)
    #expect(second.written == pattern(200 - new..<200) && rig.hub.head == 200)
    // Without a backlog the hub owns no ring.
    #expect((rig.hub.downstream.output.ring == nil) == (new == 0))
  }

  @Test("keeps unread output for the first client, at any buffer size")
  func withoutClients() throws {
    let rig = try HubRig(buffer: 32, dropsWithoutClients: false)
    let endpoint = ScriptedStream(reads: [.moved(20)])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    resize(rig, buffer: 64)
    resize(rig, buffer: 4)
    let client = ScriptedStream(takesAll: true)
    rig.join(client)
    #expect(client.written == pattern(0..<20))
  }

  @Test("drops unread output at once after a reload to that policy")
  func drops() throws {
    let rig = try HubRig(buffer: 32, dropsWithoutClients: false)
    let endpoint = ScriptedStream(reads: [.moved(100)])
    rig.hub.attach(endpoint)
    for _ in 0..<5 { rig.wakeReader(endpoint) }
    #expect(endpoint.readerWaits == [])
    var policy = rig.hub.policy
    policy.dropsWithoutClients = true
    rig.hub.update(policy)
    for _ in 0..<5 { rig.wakeReader(endpoint) }
    #expect(rig.hub.head == 100 && endpoint.readerWaits == .readable)
  }

  @Test("keeps a client's input in its present ring, and takes one of the new size for the next")
  func input() throws {
    let rig = try HubRig(buffer: 16)
    let client = ScriptedStream(reads: [.moved(100)])
    let session = rig.join(client)
    rig.wakeReader(client)
    #expect(session.pump.count == 16)
    resize(rig, buffer: 4)
    let endpoint = ScriptedStream(writes: [.moved(3), .blocked(until: .writable)])
    rig.hub.attach(endpoint)
    #expect(session.pump.count == 13)
    while session.pump.count > 0 {
      endpoint.willWrite(.moved(100))
      rig.wakeWriter(endpoint)
    }
    #expect(endpoint.written == pattern(0..<100))
    client.willRead(.moved(100))
    rig.wakeReader(client)
    #expect(session.pump.count == 4)
  }

  @Test("counts delays of others only from the reload on")
  func clock() throws {
    let rig = try HubRig(slow: .block)
    let stuck = rig.join(ScriptedStream())
    rig.join(ScriptedStream(takesAll: true))
    let endpoint = ScriptedStream(reads: [.moved(100_000)])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    rig.advance(by: .seconds(10))
    var policy = rig.hub.policy
    policy.slow = .automatic
    rig.hub.update(policy)
    rig.advance(by: .milliseconds(30))
    policy.drain = .seconds(1)
    rig.hub.update(policy)
    rig.advance(by: .milliseconds(9), step: .milliseconds(3))
    #expect(rig.ending(of: stuck) == nil)
    rig.advance(by: .milliseconds(50))
    #expect(rig.ending(of: stuck) == .tooSlow)
  }

  @Test("loses no byte though its rings change all the time, with packets and without", arguments: [true, false])
  func random(packets: Bool) async throws {
    try await onOwnThread { try Self.run(packets) }
  }

  private static func run(_ packets: Bool) throws {
    var random = SeededRandom()
    let rig = try HubRig(buffer: 7, slow: .block)
    let endpoint = PieceStream(
      (0..<15_000).map { _ in UInt8.random(in: 0...40, using: &random) }, random: SeededRandom(seed: random.next()))
    let clients = (0..<3).map { number in
      PieceStream([UInt8](repeating: UInt8(number), count: 5000), random: SeededRandom(seed: random.next()))
    }
    let sessions = clients.map { rig.join($0) }
    rig.hub.attach(endpoint)
    let sizes = [1, 2, 3, 7, 20, 100]
    var rounds = 0
    while !(endpoint.hasSaidAll && sessions.allSatisfy { $0.up.bytes == 5000 }), rounds < 1_000_000 {
      rounds += 1
      for stream in clients + [endpoint] {
        rig.wakeWriter(stream)
        rig.wakeReader(stream)
      }
      guard rounds % 20 == 0 else { continue }
      var policy = rig.hub.policy
      policy.buffer = sizes.randomElement(using: &random)!
      policy.backlog = Bool.random(using: &random) ? 0 : sizes.randomElement(using: &random)!
      if packets { policy.packets = Bool.random(using: &random) ? .lines : nil }
      rig.hub.update(policy)
    }
    rig.hub.downstream.endPacket()
    for _ in 0..<10_000 { for client in clients { rig.wakeWriter(client) } }
    #expect(clients.allSatisfy { $0.taken == endpoint.script } && sessions.allSatisfy { $0.dropped == 0 }, "\(random)")
    #expect(endpoint.taken.sorted() == clients.flatMap(\.script), "\(random)")
  }
}
