// Packets on their way to the clients: held back until they are complete, given whole, and never begun in the middle.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A hub of packets", .timeLimit(.minutes(1)))
struct HubPacketsTests {
  private func bytes(_ text: String) -> [UInt8] { Array(text.utf8) }
  private func pieces(_ client: PieceStream) -> [String] {
    client.newPieces().map { String(decoding: $0, as: UTF8.self) }
  }

  /// A hub with one client and an endpoint that says what the test tells it to.
  private func hub(
    _ packets: Config.Packets = .lines, isShared: Bool = true, buffer: Int = 64, backlog: Int = 0,
    slow: Config.Clients.Slow = .automatic
  ) throws -> (rig: HubRig, client: PieceStream, endpoint: PieceStream) {
    let rig = try HubRig(isShared: isShared, buffer: buffer, backlog: backlog, slow: slow, packets: packets)
    let client = PieceStream()
    rig.join(client)
    let endpoint = PieceStream()
    rig.hub.attach(endpoint)
    return (rig, client, endpoint)
  }

  private func say(_ text: String, _ endpoint: PieceStream, _ rig: HubRig) {
    endpoint.script += bytes(text)
    for _ in 0..<100 where !endpoint.hasSaidAll { rig.wakeReader(endpoint) }
  }

  @Test("gives each packet in one write, and nothing of one before it is complete")
  func whole() throws {
    let (rig, client, endpoint) = try hub()
    say("on", endpoint, rig)
    say("e", endpoint, rig)
    #expect(pieces(client) == [])
    say("\ntwo\nthr", endpoint, rig)
    #expect(pieces(client) == ["one\n", "two\n"])
    say("ee\n", endpoint, rig)
    #expect(pieces(client) == ["three\n"])
  }

  @Test("ends a packet at its longest")
  func longest() throws {
    let (rig, client, endpoint) = try hub(Config.Packets(idle: nil, max: 4, delimiter: nil))
    say("abcdefghij", endpoint, rig)
    #expect(pieces(client) == ["abcd", "efgh"])
    say("kl", endpoint, rig)
    #expect(pieces(client) == ["ijkl"])
  }

  @Test("ends a packet after a silence, counted from its last byte")
  func silence() throws {
    let (rig, client, endpoint) = try hub(Config.Packets(idle: .milliseconds(20), max: nil, delimiter: nil))
    for piece in ["a", "b", "c"] {
      say(piece, endpoint, rig)
      rig.advance(by: .milliseconds(15), step: .milliseconds(1))
      #expect(pieces(client) == [])
    }
    rig.advance(by: .milliseconds(5), step: .milliseconds(1))
    #expect(pieces(client) == ["abc"])
    rig.advance(by: .seconds(1))
    say("d", endpoint, rig)
    rig.advance(by: .milliseconds(20), step: .milliseconds(1))
    #expect(pieces(client) == ["d"])
  }

  @Test("doesn't take its own lateness for a silence")
  func lateLane() throws {
    let (rig, client, endpoint) = try hub(Config.Packets(idle: .milliseconds(20), max: nil, delimiter: nil))
    say("ab", endpoint, rig)
    endpoint.script += bytes("cd")  // came in time, but the lane had no CPU
    rig.advance(by: .milliseconds(500), step: .milliseconds(500))
    #expect(endpoint.hasSaidAll && pieces(client) == [])
    rig.advance(by: .milliseconds(20), step: .milliseconds(1))
    #expect(pieces(client) == ["abcd"])
  }

  @Test("passes on what never ends when the ring has no more room", arguments: [1, 2, 3, 7, 64])
  func endless(buffer: Int) throws {
    let (rig, client, endpoint) = try hub(buffer: buffer)
    let text = String(repeating: "0123456789", count: 30)
    say(text, endpoint, rig)
    let before = pieces(client)
    #expect(before.allSatisfy { $0.count == buffer } && before.count == 300 / buffer)
    say("\n", endpoint, rig)
    #expect((before + pieces(client)).joined() == text + "\n")
  }

  @Test("goes on in the middle of a packet where a client could take a part only, and gives the next by itself")
  func partly() throws {
    let (rig, client, endpoint) = try hub()
    client.mostTaken = 2
    say("abc\ndefg\n", endpoint, rig)
    #expect(pieces(client) == ["ab", "c\n", "de", "fg", "\n"])
  }

  @Test(
    "splits no packet because another client lags and the ring is full",
    arguments: [Config.Clients.Slow.block, .automatic])
  func laggard(slow: Config.Clients.Slow) throws {
    let (rig, stuck, endpoint) = try hub(buffer: 16, slow: slow)
    let healthy = PieceStream()
    rig.join(healthy)
    stuck.isStuck = true
    say("12345\n12345\n123", endpoint, rig)
    endpoint.script += bytes("45\n")
    rig.wakeReader(endpoint)
    #expect(endpoint.readerWaits == [] && pieces(healthy) == ["12345\n", "12345\n"], "the ring is full")
    rig.advance(by: .milliseconds(30))
    #expect(pieces(healthy) == [])
    stuck.isStuck = false
    rig.wakeWriter(stuck)
    rig.wakeReader(endpoint)
    #expect(pieces(stuck) == ["12345\n", "12345\n", "12345\n"] && pieces(healthy) == ["12345\n"])
  }

  @Test("charges nobody for a packet that is not complete, and ends who holds up those who wait for its end")
  func slowClock() throws {
    let (rig, stuck, endpoint) = try hub(buffer: 16)
    let healthy = PieceStream()
    let session = rig.join(healthy)
    stuck.isStuck = true
    say("123\n56789abcdefg", endpoint, rig)
    #expect(pieces(healthy) == ["123\n"] && rig.hub.head == 16)
    endpoint.script += bytes("\n")
    rig.wakeReader(endpoint)
    rig.advance(by: .milliseconds(50))
    #expect(rig.ending(ofNumber: 1) == .tooSlow && rig.hub.sessions.map(\.number) == [session.number])
    rig.wakeReader(endpoint)
    #expect(pieces(healthy) == ["56789abcdefg\n"])
  }

  @Test("cuts no packet by a silence in which it did not read")
  func pausedSilence() throws {
    let (rig, client, endpoint) = try hub(
      Config.Packets(idle: .milliseconds(20), max: nil, delimiter: [10]), buffer: 8, slow: .block)
    client.isStuck = true
    say("12\n4", endpoint, rig)
    endpoint.script += bytes("56\n")
    #expect(endpoint.readerWaits == [] || rig.hub.isPaused == false)
    say("", endpoint, rig)
    rig.advance(by: .seconds(1))
    client.isStuck = false
    rig.wakeWriter(client)
    rig.wakeReader(endpoint)
    #expect(pieces(client) == ["12\n", "456\n"])
  }

  @Test(
    "gives what was begun to those who are there when the endpoint ends or breaks", arguments: [true, false],
    [true, false])
  func end(isShared: Bool, breaks: Bool) throws {
    let rig = try HubRig(isShared: isShared, packets: .lines)
    rig.keepsEndedEndpoint = !isShared
    let client = PieceStream()
    rig.join(client)
    let endpoint = ScriptedStream(reads: [.bytes(bytes("a\nbc")), breaks ? .failed(SystemError("read", 5)) : .ended])
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    #expect(pieces(client) == ["a\n"])
    rig.wakeReader(endpoint)
    #expect(pieces(client) == ["bc"] && rig.losses.count == 1)
  }

  @Test("gives one who is sent away what was begun, and the others still the whole")
  func leaving() throws {
    let (rig, client, endpoint) = try hub()
    let staying = PieceStream()
    rig.join(staying)
    say("abc", endpoint, rig)
    let session = rig.hub.sessions[0]
    rig.hub.leave(session, Ending(.shutdown))
    rig.advance(by: .milliseconds(20))
    #expect(pieces(client) == ["abc"] && rig.ending(of: session) == .shutdown && session.dropped == 0)
    say("d\n", endpoint, rig)
    #expect(pieces(staying) == ["abcd\n"])
  }

  @Test("lets nobody begin in the middle of a packet", arguments: [0, 8])
  func newcomer(backlog: Int) throws {
    let (rig, client, endpoint) = try hub(backlog: backlog)
    say("first\nsecond\nth", endpoint, rig)
    let newcomer = PieceStream()
    rig.join(newcomer)
    // The backlog of eight begins in "second".
    #expect(pieces(newcomer) == [])
    say("ird\nfourth\n", endpoint, rig)
    #expect(pieces(newcomer) == ["third\n", "fourth\n"])
    #expect(pieces(client) == ["first\n", "second\n", "third\n", "fourth\n"])
    let last = PieceStream()
    rig.join(last)
    #expect(pieces(last) == (backlog == 0 ? [] : ["fourth\n"]))
  }

  @Test("begins a packet with the next device, whatever the last one left unfinished")
  func nextDevice() throws {
    let (rig, _, endpoint) = try hub(Config.Packets(idle: nil, max: 4, delimiter: nil))
    say("ab", endpoint, rig)
    rig.hub.end(rig.hub.sessions[0], Ending(.clientLeft))
    rig.hub.dropUnheard()  // as a link does that nobody needs
    rig.hub.detach()?.close()
    let client = PieceStream()
    rig.join(client)
    let next = PieceStream()
    rig.hub.attach(next)
    say("cdefg", next, rig)
    #expect(pieces(client) == ["cdef"])
  }

  @Test("owns no ring while no packet is under way")
  func ringGivenBack() throws {
    let (rig, _, endpoint) = try hub()
    say("a\nb", endpoint, rig)
    let under = try rig.poller.rings.borrow(capacity: 64)
    rig.poller.rings.giveBack(under)
    say("c\n", endpoint, rig)
    let after = try rig.poller.rings.borrow(capacity: 64)
    #expect(after !== under)
  }

  @Test("cuts datagrams and bytes alike, and reads a datagram only with room for a whole one")
  func datagrams() throws {
    let (rig, client, _) = try hub(buffer: 20)
    rig.hub.detach()?.close()
    let endpoint = DatagramStream([bytes("ab"), bytes("c\nd"), bytes("0123456789"), bytes("efgh\n")], largestUnit: 10)
    rig.hub.attach(endpoint)
    for _ in 0..<10 { rig.wakeReader(endpoint) }
    #expect(endpoint.lost == 0 && pieces(client) == ["abc\n", "d0123456789", "efgh\n"])
  }
}
