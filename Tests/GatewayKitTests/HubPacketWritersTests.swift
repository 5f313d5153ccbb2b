// Packets on their way to the endpoint. No writer's packet is mixed with another's, and a silent writer delays the
// others for a limited time only.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A hub whose writers send packets", .timeLimit(.minutes(5)))
struct HubPacketWritersTests {
  private func hub(
    _ packets: Config.Packets = .lines, writers count: Int = 2, buffer: Int = 64, policy: Config.Clients.Writers = .all,
    takeover: Config.Clients.Takeover = .refuse
  ) throws -> (rig: HubRig, clients: [PieceStream], endpoint: PieceStream) {
    let rig = try HubRig(buffer: buffer, writers: policy, takeover: takeover, packets: packets)
    let clients = (0..<count).map { _ in PieceStream() }
    for client in clients { rig.join(client) }
    let endpoint = PieceStream()
    rig.hub.attach(endpoint)
    return (rig, clients, endpoint)
  }

  private func say(_ text: String, _ client: PieceStream, _ rig: HubRig) {
    client.script += Array(text.utf8)
    rig.wakeReader(client)
  }

  private func received(_ endpoint: PieceStream) -> String { String(decoding: endpoint.taken, as: UTF8.self) }

  @Test("finishes one writer's packet before it sends any byte of another writer")
  func finish() throws {
    let (rig, clients, endpoint) = try hub()
    say("aa", clients[0], rig)
    say("bb\n", clients[1], rig)
    #expect(received(endpoint) == "aa" && endpoint.writerWaits == [], "and nothing spins meanwhile")
    say("a\n", clients[0], rig)
    #expect(received(endpoint) == "aaa\nbb\n")
    // The other way round, in the same turn as the end of a packet.
    say("b", clients[1], rig)
    say("a\n", clients[0], rig)
    say("\nb", clients[1], rig)
    #expect(received(endpoint) == "aaa\nbb\nb\na\nb", "the beginning of his next one has to wait for its turn")
  }

  @Test(
    "counts `idle` from the last bit on a serial line, as its bit rate and its driver tell", arguments: [false, true])
  func lastBit(isSlow: Bool) throws {
    let (rig, clients, endpoint) = try hub(Config.Packets(idle: .microseconds(1750), max: 100, delimiter: nil))
    // The driver of a slow one still holds four bytes then.
    let line = ScriptedLine(unsent: isSlow ? [4] : [])
    line.settings = LineSettings(bitsPerSecond: 9600, parity: .even)
    endpoint.serialLine = line
    say("aaaaaaaa", clients[0], rig)
    say("b", clients[1], rig)
    // A frame of USB, eight characters of eleven bits, and the silence.
    var silence = 1000 + 8 * 11 * 1_000_000 / 9600 + 1750
    if isSlow { silence += 4 * 11 * 1_000_000 / 9600 }
    for _ in 0..<silence / 10 - 1 {
      rig.advance(by: .microseconds(10), step: .microseconds(10))
      line.answer()
      rig.wakeWriter(endpoint)
    }
    #expect(received(endpoint) == "aaaaaaaa")
    for _ in 0..<4 {
      rig.advance(by: .microseconds(10), step: .microseconds(10))
      line.answer()
      rig.wakeWriter(endpoint)
    }
    #expect(received(endpoint) == "aaaaaaaab")
  }

  /// Lets milliseconds pass until the endpoint's last bytes are `text`. Returns how many, or nil after `most`.
  private func wait(
    for text: String, _ rig: HubRig, _ endpoint: PieceStream, _ line: ScriptedLine, atMost most: Int
  ) -> Int? {
    for time in 0...most {
      while line.asked > 0 { line.answer() }
      rig.wakeWriter(endpoint)
      if endpoint.pieces.last == Array(text.utf8) { return time }
      rig.advance(by: .milliseconds(1), step: .milliseconds(1))
    }
    return nil
  }

  // At 87 µs for a character. The driver holds nothing after 100 ms: then there is at most what a USB adapter keeps.
  @Test(
    "expects no more of a line whose driver has sent everything than an adapter may hold", arguments: [2000, 50_000])
  func sentFast(count: Int) throws {
    let (rig, clients, endpoint) = try hub(Config.Packets(idle: .milliseconds(20), max: nil, delimiter: [10]))
    let line = ScriptedLine()
    line.settings = LineSettings(bitsPerSecond: 115_200)
    endpoint.serialLine = line
    for _ in 0..<count / 50 { say(String(repeating: "a", count: 50), clients[0], rig) }
    say("b\n", clients[1], rig)
    let time = try #require(wait(for: "b\n", rig, endpoint, line, atMost: 10_000))
    #expect(count == 2000 ? 194...196 ~= time : 475...478 ~= time, "\(time)")
  }

  @Test("asks the driver again if bytes were taken while it answered")
  func takenMeanwhile() throws {
    let (rig, clients, endpoint) = try hub(Config.Packets(idle: .milliseconds(20), max: nil, delimiter: [10]))
    let line = ScriptedLine(unsent: [0, 3])
    line.settings = LineSettings(bitsPerSecond: 1000)  // 10 ms for each character
    endpoint.serialLine = line
    say("a", clients[0], rig)
    say("b\n", clients[1], rig)
    rig.advance(by: .milliseconds(11), step: .milliseconds(1))
    #expect(line.asked == 1)
    say("a", clients[0], rig)  // after 11 ms; it is sent at 22 ms, by the bit rate
    #expect(wait(for: "b\n", rig, endpoint, line, atMost: 1000) == 11 + 30 + 20)
  }

  enum Purging: CaseIterable { case input, output, outputThenMore }

  @Test("expects nothing more of a line whose output was purged", arguments: Purging.allCases)
  func purged(how: Purging) throws {
    let rig = try HubRig(buffer: 64, packets: Config.Packets(idle: .milliseconds(20), max: nil, delimiter: [10]))
    let (client, _) = rig.joinControlChannel()
    let other = PieceStream()
    rig.join(other)
    let endpoint = PieceStream()
    let line = ScriptedLine()
    line.settings = LineSettings(bitsPerSecond: 1000)  // 10 ms for each character
    endpoint.serialLine = line
    rig.hub.attach(endpoint)
    rig.send(client, .bytes("aaaaaaaaaa"))
    say("b\n", other, rig)
    rig.send(client, .text(#"{"request":"purge","what":"\#(how == .input ? "input" : "output")"}"#))
    // Whether these come before the purge or after it, nobody knows.
    if how == .outputThenMore { rig.send(client, .bytes("aaaaaaaaaa")) }
    let time = wait(for: "b\n", rig, endpoint, line, atMost: 1000)
    #expect(time == (how == .output ? 20 : how == .input ? 121 : 221))
  }

  @Test("leaves `idle` between the last bit of its own first bytes and a client's packet", arguments: [true, false])
  func afterPreface(isWaiting: Bool) throws {
    let rig = try HubRig(buffer: 64, packets: Config.Packets(idle: .milliseconds(20), max: nil, delimiter: [10]))
    let client = PieceStream()
    rig.join(client)
    let endpoint = PieceStream()
    let line = ScriptedLine()
    line.settings = LineSettings(bitsPerSecond: 1000)  // 10 ms for each character
    endpoint.serialLine = line
    if isWaiting { say("a\nb\n", client, rig) }
    rig.hub.attach(endpoint, saying: Array("on".utf8))
    if !isWaiting { say("a\nb\n", client, rig) }
    for _ in 0..<40 {
      rig.advance(by: .milliseconds(1), step: .milliseconds(1))
      line.answer()
      rig.wakeWriter(endpoint)
    }
    #expect(received(endpoint) == "on" && endpoint.writerWaits == [])
    for _ in 0..<2 {
      rig.advance(by: .milliseconds(1), step: .milliseconds(1))
      line.answer()
      rig.wakeWriter(endpoint)
    }
    #expect(received(endpoint) == "ona\nb\n" && endpoint.writerWaits == [])
    // A client that comes a second later is not delayed for long.
    _ = rig.hub.detach()
    let next = PieceStream()
    rig.hub.attach(next, saying: Array("on".utf8))
    rig.advance(by: .seconds(1))
    say("c\n", client, rig)
    rig.advance(by: .milliseconds(1))
    rig.wakeWriter(next)
    #expect(received(next) == "onc\n")
  }

  @Test(
    "delays others for `idle` after the last byte of a silent writer, or 1 s without `idle`",
    arguments: [20, nil])
  func silence(idle: Int?) throws {
    let (rig, clients, endpoint) = try hub(
      Config.Packets(idle: idle.map { .milliseconds($0) }, max: 100, delimiter: [10]))
    let limit = idle ?? 1000
    say("a", clients[0], rig)
    rig.advance(by: .milliseconds(limit - 5), step: .milliseconds(1))
    say("a", clients[0], rig)
    say("b\n", clients[1], rig)
    rig.advance(by: .milliseconds(limit - 1), step: .milliseconds(1))
    rig.wakeWriter(endpoint)
    #expect(received(endpoint) == "aa")
    rig.advance(by: .milliseconds(1), step: .milliseconds(1))
    rig.wakeWriter(endpoint)
    #expect(received(endpoint) == "aab\n" && endpoint.writerWaits == [])
    say("a\n", clients[0], rig)
    #expect(received(endpoint) == "aab\na\n", "what he says now is a packet of its own")
  }

  @Test("does not count its own delay as silence")
  func lateLane() throws {
    let (rig, clients, endpoint) = try hub(Config.Packets(idle: .milliseconds(20), max: nil, delimiter: [10]))
    say("a", clients[0], rig)
    say("b\n", clients[1], rig)
    clients[0].script += Array("a".utf8)  // arrived in time, but the lane had no CPU
    rig.advance(by: .milliseconds(500), step: .milliseconds(500))
    rig.wakeWriter(endpoint)
    #expect(received(endpoint) == "aa")
  }

  @Test("does not wait for a writer whose packet ended by silence long ago")
  func longAgo() throws {
    let (rig, clients, endpoint) = try hub(Config.Packets(idle: .milliseconds(20), max: 4, delimiter: nil))
    say("aaa", clients[0], rig)
    rig.advance(by: .seconds(1))
    say("bbbb", clients[1], rig)
    rig.advance(by: .milliseconds(1))  // a deadline that has already passed
    rig.wakeWriter(endpoint)
    #expect(received(endpoint) == "aaabbbb")
    // The writer's next packet has four bytes again.
    say("aaa", clients[0], rig)
    say("b", clients[1], rig)
    say("a", clients[0], rig)
    #expect(received(endpoint) == "aaabbbbaaaab")
  }

  @Test(
    "delivers the input of a writer that leaves in the middle of a packet, and then serves the others",
    arguments: [0, 1, 2])
  func leaves(how: Int) throws {
    let (rig, clients, endpoint) = try hub()
    say("aa", clients[0], rig)
    endpoint.isStuck = true
    say("aa", clients[0], rig)
    say("b\n", clients[1], rig)
    let session = rig.hub.sessions[0]
    switch how {
    case 0:
      clients[0].ends = true
      rig.wakeReader(clients[0])
    case 1: rig.report(clients[0], .errorOccurred(SystemError("read", 104)))
    default: rig.hub.leave(session, Ending(.shutdown))
    }
    #expect(received(endpoint) == "aa" && rig.ending(of: session) == nil)
    endpoint.isStuck = false
    rig.wakeWriter(endpoint)
    rig.wakeWriter(endpoint)
    rig.advance(by: .milliseconds(20))
    rig.wakeWriter(endpoint)
    #expect(received(endpoint) == "aaaab\n" && session.up.bytes == 4 && session.dropped == 0)
  }

  @Test(
    "serves the others when a writer that is silent in the middle of a packet leaves or is ended", arguments: [0, 1, 2])
  func silentOneLeaves(how: Int) throws {
    let (rig, clients, endpoint) = try hub()
    say("a", clients[0], rig)
    say("b\n", clients[1], rig)
    switch how {
    case 0:
      clients[0].ends = true
      rig.wakeReader(clients[0])
    case 1: rig.hub.end(rig.hub.sessions[0], Ending(.shutdown))
    default: rig.report(clients[0], .errorOccurred(SystemError("read", 104)))
    }
    rig.wakeWriter(endpoint)
    #expect(received(endpoint) == "ab\n" && endpoint.writerWaits == [])
  }

  @Test("continues a packet when the endpoint has space again, and then serves writers in the order they waited")
  func blocked() throws {
    let (rig, clients, endpoint) = try hub(writers: 3)
    endpoint.limit = 2
    say("aaa\naaa\n", clients[0], rig)
    say("bbb\n", clients[1], rig)
    say("ccc\n", clients[2], rig)
    for _ in 0..<20 {
      endpoint.limit = 1
      rig.wakeWriter(endpoint)
    }
    #expect(received(endpoint) == "aaa\nbbb\nccc\naaa\n" && endpoint.writerWaits == [])
  }

  @Test("gives the next writer its turn at the end of the packet that reaches 4 KiB")
  func turns() throws {
    let (rig, clients, endpoint) = try hub(buffer: 65536)
    endpoint.isStuck = true
    for (number, client) in clients.enumerated() {
      say(String(repeating: String(repeating: "\(number)", count: 999) + "\n", count: 12), client, rig)
    }
    endpoint.isStuck = false
    rig.wakeWriter(endpoint)
    let speakers = received(endpoint).split(separator: "\n").map { String($0.first!) }
    let order = [("0", 5), ("1", 5), ("0", 5), ("1", 5), ("0", 2), ("1", 2)]
    #expect(speakers == order.flatMap { [String](repeating: $0.0, count: $0.1) })
    #expect(received(endpoint).split(separator: "\n").allSatisfy { Set($0).count == 1 && $0.count == 999 })
  }

  @Test("writes several packets of one client at once while no other client waits")
  func alone() throws {
    let (rig, clients, endpoint) = try hub()
    say("a\na\na\na", clients[0], rig)
    #expect(endpoint.pieces.count == 1)
  }

  @Test("does not wait for the rest of a packet whose writer has lost the writer role")
  func lostWriterRole() throws {
    let (rig, clients, endpoint) = try hub(writers: 1, policy: .one, takeover: .newest)
    say("aa", clients[0], rig)
    let newest = PieceStream(Array("b\n".utf8))
    rig.join(newest)
    rig.wakeReader(newest)
    rig.wakeWriter(endpoint)
    #expect(received(endpoint) == "aab\n")
    // The part already kept still goes out first.
    endpoint.isStuck = true
    say("bb", newest, rig)
    let last = PieceStream(Array("c\n".utf8))
    rig.join(last)
    rig.wakeReader(last)
    endpoint.isStuck = false
    rig.wakeWriter(endpoint)
    rig.wakeWriter(endpoint)
    #expect(received(endpoint) == "aab\nbbc\n")
  }

  @Test("starts a new packet with another endpoint")
  func nextEndpoint() throws {
    let (rig, clients, endpoint) = try hub()
    say("a", clients[0], rig)
    rig.report(endpoint, .errorOccurred(SystemError("write", 5)))
    rig.hub.detach()?.close()
    say("b\n", clients[1], rig)
    let next = PieceStream()
    rig.hub.attach(next)
    #expect(received(next) == "b\n")
  }

  @Test("follows a reload that changes or removes the packet rules")
  func reload() throws {
    let (rig, clients, endpoint) = try hub()
    endpoint.script = Array("x\nyy".utf8)
    rig.wakeReader(endpoint)
    say("a", clients[0], rig)
    say("b", clients[1], rig)
    var policy = rig.hub.policy
    policy.packets = nil
    rig.hub.update(policy)
    rig.wakeWriter(endpoint)
    #expect(received(endpoint) == "ab" && clients[0].pieces == [[120, 10], [121, 121]])
    policy.packets = Config.Packets(idle: nil, max: 2, delimiter: nil)
    rig.hub.update(policy)
    say("a", clients[0], rig)
    say("bb", clients[1], rig)
    say("a", clients[0], rig)
    #expect(received(endpoint) == "abaabb")
    endpoint.script += Array("zzz".utf8)
    rig.wakeReader(endpoint)
    #expect(clients[1].pieces.last == [122, 122])
  }

  // MARK: - Random

  @Test(
    "mixes no packets and loses no byte, with rings of any size and pieces of any length",
    arguments: [1, 2, 3, 7, 40])
  func random(buffer: Int) async throws {
    try await onOwnThread { try Self.run(buffer) }
  }

  /// Each packet is its writer's letter, repeated, and a newline. Some are longer than every ring.
  private static func run(_ buffer: Int) throws {
    var random = SeededRandom()
    let rig = try HubRig(buffer: buffer, slow: .block, packets: .lines)
    var spoken: [[Int]] = []
    let clients = (0..<4).map { number in
      let lengths = (0..<200).map { _ in Int.random(in: 0...60, using: &random) }
      spoken.append(lengths)
      let letter = UInt8(ascii: "a") + UInt8(number)
      let script: [UInt8] = lengths.flatMap { (length: Int) in [UInt8](repeating: letter, count: length + 1) + [10] }
      return PieceStream(script, random: SeededRandom(seed: random.next()))
    }
    let endpoint = PieceStream(
      (0..<8000).map { _ in UInt8.random(in: 10...40, using: &random) }, random: SeededRandom(seed: random.next()))
    let sessions = clients.map { rig.join($0) }
    rig.hub.attach(endpoint)
    let total = clients.reduce(0) { $0 + $1.script.count }
    var written = 0
    var rounds = 0
    while !(endpoint.hasSaidAll && written == total
      && sessions.allSatisfy { $0.down.cursor >= rig.hub.downstream.cutter!.end }),
      rounds < 2_000_000
    {
      rounds += 1
      for stream in clients + [endpoint] {
        rig.wakeWriter(stream)
        rig.wakeReader(stream)
      }
      written = sessions.reduce(0) { $0 + Int($1.up.bytes) }
    }
    rig.hub.downstream.endPacket()
    for _ in 0..<10_000 { for client in clients { rig.wakeWriter(client) } }
    let packets = endpoint.taken.split(separator: 10)
    #expect(packets.allSatisfy { Set($0).count == 1 }, "mixed: \(random)")
    for (number, lengths) in spoken.enumerated() {
      let his = packets.filter { $0.first == UInt8(ascii: "a") + UInt8(number) }
      #expect(his.map { $0.count - 1 } == lengths, "\(random)")
    }
    for (client, session) in zip(clients, sessions) {
      #expect(client.taken == endpoint.script && session.dropped == 0, "\(random)")
    }
  }

  @Test("drops whole packets and counts them, with rings of any size", arguments: [16, 33, 100])
  func randomDrops(buffer: Int) async throws {
    try await onOwnThread { try Self.runDrops(buffer) }
  }

  /// Packets are numbers. Each client receives some of them, in order and complete.
  private static func runDrops(_ buffer: Int) throws {
    var random = SeededRandom()
    let rig = try HubRig(buffer: buffer, slow: .dropOldest, packets: .lines)
    let endpoint = PieceStream((0..<2000).flatMap { Array("\($0)\n".utf8) }, random: SeededRandom(seed: random.next()))
    let clients = (0..<3).map { _ in PieceStream(random: SeededRandom(seed: random.next())) }
    let sessions = clients.map { rig.join($0) }
    rig.hub.attach(endpoint)
    for _ in 0..<20_000 where !endpoint.hasSaidAll {
      for client in clients where Int.random(in: 0..<30, using: &random) == 0 { client.isStuck.toggle() }
      for client in clients { rig.wakeWriter(client) }
      rig.wakeReader(endpoint)
      rig.advance(by: .milliseconds(1), step: .milliseconds(1))
    }
    for client in clients { client.isStuck = false }
    for _ in 0..<1000 { for client in clients { rig.wakeWriter(client) } }
    #expect(endpoint.hasSaidAll, "\(random)")
    for (client, session) in zip(clients, sessions) {
      let text = String(decoding: client.taken, as: UTF8.self)
      let received = text.split(separator: "\n").map { Int($0)! }
      #expect(
        received == received.sorted() && Set(received).count == received.count && received.last == 1999, "\(random)")
      #expect(
        text == received.map { "\($0)\n" }.joined()
          && Int(session.dropped) + client.taken.count == endpoint.script.count)
      #expect(session.dropped > 0 && session.dropped == session.down.droppedAsSlow, "\(random)")
    }
  }
}
