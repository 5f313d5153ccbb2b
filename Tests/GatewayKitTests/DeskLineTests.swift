// What a line tells by itself, and what becomes of what one client did to it when he leaves.

import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A desk at a shared line", .timeLimit(.minutes(1)))
struct DeskLineTests {
  private let line = ScriptedLine()
  private let rig: HubRig
  private let endpoint: ScriptedStream

  init() throws {
    rig = try HubRig(buffer: 4096)
    endpoint = Self.port(line)
    rig.hub.linkIs(.open)
    rig.hub.attach(endpoint)
  }

  private static func port(_ line: ScriptedLine?) -> ScriptedStream {
    let stream = ScriptedStream(takesAll: true)
    stream.serialLine = line
    return stream
  }

  private let faster = #"{"request":"line","id":1,"baud":115200}"#
  private let watch = #"{"request":"watch","on":true,"id":"w"}"#
  private let done = #"{"reply":"w","ok":true}"#
  private func modem(_ rest: String, changes: Int = 0) -> String {
    #"{"event":"modem",\#(rest),"changes":\#(changes)}"#
  }
  private let low = #""cts":false,"dsr":false,"dcd":false,"ri":false"#
  private let ready = #""cts":true,"dsr":true,"dcd":false,"ri":false"#

  private func tell(_ inputs: ModemInputs?, breaks: UInt32? = nil, parity: UInt32 = 0, changes: UInt32 = 0) {
    line.watcher?(
      .success(
        LineCondition(
          inputs: inputs, counts: breaks.map { LineCounts(breaks: $0, parity: parity) }, changes: changes)))
  }

  private func answerAll() { while line.asked > 0 { line.answer() } }

  // MARK: - What the line tells

  @Test("tells of modem lines and errors those who asked, and nobody else; the driver is bothered only meanwhile")
  func modemLines() {
    let (asker, session) = rig.joinDesk()
    let (monitor, _) = rig.joinDesk(role: .monitor)
    let (silent, _) = rig.joinDesk()
    _ = silent.news()
    #expect(line.watcher == nil)
    #expect(rig.ask(asker, watch) == [] && line.watcher != nil)
    tell([], breaks: 7)
    #expect(asker.news() == [done, modem(low)])
    #expect(rig.ask(monitor, watch) == [done, modem(low)])
    tell([.cts, .dsr], breaks: 7, changes: 2)
    tell([.cts, .dsr], breaks: 9, parity: 1, changes: 2)
    tell([.cts, .dsr], breaks: 10, parity: 1, changes: 2)
    let events = [
      modem(ready, changes: 2),
      #"{"event":"errors","breaks":2,"framing":0,"parity":1,"overruns":0,"bufferOverruns":0}"#,
      #"{"event":"errors","breaks":3,"framing":0,"parity":1,"overruns":0,"bufferOverruns":0}"#,
    ]
    #expect(asker.news() == events && monitor.news() == events && silent.news() == [])
    #expect(rig.ask(monitor, #"{"request":"watch","on":false}"#) == [#"{"reply":null,"ok":true}"#])
    tell([], breaks: 10, parity: 1, changes: 4)
    #expect(asker.news() == [modem(low, changes: 2)] && monitor.news() == [])
    // Not at once: asking and taking back in turn is not to cost a thread each time.
    rig.hub.end(session, Ending(.kicked))
    rig.advance(by: .milliseconds(900))
    #expect(line.watcher != nil)
    rig.advance(by: .milliseconds(100))
    #expect(line.watcher == nil)
  }

  @Test("tells of a pulse that was over before anybody looked")
  func pulse() {
    let (client, _) = rig.joinDesk()
    _ = rig.ask(client, watch)
    tell([.cts, .dsr], changes: 5)
    _ = client.news()
    tell([.cts, .dsr], changes: 7)
    #expect(client.news() == [modem(ready, changes: 2)])
  }

  @Test("says that a line tells nothing, where there is none and where the driver does not")
  func tellsNothing() throws {
    let (client, _) = rig.joinDesk()
    _ = rig.ask(client, watch)
    line.watcher?(.failure(SystemError("ioctl TIOCGICOUNT", 25)))
    let refusal = [#"{"reply":"w","ok":false,"error":"not supported by this endpoint"}"#]
    #expect(client.news() == refusal)
    let plain = try HubRig()
    plain.hub.linkIs(.open)
    plain.hub.attach(Self.port(nil))
    let (other, _) = plain.joinDesk()
    #expect(plain.ask(other, watch) == refusal)
    plain.hub.detach()?.close()
    plain.hub.linkIs(.waiting(.lost(nil)))
    #expect(plain.ask(other, watch).first?.contains("the link is waiting") == true)
  }

  @Test("goes on telling when the device is back, and adds up its errors")
  func deviceIsBack() {
    let (client, _) = rig.joinDesk()
    _ = rig.ask(client, watch)
    tell([], breaks: 3)
    tell([], breaks: 4)
    rig.hub.detach()?.close()
    #expect(line.watcher == nil)
    rig.hub.linkIs(.waiting(.lost(nil)))
    let next = ScriptedLine()
    rig.hub.linkIs(.open)
    rig.hub.attach(Self.port(next))
    _ = client.news()
    next.watcher?(.success(LineCondition(inputs: [.cts, .dsr], counts: LineCounts(breaks: 100))))
    #expect(client.news() == [modem(ready)])
    next.watcher?(.success(LineCondition(inputs: [.cts, .dsr], counts: LineCounts(breaks: 101))))
    #expect(client.news().first?.hasPrefix(#"{"event":"errors","breaks":2,"#) == true)
  }

  // MARK: - Before there is a line

  @Test("waits for a link that is being opened, with its place among the bytes")
  func opening() throws {
    let rig = try HubRig(buffer: 4096)
    let (client, _) = rig.joinDesk()
    rig.hub.linkIs(.opening)
    _ = client.news()
    rig.send(client, .text(faster), .bytes("ab"), .text(watch))
    #expect(client.news() == [])
    let endpoint = Self.port(line)
    rig.hub.linkIs(.open)
    rig.hub.attach(endpoint)
    #expect(endpoint.written == [] && line.watcher != nil)
    answerAll()
    rig.wakeReader(client)
    #expect(line.applied == [LineSettings(bitsPerSecond: 115_200)] && endpoint.written == Array("ab".utf8))
    tell([])
    #expect(Array(client.news().suffix(3)).map { $0.prefix(10) } == [#"{"reply":1"#, #"{"reply":""#, #"{"event":""#])
  }

  @Test("is told when the opening fails, and what he purges before it is what he has sent")
  func openingFails() throws {
    let rig = try HubRig(buffer: 4096)
    let (client, session) = rig.joinDesk()
    rig.hub.linkIs(.opening)
    rig.send(client, .bytes("ab"))
    _ = client.news()
    #expect(rig.ask(client, #"{"request":"purge","what":"both"}"#) == [#"{"reply":null,"ok":true}"#])
    #expect(session.dropped == 2)
    rig.send(client, .text(faster), .text(watch))
    rig.hub.linkIs(.waiting(.lost(nil)))
    #expect(
      Set(client.news().dropFirst()) == [
        #"{"reply":1,"ok":false,"error":"the link is waiting"}"#,
        #"{"reply":"w","ok":false,"error":"the link is waiting"}"#,
      ])
  }

  // MARK: - What is left behind

  @Test("puts all of a request in force or nothing, and says what holds")
  func allOrNothing() {
    line.takes = { wanted in
      var inForce = wanted
      inForce.parity = .none  // it takes the rate, and no parity
      return .success(inForce)
    }
    let (client, _) = rig.joinDesk()
    _ = rig.ask(client, #"{"request":"line","id":1,"baud":115200,"parity":"even"}"#)
    answerAll()
    #expect(line.settings == LineSettings())
    #expect(
      client.news() == [
        #"{"reply":1,"ok":false,"error":"the port does not do parity even","#
          + #""line":{"baud":9600,"data":8,"parity":"none","stop":"1","flow":"none"}}"#
      ])
  }

  @Test("takes back what he had set who leaves, before anybody else writes on")
  func settingsGoBack() {
    let (first, session) = rig.joinDesk()
    let (second, _) = rig.joinDesk()
    _ = rig.ask(first, faster)
    answerAll()
    #expect(line.settings.bitsPerSecond == 115_200)
    _ = second.news()
    rig.hub.end(session, Ending(.clientLeft))
    rig.send(second, .bytes("x"), .text(#"{"request":"line","id":2,"parity":"even"}"#))
    #expect(endpoint.written == [])
    line.answer()
    line.answer()
    #expect(line.applied.last == LineSettings() && endpoint.written == Array("x".utf8))
    answerAll()
    #expect(line.settings == LineSettings(parity: .even))
    #expect(second.news().first == #"{"event":"line","baud":9600,"data":8,"parity":"none","stop":"1","flow":"none"}"#)
  }

  @Test("takes back also what is just being put in force when he leaves, and leaves alone what others have set since")
  func leavesInBetween() {
    let (first, one) = rig.joinDesk()
    _ = rig.ask(first, faster)
    rig.hub.end(one, Ending(.clientLeft))
    answerAll()
    #expect(line.applied == [LineSettings(bitsPerSecond: 115_200), LineSettings()])
    let (second, two) = rig.joinDesk()
    _ = rig.ask(second, faster)
    answerAll()
    rig.hub.lineIsSet(to: LineSettings(bitsPerSecond: 300))
    #expect(second.news().last?.contains("300") == true)
    let count = line.applied.count
    rig.hub.end(two, Ending(.clientLeft))
    answerAll()
    #expect(line.applied.count == count)
  }

  @Test("ends a break with him who began it, and with his pen")
  func breakEnds() throws {
    let (first, session) = rig.joinDesk()
    _ = rig.ask(first, #"{"request":"break","on":true}"#)
    answerAll()
    #expect(line.breaks == [true])
    rig.hub.end(session, Ending(.clientLost))
    #expect(line.breaks == [true, false])
    answerAll()

    let one = try HubRig(writers: .one, takeover: .newest)
    one.hub.linkIs(.open)
    one.hub.attach(endpoint)
    let (holder, _) = one.joinDesk()
    _ = one.ask(holder, #"{"request":"break","on":true}"#)
    answerAll()
    one.joinDesk()
    #expect(line.breaks == [true, false, true, false])
  }

  @Test("is not asked for more purges at a time than 64; then their client is not read")
  func purges() {
    let (client, _) = rig.joinDesk()
    for _ in 0..<100 { rig.send(client, .text(#"{"request":"purge","what":"both"}"#)) }
    #expect(line.purges.count == 64 && client.textsLeft == 36)
    line.answer()
    #expect(line.purges.count == 65)
    answerAll()
    #expect(line.purges.count < 100)
  }

  // MARK: - The last

  @Test("hears at its end why, and of an endpoint also what happened")
  func end() {
    let stream = DeskStream()
    let desk = Desk(stream)
    desk.tell(Ending(.kicked))
    desk.tell(Ending(.deviceLost, SystemError("read", 5)))
    desk.tell(Ending(.clientLeft))
    #expect(
      stream.news() == [
        #"{"event":"end","word":"kicked"}"#,
        #"{"event":"end","word":"device-lost","reason":"read: Input/output error (EIO)"}"#,
      ])
  }
}
