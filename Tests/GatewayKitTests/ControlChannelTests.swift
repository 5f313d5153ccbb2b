// The requests that clients of `baudway.v1` send beside their bytes: their place in the stream, the rights they need,
// and the events they cause.

import StreamBroker
import StreamTestKit
import StreamWebSocket
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A control channel", .timeLimit(.minutes(5)))
struct ControlChannelTests {
  private func rig(
    line: ScriptedLine? = ScriptedLine(), writes: [ScriptedStream.Step] = [], takesAll: Bool = true,
    writers: Config.Clients.Writers = .all, takeover: Config.Clients.Takeover = .refuse
  ) throws -> (rig: HubRig, endpoint: ScriptedStream) {
    let rig = try HubRig(buffer: 4096, writers: writers, takeover: takeover)
    let endpoint = ScriptedStream(writes: writes, takesAll: takesAll)
    endpoint.serialLine = line
    rig.linkIs(.open)
    rig.hub.attach(endpoint)
    return (rig, endpoint)
  }

  private let faster = #"{"request":"line","id":1,"baud":115200}"#
  private let slower = #"{"request":"line","id":2,"baud":300}"#
  private let settings = #""line":{"baud":115200,"data":8,"parity":"none","stop":"1","flow":"none"}"#

  @Test("sets the line after the bytes before the request, and before the bytes after it")
  func order() throws {
    let line = ScriptedLine(unsent: [2])
    let (rig, endpoint) = try rig(line: line)
    let (client, _) = rig.joinControlChannel()
    _ = client.news()
    rig.send(client, .bytes("ab"), .text(faster), .bytes("cd"))
    #expect(endpoint.written == Array("ab".utf8) && line.applied == [])
    line.answer()  // two bytes are still on their way
    rig.advance(by: .milliseconds(10))
    line.answer()
    #expect(line.applied == [LineSettings(bitsPerSecond: 115_200)] && endpoint.written == Array("ab".utf8))
    line.answer()
    rig.wakeReader(client)
    #expect(endpoint.written == Array("abcd".utf8))
    #expect(client.news() == [#"{"reply":1,"ok":true,\#(settings)}"#])
  }

  @Test("reports what others have changed at the far side of the line")
  func changedElsewhere() throws {
    let line = ScriptedLine()
    let (rig, _) = try rig(line: line)
    let (client, _) = rig.joinControlChannel()
    _ = client.news()
    line.settings.bitsPerSecond = 115_200
    line.outputStates.dtr = false
    line.observer?()
    #expect(
      client.news() == [
        #"{"event":"line",\#(settings.dropFirst(8).dropLast())}"#,
        #"{"event":"outputs","dtr":false,"rts":null,"break":false}"#,
      ])
    _ = rig.hub.detach()
    line.settings.bitsPerSecond = 300
    _ = client.news()
    line.observer?()
    #expect(client.news() == [])
  }

  @Test("finds a request that is read while the endpoint makes room")
  func servedRequest() throws {
    let line = ScriptedLine()
    let (rig, endpoint) = try rig(line: line, writes: [.blocked(until: .writable)])
    let (client, _) = rig.joinControlChannel()
    _ = client.news()
    rig.send(client, .bytes(String(repeating: "a", count: 3000)))
    #expect(client.readerWaits.isEmpty)  // more than half of the ring is full
    client.add([.text(faster)])
    rig.wakeWriter(endpoint)
    #expect(endpoint.written.count == 3000)
    while line.asked > 0 { line.answer() }
    #expect(client.news() == [#"{"reply":1,"ok":true,\#(settings)}"#])
  }

  @Test("waits at most a second for a port that can't send")
  func timeout() throws {
    let line = ScriptedLine(unsent: Array(repeating: 5, count: 1000))
    let (rig, _) = try rig(line: line)
    let (client, _) = rig.joinControlChannel()
    rig.send(client, .text(faster))
    for _ in 0..<150 where line.applied.isEmpty {
      line.answer()
      rig.advance(by: .milliseconds(10))
    }
    #expect(line.applied.count == 1)
  }

  @Test("keeps the place of several commands among waiting bytes, and replies in that order")
  func blocked() throws {
    let line = ScriptedLine()
    let (rig, endpoint) = try rig(line: line, writes: [.blocked(until: .writable), .moved(3)], takesAll: true)
    let (client, _) = rig.joinControlChannel()
    _ = client.news()
    rig.send(
      client, .bytes("abc"), .text(#"{"request":"dtr","on":true,"id":"x"}"#), .bytes("de"),
      .text(#"{"request":"rts","on":false}"#), .bytes("f"))
    #expect(endpoint.written == [] && line.outputs.isEmpty && client.news() == [])
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == Array("abc".utf8) && line.outputs.map(\.line) == [.dtr])
    line.answer()
    #expect(endpoint.written == Array("abcde".utf8) && line.outputs.map(\.isOn) == [true, false])
    line.answer()
    #expect(endpoint.written == Array("abcdef".utf8))
    #expect(client.news() == [#"{"reply":"x","ok":true}"#, #"{"reply":null,"ok":true}"#])
  }

  @Test("makes other writers wait while a command is carried out, and no longer")
  func others() throws {
    let line = ScriptedLine()
    let (rig, endpoint) = try rig(line: line)
    let (client, _) = rig.joinControlChannel()
    let other = ScriptedStream(takesAll: true)
    rig.join(other)
    rig.send(client, .text(#"{"request":"dtr","on":true}"#))
    other.willRead(.bytes([7]))
    rig.wakeReader(other)
    #expect(endpoint.written == [])
    line.answer()
    #expect(endpoint.written == [7])
  }

  @Test("purges at once, before all waiting bytes and commands, and then carries out earlier commands")
  func purge() throws {
    let line = ScriptedLine()
    let (rig, endpoint) = try rig(line: line, takesAll: false)
    let (client, session) = rig.joinControlChannel()
    _ = client.news()
    rig.send(
      client, .bytes("abc"), .text(#"{"request":"dtr","on":true,"id":1}"#),
      .text(#"{"request":"purge","what":"both","id":2}"#))
    #expect(line.purges == [.both] && session.dropped == 3 && session.pump.count == 0)
    #expect(line.outputs.count == 1 && endpoint.written == [])
    line.answer()
    line.answer()
    #expect(client.news() == [#"{"reply":2,"ok":true}"#, #"{"reply":1,"ok":true}"#])
  }

  @Test("reads on while 64 commands wait, and then no more")
  func bounded() throws {
    let (rig, _) = try rig(takesAll: false)
    let (client, session) = rig.joinControlChannel()
    rig.send(client, .bytes("x"))
    for _ in 0..<100 { rig.send(client, .text(#"{"request":"dtr","on":true}"#)) }
    #expect(session.controlChannel?.marks.count == 64 && client.textsLeft == 36)
  }

  @Test("changes the line for writers only, not for a monitor or a client without the writer role")
  func rights() throws {
    let line = ScriptedLine()
    let (rig, _) = try rig(line: line, writers: .one)
    let (holder, _) = rig.joinControlChannel()
    let (second, _) = rig.joinControlChannel()
    let (monitor, _) = rig.joinControlChannel(role: .monitor)
    for request in ["line\",\"baud\":300", "dtr\",\"on\":true", "break\",\"ms\":9", "purge\",\"what\":\"both\""] {
      let text = "{\"request\":\"\(request)}"
      #expect(rig.ask(second, text) == [#"{"reply":null,"ok":false,"error":"another client has the writer role"}"#])
      #expect(rig.ask(monitor, text) == [#"{"reply":null,"ok":false,"error":"a monitor may only read"}"#])
    }
    #expect(line.asked == 0)
    #expect(rig.ask(holder, faster) == [] && line.asked == 1)
  }

  @Test("reserves the line for the first of several writers that sets it, until that client leaves")
  func lineHolder() throws {
    let line = ScriptedLine()
    let (rig, _) = try rig(line: line)
    let (first, one) = rig.joinControlChannel()
    let (second, _) = rig.joinControlChannel()
    rig.send(first, .text(faster))
    for _ in 0..<2 { line.answer() }
    #expect(second.news().last == "{\"event\":\"line\",\(settings.dropFirst(8))")
    #expect(rig.ask(second, slower) == [#"{"reply":2,"ok":false,"error":"session 1 holds the line settings"}"#])
    #expect(rig.lineRefusals == 1)
    // Already in force: nothing would change, so nothing is refused.
    #expect(rig.ask(second, faster).first?.hasPrefix(#"{"reply":1,"ok":true,"#) == true)
    #expect(rig.lineRefusals == 1 && line.asked == 0)
    rig.hub.end(one, Ending(.clientLeft))
    #expect(rig.ask(second, faster) == [] && line.asked == 1)
  }

  @Test("gives the line to the client with the writer role, after a reload to one writer")
  func lineHolderAfterReload() throws {
    let line = ScriptedLine()
    let (rig, _) = try rig(line: line)
    let (first, one) = rig.joinControlChannel()
    let (second, _) = rig.joinControlChannel()
    rig.send(second, .text(faster))
    for _ in 0..<2 { line.answer() }
    _ = (first.news(), second.news())
    var policy = rig.hub.policy
    policy.writers = .one
    rig.hub.update(policy)
    #expect(rig.hub.upstream.writer === one)
    let answers = rig.ask(first, faster)
    #expect(!answers.contains { $0.contains("holds the line settings") })
    #expect(answers.contains { $0.contains(#""ok":true"#) } && line.asked == 0)  // the settings are in force already
    policy.writers = .all
    rig.hub.update(policy)
    #expect(rig.hub.lineControl?.holder == nil)
  }

  @Test("takes and gives back the writer role as the takeover policy allows")
  func writer() throws {
    let (rig, _) = try rig(writers: .one)
    let (first, _) = rig.joinControlChannel()
    let (second, _) = rig.joinControlChannel()
    #expect(first.news().last == #"{"event":"writer","holder":1,"mine":true}"#)
    #expect(second.news().last == #"{"event":"writer","holder":1,"mine":false}"#)
    let take = #"{"request":"writer","wish":"take"}"#
    #expect(rig.ask(second, take) == [#"{"reply":null,"ok":false,"error":"session 1 has the writer role"}"#])
    _ = first.news()
    #expect(
      rig.ask(first, #"{"request":"writer","wish":"leave"}"#) == [
        #"{"event":"writer","holder":2,"mine":false}"#, #"{"reply":null,"ok":true}"#,
      ])
    #expect(second.news() == [#"{"event":"writer","holder":2,"mine":true}"#])
    #expect(
      rig.ask(first, #"{"request":"writer","wish":"leave"}"#).first?.contains("you don't have the writer role") == true)
    let (newest, _) = try self.rig(writers: .one, takeover: .newest)
    let (a, _) = newest.joinControlChannel()
    let (monitor, _) = newest.joinControlChannel(role: .monitor)
    _ = newest.joinControlChannel()
    #expect(newest.ask(a, take).last == #"{"reply":null,"ok":true}"#)
    #expect(newest.ask(monitor, take) == [#"{"reply":null,"ok":false,"error":"a monitor may only read"}"#])
    let (all, _) = try self.rig()
    let (b, _) = all.joinControlChannel()
    #expect(all.ask(b, take).first?.contains("this route has no writer role; 'clients.writers' is all") == true)
  }

  @Test("reports an endpoint without a line, an absent device and a refused setting as errors")
  func refusals() throws {
    let (plain, _) = try rig(line: nil)
    let (client, _) = plain.joinControlChannel()
    #expect(plain.ask(client, faster) == [#"{"reply":1,"ok":false,"error":"not supported by this endpoint"}"#])
    plain.linkIs(.waiting(.lost(nil)))
    plain.hub.detach()?.close()
    #expect(client.news() == [#"{"event":"link","state":"waiting","reason":"ended"}"#])
    #expect(plain.ask(client, faster) == [#"{"reply":1,"ok":false,"error":"the link is waiting"}"#])
    let line = ScriptedLine()
    line.takes = { _ in .success(LineSettings(bitsPerSecond: 9600)) }
    let (rig, _) = try rig(line: line)
    let (other, _) = rig.joinControlChannel()
    _ = other.news()
    rig.send(other, .text(faster))
    for _ in 0..<3 { line.answer() }
    #expect(
      other.news() == [
        #"{"reply":1,"ok":false,"error":"the port does not support 115200 bit/s (it runs at 9600)",\#(settings.replacing("115200", with: "9600"))}"#
      ])
  }

  @Test("continues with the next endpoint when one is lost during a command")
  func lostInBetween() throws {
    let line = ScriptedLine()
    let (rig, _) = try rig(line: line)
    let (client, _) = rig.joinControlChannel()
    rig.send(client, .text(faster), .bytes("ab"))
    rig.hub.detach()?.close()
    let next = ScriptedStream(takesAll: true)
    next.serialLine = ScriptedLine()
    rig.hub.attach(next)
    rig.wakeReader(client)
    #expect(next.written == Array("ab".utf8))
    line.answer()
    line.answer()
    rig.send(client, .bytes("cd"))
    #expect(next.written == Array("abcd".utf8))
  }

  @Test("carries out on the next endpoint the requests after a command that was lost")
  func standsBehindTheLost() throws {
    let line = ScriptedLine()
    let (rig, _) = try rig(line: line)
    let (client, _) = rig.joinControlChannel()
    let other = ScriptedStream()
    rig.join(other)
    _ = client.news()
    rig.send(client, .text(faster), .text(#"{"request":"dtr","on":true}"#))
    rig.hub.detach()?.close()
    line.answer()
    line.answer()
    let next = ScriptedStream(takesAll: true)
    let nextLine = ScriptedLine()
    next.serialLine = nextLine
    rig.hub.attach(next)
    rig.send(client, .bytes("ab"))
    nextLine.answer()
    rig.wakeReader(client)
    #expect(next.written == Array("ab".utf8))
    other.willRead(.bytes([0x63]))
    rig.wakeReader(other)
    #expect(next.written == Array("abc".utf8))
  }

  @Test("sends a break of the requested length, and holds bytes back meanwhile")
  func sendsBreak() throws {
    let line = ScriptedLine()
    let (rig, endpoint) = try rig(line: line)
    let (client, _) = rig.joinControlChannel()
    _ = client.news()
    rig.send(client, .text(#"{"request":"break","ms":250}"#), .bytes("a"))
    line.answer()
    #expect(line.asked == 0)
    rig.advance(by: .milliseconds(240))
    #expect(line.asked == 0 && endpoint.written == [])
    rig.advance(by: .milliseconds(10))
    line.answer()
    rig.wakeReader(client)
    #expect(client.news() == [#"{"reply":null,"ok":true}"#] && endpoint.written == [0x61])
  }

  @Test("reports the current state to a new client, and to one that asks")
  func status() throws {
    let (rig, _) = try rig(writers: .one)
    let (client, _) = rig.joinControlChannel()
    let events = [
      #"{"event":"link","state":"open"}"#,
      #"{"event":"line","baud":9600,"data":8,"parity":"none","stop":"1","flow":"none"}"#,
      #"{"event":"writer","holder":1,"mine":true}"#,
    ]
    #expect(Array(client.news().suffix(3)) == events)
    #expect(rig.ask(client, #"{"request":"status","id":9}"#) == events + [#"{"reply":9,"ok":true}"#])
  }

  @Test("counts events that it could not send")
  func lost() throws {
    let (rig, _) = try rig()
    let (client, _) = rig.joinControlChannel()
    _ = client.news()
    client.isDeaf = true
    for _ in 0..<3 { rig.linkIs(.opening) }
    client.isDeaf = false
    rig.linkIs(.open)
    #expect(client.news() == [#"{"event":"lost","count":3}"#, #"{"event":"link","state":"open"}"#])
    client.isDeaf = true
    rig.linkIs(.opening)
    client.isDeaf = false
    // A reply is preceded by the count as well.
    #expect(rig.ask(client, #"{"request":"writer","wish":"leave"}"#).first == #"{"event":"lost","count":1}"#)
  }

  @Test("of a monitor is read too, and the monitor's bytes are dropped")
  func monitors() throws {
    let (rig, endpoint) = try rig()
    let (monitor, session) = rig.joinControlChannel(role: .monitor)
    _ = monitor.news()
    rig.send(monitor, .bytes("abc"), .text(#"{"request":"status","id":1}"#), .bytes("de"))
    #expect(endpoint.written == [] && session.dropped == 5)
    #expect(monitor.news().last == #"{"reply":1,"ok":true}"#)
  }

  @Test("keeps places in a real WebSocket, whose frames arrive all at once")
  func websocket() throws {
    let line = ScriptedLine()
    let (rig, endpoint) = try rig(line: line)
    func frame(_ opcode: UInt8, _ text: String) -> [UInt8] {
      [0x80 | opcode, 0x80 | UInt8(text.utf8.count), 0, 0, 0, 0] + Array(text.utf8)  // a mask of zeros
    }
    let frames = frame(2, "ab") + frame(1, #"{"request":"dtr","on":true}"#) + frame(2, "cd")
    let socket = ScriptedStream(reads: [.bytes(frames)], takesAll: true)
    let terms = WebSocketTerms(subprotocol: .baudwayV1)
    let client = WebSocketStream(
      over: socket, as: .server, .init(terms, as: nil), on: rig.poller)
    rig.join(client, controlChannel: ControlChannel(ControlTexts(client)))
    rig.wakeReader(socket)
    for _ in 0..<10 { rig.poller.runAgain() }
    #expect(endpoint.written == Array("ab".utf8) && line.outputs.count == 1)
    line.answer()
    for _ in 0..<10 { rig.poller.runAgain() }
    #expect(endpoint.written == Array("abcd".utf8))
    client.close()
  }
}
