// Packets on their way to the clients: held back until they are complete, sent whole, and never started in the middle.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A hub of packets", .timeLimit(.minutes(5)))
struct HubPacketsTests {
  private func bytes(_ text: String) -> [UInt8] { Array(text.utf8) }
  private func pieces(_ client: PieceStream) -> [String] {
    client.newPieces().map { String(decoding: $0, as: UTF8.self) }
  }

  /// A hub with one client, and an endpoint whose output the test scripts.
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

  @Test("sends each packet in one write, and no part of it before it is complete")
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

  @Test("ends a packet at its maximum length")
  func longest() throws {
    let (rig, client, endpoint) = try hub(Config.Packets(idle: nil, max: 4, delimiter: nil))
    say("abcdefghij", endpoint, rig)
    #expect(pieces(client) == ["abcd", "efgh"])
    say("kl", endpoint, rig)
    #expect(pieces(client) == ["ijkl"])
  }

  @Test("reads the clock for the device's bytes only if a silence ends packets", arguments: [nil, 20])
  func clock(idle: Int?) throws {
    let (rig, client, endpoint) = try hub(
      Config.Packets(idle: idle.map { .milliseconds($0) }, max: nil, delimiter: [10]))
    say("a\n", endpoint, rig)
    let before = rig.clock.asked
    say("b\n", endpoint, rig)
    #expect(pieces(client) == ["a\n", "b\n"] && rig.clock.asked - before == (idle == nil ? 0 : 1))
  }

  @Test("ends a packet after an idle gap, counted from its last byte")
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

  @Test("does not count its own delay as an idle gap")
  func lateLane() throws {
    let (rig, client, endpoint) = try hub(Config.Packets(idle: .milliseconds(20), max: nil, delimiter: nil))
    say("ab", endpoint, rig)
    endpoint.script += bytes("cd")  // arrived in time, but the lane had no CPU
    rig.advance(by: .milliseconds(500), step: .milliseconds(500))
    #expect(endpoint.hasSaidAll && pieces(client) == [])
    rig.advance(by: .milliseconds(20), step: .milliseconds(1))
    #expect(pieces(client) == ["abcd"])
  }

  @Test("forwards an endless packet in parts when the ring is full", arguments: [1, 2, 3, 7, 64])
  func endless(buffer: Int) throws {
    let (rig, client, endpoint) = try hub(buffer: buffer)
    let text = String(repeating: "0123456789", count: 30)
    say(text, endpoint, rig)
    let before = pieces(client)
    #expect(before.allSatisfy { $0.count == buffer } && before.count == 300 / buffer)
    say("\n", endpoint, rig)
    #expect((before + pieces(client)).joined() == text + "\n")
  }

  @Test("continues a packet that a client could take only in part, and sends the next one separately")
  func partly() throws {
    let (rig, client, endpoint) = try hub()
    client.mostTaken = 2
    say("abc\ndefg\n", endpoint, rig)
    #expect(pieces(client) == ["ab", "c\n", "de", "fg", "\n"])
  }

  @Test(
    "splits no packet because another client is slow and the ring is full",
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

  @Test("counts no time for an incomplete packet, and ends a client that delays the others' next packet")
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

  @Test("ends no packet by an idle gap during which it did not read")
  func pausedSilence() throws {
    let (rig, client, endpoint) = try hub(
      Config.Packets(idle: .milliseconds(20), max: nil, delimiter: [10]), buffer: 8, slow: .block)
    client.isStuck = true
    say("12\n4", endpoint, rig)
    endpoint.script += bytes("56\n")
    #expect(endpoint.readerWaits == [] || rig.hub.downstream.isPaused == false)
    say("", endpoint, rig)
    rig.advance(by: .seconds(1))
    client.isStuck = false
    rig.wakeWriter(client)
    rig.wakeReader(endpoint)
    #expect(pieces(client) == ["12\n", "456\n"])
  }

  @Test(
    "sends an unfinished packet to its clients when the endpoint ends or fails", arguments: [true, false],
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

  @Test("sends an unfinished packet to a client that is ended, and the whole packet to the others")
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

  @Test("never starts a client in the middle of a packet", arguments: [0, 8])
  func newcomer(backlog: Int) throws {
    let (rig, client, endpoint) = try hub(backlog: backlog)
    say("first\nsecond\nth", endpoint, rig)
    let newcomer = PieceStream()
    rig.join(newcomer)
    // The backlog of eight bytes begins inside "second".
    #expect(pieces(newcomer) == [])
    say("ird\nfourth\n", endpoint, rig)
    #expect(pieces(newcomer) == ["third\n", "fourth\n"])
    #expect(pieces(client) == ["first\n", "second\n", "third\n", "fourth\n"])
    let last = PieceStream()
    rig.join(last)
    #expect(pieces(last) == (backlog == 0 ? [] : ["fourth\n"]))
  }

  @Test("starts a new packet with the next device, even if the last one left a packet unfinished")
  func nextDevice() throws {
    let (rig, _, endpoint) = try hub(Config.Packets(idle: nil, max: 4, delimiter: nil))
    say("ab", endpoint, rig)
    rig.hub.end(rig.hub.sessions[0], Ending(.clientLeft))
    rig.hub.downstream.dropWithoutClients()  // as a link does that no client needs
    rig.hub.detach()?.close()
    let client = PieceStream()
    rig.join(client)
    let next = PieceStream()
    rig.hub.attach(next)
    say("cdefg", next, rig)
    #expect(pieces(client) == ["cdef"])
  }

  @Test("owns no ring while no packet is incomplete")
  func ringGivenBack() throws {
    let (rig, _, endpoint) = try hub()
    say("a\nb", endpoint, rig)
    let under = try rig.poller.rings.borrow(capacity: 64)
    rig.poller.rings.giveBack(under)
    say("c\n", endpoint, rig)
    let after = try rig.poller.rings.borrow(capacity: 64)
    #expect(after !== under)
  }

  @Test("splits datagrams like bytes, and reads a datagram only with room for a whole one")
  func datagrams() throws {
    let (rig, client, _) = try hub(buffer: 20)
    rig.hub.detach()?.close()
    let endpoint = DatagramStream([bytes("ab"), bytes("c\nd"), bytes("0123456789"), bytes("efgh\n")], largestUnit: 10)
    rig.hub.attach(endpoint)
    for _ in 0..<10 { rig.wakeReader(endpoint) }
    #expect(endpoint.lost == 0 && pieces(client) == ["abc\n", "d0123456789", "efgh\n"])
  }
}
