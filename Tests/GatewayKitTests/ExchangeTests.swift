// `packets.exchange`: one client's packet at a time goes to the device, and its answer to that client and monitors only.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A hub that exchanges questions and answers", .timeLimit(.minutes(1)))
struct ExchangeTests {
  private static let lines = Config.Packets(idle: nil, max: nil, delimiter: [10], exchange: .milliseconds(500))

  /// Two clients that write and read, a monitor, and a device that takes everything.
  private final class Bus {
    let rig: HubRig
    let clients: [ScriptedStream]
    private(set) var sessions: [Session] = []
    let monitor = ScriptedStream(takesAll: true)
    var device = ScriptedStream(takesAll: true)

    init(_ packets: Config.Packets = ExchangeTests.lines, line: ScriptedLine? = nil, slow: ScriptedStream? = nil) throws
    {
      rig = try HubRig(buffer: 256, packets: packets)
      clients = [ScriptedStream(takesAll: true), slow ?? ScriptedStream(takesAll: true)]
      for client in clients { sessions.append(rig.join(client)) }
      rig.join(monitor, role: .monitor)
      device.serialLine = line
      rig.hub.attach(device)
    }

    func ask(_ text: String, _ number: Int) {
      clients[number].willRead(.bytes(Array(text.utf8)))
      rig.wakeReader(clients[number])
    }

    func answer(_ text: String) {
      device.willRead(.bytes(Array(text.utf8)))
      rig.wakeReader(device)
    }

    func pass(_ milliseconds: Int) {
      rig.advance(by: .milliseconds(milliseconds), step: .milliseconds(1))
      rig.wakeWriter(device)
    }

    /// What the device, each client and the monitor have received.
    var heard: String { String(decoding: device.written, as: UTF8.self) }
    func read(_ number: Int) -> String { String(decoding: clients[number].written, as: UTF8.self) }
    var watched: String { String(decoding: monitor.written, as: UTF8.self) }
  }

  @Test("sends one client's packet, gives the answer to it and to monitors, and then sends the next one's")
  func inTurn() throws {
    let bus = try Bus()
    bus.ask("q0\n", 0)
    bus.ask("q1\n", 1)
    bus.pass(400)
    #expect(bus.heard == "q0\n" && bus.device.writerWaits == [], "and nothing spins meanwhile")
    bus.answer("a0\n")
    bus.rig.wakeWriter(bus.device)
    #expect(bus.heard == "q0\nq1\n")
    bus.answer("a1")
    bus.answer("\n")
    #expect(bus.read(0) == "a0\n" && bus.read(1) == "a1\n" && bus.watched == "a0\na1\n")
    #expect(bus.sessions.allSatisfy { $0.dropped == 0 })
  }

  @Test("holds back the same client's next packet, too")
  func oneByOne() throws {
    let bus = try Bus()
    bus.ask("q0\nq1\n", 0)
    #expect(bus.heard == "q0\n")
    bus.answer("a0\n")
    bus.rig.wakeWriter(bus.device)
    #expect(bus.heard == "q0\nq1\n")
  }

  @Test("waits for an answer for the stated time, counted from the question's last byte, and no longer")
  func timeOut() throws {
    let bus = try Bus()
    bus.ask("q0", 0)
    bus.pass(300)
    bus.ask("\n", 0)
    bus.ask("q1\n", 1)
    bus.pass(499)
    #expect(bus.heard == "q0\n")
    bus.pass(1)
    #expect(bus.heard == "q0\nq1\n")
    // What comes now counts as the answer to the second question.
    bus.answer("late\n")
    #expect(bus.read(0) == "" && bus.read(1) == "late\n")
  }

  @Test("gives what comes outside an exchange to all")
  func outside() throws {
    let bus = try Bus()
    bus.answer("hello\n")
    bus.ask("q0\n", 0)
    bus.answer("a0\nnews\n")
    bus.ask("q1\n", 1)
    bus.pass(500)
    bus.answer("later\n")
    #expect(bus.read(0) == "hello\na0\nnews\nlater\n" && bus.read(1) == "hello\nnews\nlater\n")
    #expect(bus.watched == "hello\na0\nnews\nlater\n")
  }

  @Test("gives nobody else the answer to a client that has left, and waits for it")
  func left() throws {
    let bus = try Bus()
    bus.ask("q0\n", 0)
    bus.ask("q1\n", 1)
    bus.rig.hub.end(bus.sessions[0], Ending(.kicked))
    bus.answer("a0\n")
    bus.rig.wakeWriter(bus.device)
    #expect(bus.read(1) == "" && bus.watched == "a0\n" && bus.heard == "q0\nq1\n")
  }

  @Test("leaves a silence of `idle` after an answer, and ends a question without other marks by its answer")
  func idle() throws {
    let bus = try Bus(Config.Packets(idle: .milliseconds(20), max: nil, delimiter: nil, exchange: .milliseconds(500)))
    bus.ask("q0", 0)
    bus.ask("q1", 1)
    bus.pass(5)
    bus.answer("a0")
    bus.pass(19)
    #expect(bus.heard == "q0" && bus.read(0) == "")
    bus.pass(1)
    #expect(bus.heard == "q0q1" && bus.read(0) == "a0" && bus.read(1) == "")
    // An answer that ends by its length gets the silence, too.
    let short = try Bus(Config.Packets(idle: .milliseconds(20), max: 2, delimiter: nil, exchange: .milliseconds(500)))
    short.ask("q0", 0)
    short.ask("q1", 1)
    short.answer("a0")
    #expect(short.read(0) == "a0")
    short.pass(19)
    #expect(short.heard == "q0")
    short.pass(1)
    #expect(short.heard == "q0q1")
  }

  @Test("does not take output for an answer while part of the question waits for the device")
  func halfSent() throws {
    let bus = try Bus(Config.Packets(idle: .milliseconds(20), max: nil, delimiter: nil, exchange: .milliseconds(500)))
    bus.device.willWrite(.moved(1), .blocked(until: .writable))
    bus.ask("question", 0)
    bus.ask("q1", 1)
    bus.answer("noise")
    bus.pass(20)
    #expect(bus.heard.hasPrefix("question") && !bus.heard.contains("q1"), "no other packet cuts it")
  }

  @Test("knows a line that returns each question, and does not take the echo for the answer")
  func echo() throws {
    let bus = try Bus()
    for round in 0..<3 {
      bus.ask("q0\n", 0)
      bus.ask("q1\n", 1)
      bus.answer("q0\n")
      bus.rig.wakeWriter(bus.device)
      #expect(bus.heard.suffix(3) == "q0\n", "round \(round)")
      bus.answer(round == 1 ? "q0\n" : "a0\n")  // an answer may be equal to the question
      bus.rig.wakeWriter(bus.device)
      #expect(bus.heard.suffix(6) == "q0\nq1\n", "round \(round)")
      bus.answer("q1\n")
      bus.answer("a1\n")
    }
    #expect(bus.read(1) == "q1\na1\nq1\na1\nq1\na1\n")
  }

  @Test("takes an answer that equals its question for one, once it knows that the line returns nothing")
  func noEcho() throws {
    let bus = try Bus()
    // The first one costs the whole time.
    bus.ask("w0\n", 0)
    bus.answer("w0\n")
    bus.ask("w1\n", 1)
    bus.pass(499)
    #expect(bus.heard == "w0\n")
    bus.pass(1)
    #expect(bus.heard == "w0\nw1\n")
    bus.answer("w1\n")
    bus.ask("q0\n", 0)
    #expect(bus.heard == "w0\nw1\nq0\n" && bus.read(0) == "w0\n" && bus.read(1) == "w1\n")
  }

  @Test("gives a slow client only its own output, and counts nothing of the others' as dropped")
  func slow() throws {
    let slow = ScriptedStream(writes: [.moved(2), .blocked(until: .writable)])
    let bus = try Bus(slow: slow)
    bus.answer("hello\n")
    bus.ask("q0\n", 0)
    bus.answer("a0\n")
    bus.answer("news\n")
    slow.willWrite(.moved(100), .moved(100), .moved(100))
    bus.rig.wakeWriter(slow)
    #expect(bus.read(1) == "hello\nnews\n" && bus.read(0) == "hello\na0\nnews\n")
    // It leaves while output for another one is under way.
    bus.ask("q0\n", 0)
    bus.answer("a")
    bus.rig.hub.leave(bus.sessions[1], Ending(.kicked))
    bus.pass(30)
    #expect(bus.rig.ending(of: bus.sessions[1]) == .kicked && bus.sessions[1].dropped == 0)
    bus.answer("1\n")
    #expect(bus.read(0).hasSuffix("a1\n") && bus.read(1) == "hello\nnews\n")
  }

  @Test("starts anew with another endpoint, and a reload without the key lets everything pass at once")
  func anew() throws {
    let bus = try Bus()
    bus.ask("q0\n", 0)
    _ = bus.rig.hub.detach()
    bus.device = ScriptedStream(takesAll: true)
    bus.ask("q1\n", 1)
    bus.rig.hub.attach(bus.device)
    #expect(bus.heard == "q1\n")
    var policy = bus.rig.hub.policy
    policy.packets?.exchange = nil
    bus.ask("q0\n", 0)
    bus.rig.hub.update(policy)
    bus.rig.wakeWriter(bus.device)
    #expect(bus.heard == "q1\nq0\n")
    bus.answer("all\n")
    #expect(bus.read(0) == "all\n" && bus.read(1) == "all\n")
  }

  @Test("counts the time from the last bit on a serial line")
  func lastBit() throws {
    let line = ScriptedLine()
    line.settings = LineSettings(bitsPerSecond: 300)  // 33 ms for each character
    let bus = try Bus(line: line)
    bus.ask("123456789\n", 0)
    bus.ask("q1\n", 1)
    bus.pass(820)
    #expect(bus.heard == "123456789\n")
    bus.pass(20)
    #expect(bus.heard == "123456789\nq1\n")
  }
}
