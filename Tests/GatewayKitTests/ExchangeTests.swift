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

    init(
      _ packets: Config.Packets = ExchangeTests.lines, line: ScriptedLine? = nil, slow: ScriptedStream? = nil,
      policy: Config.Clients.Slow = .automatic
    ) throws {
      rig = try HubRig(buffer: 256, slow: policy, packets: packets)
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

  @Test("leaves the silence after the last bit of either side, also when the time is over", arguments: [10, 30])
  func silence(answerTakes: Int) throws {
    // The time is shorter than the silence.
    let bus = try Bus(
      Config.Packets(idle: .milliseconds(100), max: nil, delimiter: [10], exchange: .milliseconds(40)))
    bus.ask("q0\n", 0)
    bus.ask("q1\n", 1)
    bus.pass(answerTakes)
    bus.answer("q0\n")  // an echo, or the answer
    bus.pass(99)
    #expect(bus.heard == "q0\n")
    bus.pass(1)
    #expect(bus.heard == "q0\nq1\n")
    // Nothing comes.
    bus.ask("q0\n", 0)
    bus.pass(99)
    #expect(bus.heard == "q0\nq1\n")
    bus.pass(1)
    #expect(bus.heard == "q0\nq1\nq0\n")
    // The device is still sending when the time is over.
    bus.ask("q1\n", 1)
    bus.pass(20)
    bus.answer("a")
    bus.pass(119)
    #expect(bus.heard == "q0\nq1\nq0\n")
    bus.pass(1)
    #expect(bus.heard == "q0\nq1\nq0\nq1\n")
  }

  @Test("gives the answer to a client that has sent FIN after its question, and nothing of it to others")
  func halfClosed() throws {
    let bus = try Bus()
    bus.clients[0].willRead(.bytes(Array("q0\n".utf8)), .ended)
    for _ in 0..<2 { bus.rig.wakeReader(bus.clients[0]) }
    bus.ask("q1\n", 1)
    bus.pass(400)
    #expect(bus.sessions[0].isHalfClosed && bus.heard == "q0\n")
    bus.answer("a0\n")
    bus.rig.wakeWriter(bus.device)
    #expect(bus.read(0) == "a0\n" && bus.read(1) == "" && bus.heard == "q0\nq1\n")
  }

  @Test("lets the next one begin when a client leaves in the middle of its question and the time is over")
  func leftInside() throws {
    let bus = try Bus()
    bus.ask("q", 0)
    bus.ask("q1\n", 1)
    bus.rig.hub.end(bus.sessions[0], Ending(.kicked))
    bus.pass(499)
    #expect(bus.heard == "q")
    bus.pass(1)
    #expect(bus.heard == "qq1\n")
    bus.answer("a1\n")
    #expect(bus.read(1) == "a1\n")
  }

  @Test("gives the beginning of an answer to its client only when the device is lost, and asks the next one at once")
  func lost() throws {
    let bus = try Bus()
    bus.ask("q0\n", 0)
    bus.ask("q1\n", 1)
    bus.answer("a")
    _ = bus.rig.hub.detach()
    #expect(bus.read(0) == "a" && bus.read(1) == "" && bus.watched == "a")
    bus.device = ScriptedStream(takesAll: true)
    bus.rig.hub.attach(bus.device)
    #expect(bus.heard == "q1\n")
    bus.answer("a1\n")
    #expect(bus.read(0) == "a" && bus.read(1) == "a1\n" && bus.watched == "aa1\n")
    bus.answer("news\n")
    #expect(bus.read(0) == "anews\n" && bus.read(1) == "a1\nnews\n")
  }

  @Test("`drop-oldest` drops whole answers of a slow client, and counts none of the others'")
  func dropOldest() throws {
    let slow = ScriptedStream(writes: [.blocked(until: .writable)])
    let bus = try Bus(slow: slow, policy: .dropOldest)
    // More of another client's answers than the buffer keeps.
    for round in 0..<40 {
      bus.ask("q\(round)\n", 0)
      bus.answer("answer \(round)\n")
    }
    #expect(bus.read(0).split(separator: "\n").count == 40 && bus.sessions[1].dropped == 0)
    // Its own ones. The other client is not delayed.
    for round in 0..<40 {
      bus.ask("s\(round)\n", 1)
      bus.answer("for one: \(round)\n")
      bus.pass(60)
    }
    bus.ask("q\n", 0)
    bus.answer("last\n")
    #expect(bus.read(0).hasSuffix("last\n") && !bus.read(0).contains("for one"))
    for _ in 0..<50 {  // a write each packet
      slow.willWrite(.moved(1000))
      bus.rig.wakeWriter(slow)
    }
    let lines = bus.read(1).split(separator: "\n").map(String.init)
    let all = (0..<40).map { "for one: \($0)" }
    #expect(lines.last == all.last && Set(lines).isSubset(of: all), "\(lines)")
    let sum = all.reduce(0) { $0 + $1.utf8.count + 1 }
    let dropped = bus.sessions[1].dropped
    #expect(dropped > 0 && Int(dropped) + bus.read(1).utf8.count == sum)
    #expect(bus.sessions[1].down.droppedAsSlow == dropped && bus.sessions[0].dropped == 0)
  }

  @Test(
    "counts only its own output as dropped when a slow client is ended, or loses the oldest", arguments: [true, false])
  func ownDrops(isEnded: Bool) throws {
    let slow = ScriptedStream(writes: [.blocked(until: .writable)])
    let bus = try Bus(slow: slow, policy: isEnded ? .automatic : .dropOldest)
    bus.answer("for all\n")
    bus.ask("q0\n", 0)
    bus.answer("for another\n")
    if isEnded {
      bus.rig.hub.end(bus.sessions[1], Ending(.kicked))
    } else {
      for round in 0..<40 {
        bus.ask("q\(round)\n", 0)
        bus.answer("for another \(round)\n")
        bus.pass(10)
      }
      bus.answer(String(repeating: "x", count: 250) + "\n")
      bus.pass(60)
    }
    #expect(bus.sessions[1].dropped == UInt64("for all\n".utf8.count))
  }

  @Test("an answer that is longer than the buffer is its client's to its end, and the next question waits for that")
  func longAnswer() throws {
    let bus = try Bus()
    bus.ask("q0\n", 0)
    bus.ask("q1\n", 1)
    for _ in 0..<5 {
      bus.answer(String(repeating: "a", count: 100))
      bus.rig.wakeWriter(bus.device)
    }
    #expect(bus.read(0).count == 256 && bus.read(1) == "" && bus.heard == "q0\n")
    bus.answer("end\nnews\n")
    bus.rig.wakeWriter(bus.device)
    #expect(bus.read(0).count == 509 && bus.read(1) == "news\n" && bus.watched.count == 509)
    #expect(bus.heard == "q0\nq1\n")
    // Output that began before the question is for all to its end.
    bus.answer("a1\n" + String(repeating: "b", count: 200))
    bus.ask("q0\n", 0)
    bus.answer(String(repeating: "b", count: 200))
    bus.answer("\na0\n")
    #expect(bus.read(1).count == 409 && bus.read(0).count == 509 + 401 + 3)
  }

  @Test("a reload of other keys changes nothing for an answer that is longer than the buffer")
  func reloadInLongAnswer() throws {
    let bus = try Bus()
    bus.ask("q0\n", 0)
    bus.answer(String(repeating: "a", count: 256))
    #expect(bus.read(0).count == 256)
    bus.pass(600)  // the time is over, so no question says any more whose answer it is
    var policy = bus.rig.hub.policy
    policy.drain = .seconds(1)
    bus.rig.hub.update(policy)
    bus.answer("end\nnews\n")
    #expect(bus.read(0).count == 265 && bus.read(1) == "news\n")
  }

  @Test("does not count the time in which a slow client keeps the output from being read")
  func pausedTime() throws {
    let slow = ScriptedStream(writes: [.blocked(until: .writable)])
    let bus = try Bus(slow: slow, policy: .block)
    bus.answer(String(repeating: "x", count: 255) + "\n")  // the buffer is full
    bus.ask("q0\n", 0)
    bus.ask("q1\n", 1)
    bus.pass(100)
    bus.answer("a0\n")  // it stays in the device's buffer
    bus.pass(900)
    #expect(bus.heard == "q0\n" && bus.read(0).count == 256)
    slow.willWrite(.moved(256), .moved(100))
    bus.rig.wakeWriter(slow)
    bus.rig.wakeReader(bus.device)
    bus.rig.wakeWriter(bus.device)
    #expect(bus.read(0).hasSuffix("a0\n") && bus.read(1).count == 256 && bus.heard == "q0\nq1\n")
    // The rest of the time counts afterwards.
    bus.ask("q0\n", 0)
    bus.pass(499)
    #expect(bus.heard == "q0\nq1\n")
    bus.pass(1)
    #expect(bus.heard == "q0\nq1\nq0\n")
  }

  @Test("does not take output for an answer while part of the question waits for the device")
  func halfSent() throws {
    let bus = try Bus(Config.Packets(idle: .milliseconds(20), max: nil, delimiter: nil, exchange: .milliseconds(500)))
    bus.device.willWrite(.moved(1), .blocked(until: .writable))
    bus.ask("question", 0)
    bus.ask("q1", 1)
    for noise in ["noise", "more"] {
      bus.answer(noise)
      bus.rig.advance(by: .milliseconds(20), step: .milliseconds(1))
    }
    #expect(bus.heard == "q" && bus.read(0) == "noisemore" && bus.read(1) == "", "the exchange goes on")
    bus.rig.wakeWriter(bus.device)
    #expect(bus.heard == "question", "no other packet cuts it")
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
