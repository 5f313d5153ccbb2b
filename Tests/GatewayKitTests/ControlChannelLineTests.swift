// What a line reports without a request, and which of a client's changes to it are undone when its session ends.

import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A control channel on a shared line", .timeLimit(.minutes(5)))
struct ControlChannelLineTests {
  private let line = ScriptedLine()
  private let rig: HubRig
  private let endpoint: ScriptedStream

  init() throws {
    rig = try HubRig(buffer: 4096)
    endpoint = Self.port(line)
    rig.linkIs(.open)
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

  private func report(_ inputs: ModemInputs?, breaks: UInt32? = nil, parity: UInt32 = 0, changes: UInt32 = 0) {
    line.watcher?(
      .success(
        LineCondition(
          inputs: inputs, counts: breaks.map { LineCounts(breaks: $0, parity: parity) }, changes: changes)))
  }

  private func answerAll() { while line.asked > 0 { line.answer() } }

  // MARK: - What the line reports

  @Test("sends modem lines and errors only to clients that asked; the driver is watched only meanwhile")
  func modemLines() {
    let (asker, session) = rig.joinControlChannel()
    let (monitor, _) = rig.joinControlChannel(role: .monitor)
    let (silent, _) = rig.joinControlChannel()
    _ = silent.news()
    #expect(line.watcher == nil)
    #expect(rig.ask(asker, watch) == [] && line.watcher != nil)
    report([], breaks: 7)
    #expect(asker.news() == [done, modem(low)])
    #expect(rig.ask(monitor, watch) == [done, modem(low)])
    report([.cts, .dsr], breaks: 7, changes: 2)
    report([.cts, .dsr], breaks: 9, parity: 1, changes: 2)
    report([.cts, .dsr], breaks: 10, parity: 1, changes: 2)
    let events = [
      modem(ready, changes: 2),
      #"{"event":"errors","breaks":2,"framing":0,"parity":1,"overruns":0,"bufferOverruns":0}"#,
      #"{"event":"errors","breaks":3,"framing":0,"parity":1,"overruns":0,"bufferOverruns":0}"#,
    ]
    #expect(asker.news() == events && monitor.news() == events && silent.news() == [])
    #expect(rig.ask(monitor, #"{"request":"watch","on":false}"#) == [#"{"reply":null,"ok":true}"#])
    report([], breaks: 10, parity: 1, changes: 4)
    #expect(asker.news() == [modem(low, changes: 2)] && monitor.news() == [])
    // Not at once: alternating requests should not cost a thread each time.
    rig.hub.end(session, Ending(.kicked))
    rig.advance(by: .milliseconds(900))
    #expect(line.watcher != nil)
    rig.advance(by: .milliseconds(100))
    #expect(line.watcher == nil)
  }

  @Test("reports a pulse that ended before its first look")
  func pulse() {
    let (client, _) = rig.joinControlChannel()
    _ = rig.ask(client, watch)
    report([.cts, .dsr], changes: 5)
    _ = client.news()
    report([.cts, .dsr], changes: 7)
    #expect(client.news() == [modem(ready, changes: 2)])
  }

  @Test("replies that watching is not supported, if the endpoint has no line or its driver can't do it")
  func tellsNothing() throws {
    let (client, _) = rig.joinControlChannel()
    _ = rig.ask(client, watch)
    line.watcher?(.failure(SystemError("ioctl TIOCGICOUNT", 25)))
    let refusal = [#"{"reply":"w","ok":false,"error":"not supported by this endpoint"}"#]
    #expect(client.news() == refusal)
    let plain = try HubRig()
    plain.linkIs(.open)
    plain.hub.attach(Self.port(nil))
    let (other, _) = plain.joinControlChannel()
    #expect(plain.ask(other, watch) == refusal)
    plain.hub.detach()?.close()
    plain.linkIs(.waiting(.lost(nil)))
    #expect(plain.ask(other, watch).first?.contains("the link is waiting") == true)
  }

  @Test("continues its reports when the device is back, and adds up the errors")
  func deviceIsBack() {
    let (client, _) = rig.joinControlChannel()
    _ = rig.ask(client, watch)
    report([], breaks: 3)
    report([], breaks: 4)
    rig.hub.detach()?.close()
    #expect(line.watcher == nil)
    rig.linkIs(.waiting(.lost(nil)))
    let next = ScriptedLine()
    rig.linkIs(.open)
    rig.hub.attach(Self.port(next))
    _ = client.news()
    next.watcher?(.success(LineCondition(inputs: [.cts, .dsr], counts: LineCounts(breaks: 100))))
    #expect(client.news() == [modem(ready)])
    next.watcher?(.success(LineCondition(inputs: [.cts, .dsr], counts: LineCounts(breaks: 101))))
    #expect(client.news().first?.hasPrefix(#"{"event":"errors","breaks":2,"#) == true)
  }

  // MARK: - Before the line is open

  @Test("keeps a request until the link is open, in its place among the bytes")
  func opening() throws {
    let rig = try HubRig(buffer: 4096)
    let (client, _) = rig.joinControlChannel()
    rig.linkIs(.opening)
    _ = client.news()
    rig.send(client, .text(faster), .bytes("ab"), .text(watch))
    #expect(client.news() == [])
    let endpoint = Self.port(line)
    rig.linkIs(.open)
    rig.hub.attach(endpoint)
    #expect(endpoint.written == [] && line.watcher != nil)
    answerAll()
    rig.wakeReader(client)
    #expect(line.applied == [LineSettings(bitsPerSecond: 115_200)] && endpoint.written == Array("ab".utf8))
    report([])
    #expect(Array(client.news().suffix(3)).map { $0.prefix(10) } == [#"{"reply":1"#, #"{"reply":""#, #"{"event":""#])
  }

  @Test("lets one client ask for reports 64 times before the link is open; another client's request waits all the same")
  func manyWatches() throws {
    let rig = try HubRig(buffer: 4096)
    let (client, _) = rig.joinControlChannel()
    let (other, _) = rig.joinControlChannel()
    rig.linkIs(.opening)
    _ = (client.news(), other.news())
    for _ in 0..<64 { #expect(rig.ask(client, watch) == []) }
    #expect(
      rig.ask(client, watch) == [#"{"reply":"w","ok":false,"error":"64 of your requests wait for this"}"#])
    #expect(rig.ask(other, watch) == [])
    rig.linkIs(.open)
    rig.hub.attach(Self.port(line))
    _ = (client.news(), other.news())
    report([])
    #expect(client.news().count { $0 == done } == 64 && other.news() == [done, modem(low)])
  }

  @Test("gets an error when the opening fails; a purge before that drops only its own client's input")
  func openingFails() throws {
    let rig = try HubRig(buffer: 4096)
    let (client, session) = rig.joinControlChannel()
    rig.linkIs(.opening)
    rig.send(client, .bytes("ab"))
    _ = client.news()
    #expect(rig.ask(client, #"{"request":"purge","what":"both"}"#) == [#"{"reply":null,"ok":true}"#])
    #expect(session.dropped == 2)
    rig.send(client, .text(faster), .text(watch))
    rig.linkIs(.waiting(.lost(nil)))
    #expect(
      Set(client.news().dropFirst()) == [
        #"{"reply":1,"ok":false,"error":"the link is waiting"}"#,
        #"{"reply":"w","ok":false,"error":"the link is waiting"}"#,
      ])
  }

  @Test("purges its own client's kept input while the device is absent")
  func purgeWhileAbsent() throws {
    let rig = try HubRig(buffer: 4096)
    let (client, session) = rig.joinControlChannel()
    rig.linkIs(.waiting(.lost(nil)))
    rig.send(client, .bytes("ab"))
    _ = client.news()
    #expect(rig.ask(client, #"{"request":"purge","what":"both"}"#) == [#"{"reply":null,"ok":true}"#])
    #expect(session.dropped == 2 && session.pump.count == 0)
  }

  // MARK: - After a client leaves

  @Test("applies a request completely or not at all, and reports the settings in force")
  func allOrNothing() {
    line.takes = { wanted in
      var inForce = wanted
      inForce.parity = .none  // it takes the rate, and no parity
      return .success(inForce)
    }
    let (client, _) = rig.joinControlChannel()
    _ = rig.ask(client, #"{"request":"line","id":1,"baud":115200,"parity":"even"}"#)
    answerAll()
    #expect(line.settings == LineSettings())
    #expect(
      client.news() == [
        #"{"reply":1,"ok":false,"error":"the port does not support parity even","#
          + #""line":{"baud":9600,"data":8,"parity":"none","stop":"1","flow":"none"}}"#
      ])
  }

  @Test("restores a leaving client's line settings before other clients' bytes are written")
  func settingsGoBack() {
    let (first, session) = rig.joinControlChannel()
    let (second, _) = rig.joinControlChannel()
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

  @Test("also restores settings that are being applied when the client leaves, and keeps what others have set since")
  func leavesInBetween() {
    let (first, one) = rig.joinControlChannel()
    _ = rig.ask(first, faster)
    rig.hub.end(one, Ending(.clientLeft))
    answerAll()
    #expect(line.applied == [LineSettings(bitsPerSecond: 115_200), LineSettings()])
    let (second, two) = rig.joinControlChannel()
    _ = rig.ask(second, faster)
    answerAll()
    rig.hub.lineControl?.isSet(to: LineSettings(bitsPerSecond: 300))
    #expect(second.news().last?.contains("300") == true)
    let count = line.applied.count
    rig.hub.end(two, Ending(.clientLeft))
    answerAll()
    #expect(line.applied.count == count)
  }

  @Test("ends a break when the client that began it leaves or loses the writer role")
  func breakEnds() throws {
    let (first, session) = rig.joinControlChannel()
    _ = rig.ask(first, #"{"request":"break","on":true}"#)
    answerAll()
    #expect(line.breaks == [true])
    rig.hub.end(session, Ending(.clientLost))
    #expect(line.breaks == [true, false])
    answerAll()

    let one = try HubRig(writers: .one, takeover: .newest)
    one.linkIs(.open)
    one.hub.attach(endpoint)
    let (holder, _) = one.joinControlChannel()
    _ = one.ask(holder, #"{"request":"break","on":true}"#)
    answerAll()
    one.joinControlChannel()
    #expect(line.breaks == [true, false, true, false])
  }

  @Test("has its requests before the bytes that follow a purge, even if they wait for the line")
  func purgeBeforeBytes() {
    let (client, _) = rig.joinControlChannel()
    rig.send(client, .text(faster), .bytes("0123456789"), .text(#"{"request":"rts","on":false,"id":2}"#))
    rig.send(client, .text(#"{"request":"purge","what":"output"}"#), .bytes("later"))
    while line.outputs.isEmpty, line.asked > 0 { line.answer() }
    #expect(line.outputs.count == 1 && endpoint.written == [])
    answerAll()
    #expect(endpoint.written == Array("later".utf8))
  }

  @Test("learns that another client's break has ended with that client")
  func breakOfAnother() {
    let (client, session) = rig.joinControlChannel()
    let (other, _) = rig.joinControlChannel()
    rig.send(client, .text(#"{"request":"break","on":true}"#))
    answerAll()
    #expect(other.news().contains { $0.contains(#""event":"outputs""#) && $0.contains(#""break":true"#) })
    rig.hub.end(session, Ending(.clientLeft))
    answerAll()
    #expect(other.news().contains { $0.contains(#""event":"outputs""#) && $0.contains(#""break":false"#) })
  }

  @Test("has at most 64 purges in flight; beyond that its client is not read")
  func purges() {
    let (client, _) = rig.joinControlChannel()
    for _ in 0..<100 { rig.send(client, .text(#"{"request":"purge","what":"both"}"#)) }
    #expect(line.purges.count == 64 && client.textsLeft == 36)
    line.answer()
    #expect(line.purges.count == 65)
    answerAll()
    #expect(line.purges.count < 100)
  }

  // MARK: - The end

  @Test("reports at its end the reason, and for an endpoint's fault its error")
  func end() {
    let stream = ScriptedControlStream()
    let controlChannel = ControlChannel(ControlTexts(stream))
    controlChannel.report(Ending(.kicked))
    controlChannel.report(Ending(.deviceLost, SystemError("read", 5)))
    controlChannel.report(Ending(.clientLeft))
    #expect(
      stream.news() == [
        #"{"event":"end","word":"kicked"}"#,
        #"{"event":"end","word":"device-lost","reason":"read: Input/output error (EIO)"}"#,
      ])
  }
}
