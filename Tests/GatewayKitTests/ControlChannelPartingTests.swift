// What a control channel reports, and when, while the device is lost, the link closes and reopens, or another client
// leaves.

import StreamBroker
import StreamTelnet
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A control channel, when the device or another client is gone,", .timeLimit(.minutes(5)))
struct ControlChannelPartingTests {
  private let line = ScriptedLine()

  private func rig(writers: Config.Clients.Writers = .all) throws -> HubRig {
    let rig = try HubRig(buffer: 4096, writers: writers)
    rig.linkIs(.open)
    rig.hub.attach(port(line))
    return rig
  }

  private func port(_ line: ScriptedLine) -> ScriptedStream {
    let stream = ScriptedStream(takesAll: true)
    stream.serialLine = line
    return stream
  }

  private let faster = #"{"request":"line","id":1,"baud":115200}"#
  private let even = #"{"request":"line","id":2,"parity":"even"}"#
  private let raise = #"{"request":"dtr","id":1,"on":true}"#

  private func answerAll() { while line.asked > 0 { line.answer() } }

  @Test("keeps every request until a closing link is open again, except a purge")
  func closesToOpenAgain() throws {
    let rig = try rig()
    rig.hub.detach()?.close()
    rig.linkIs(.draining)
    let (client, _) = rig.joinControlChannel()
    _ = client.news()
    rig.send(client, .text(faster), .text(#"{"request":"watch","on":true,"id":"w"}"#))
    #expect(client.news() == [])
    #expect(rig.ask(client, #"{"request":"purge","what":"both"}"#) == [#"{"reply":null,"ok":true}"#])
    rig.linkIs(.opening)
    let next = ScriptedLine()
    rig.linkIs(.open)
    rig.hub.attach(port(next))
    #expect(next.watcher != nil)
    while next.asked > 0 { next.answer() }
    #expect(next.applied == [LineSettings(bitsPerSecond: 115_200)])
    #expect(client.news().last?.hasPrefix(#"{"reply":1,"ok":true"#) == true)
  }

  @Test("lets others set the line once a client has finished sending and its commands are done")
  func finishesSending() throws {
    let rig = try rig()
    let (first, session) = rig.joinControlChannel()
    let (second, _) = rig.joinControlChannel()
    rig.send(first, .text(faster), .end)
    rig.wakeReader(first)
    answerAll()
    #expect(!session.isOver && session.isHalfClosed)  // it may still receive
    #expect(line.applied == [LineSettings(bitsPerSecond: 115_200), LineSettings()])
    _ = second.news()
    rig.send(second, .text(even))
    answerAll()
    #expect(line.applied.last == LineSettings(parity: .even))
    #expect(second.news().last?.hasPrefix(#"{"reply":2,"ok":true"#) == true)
  }

  @Test("replies when the device is lost while the line is restored")
  func goesWhilePuttingRight() throws {
    let rig = try rig()
    let (first, one) = rig.joinControlChannel()
    let (second, _) = rig.joinControlChannel()
    rig.send(first, .text(faster))
    answerAll()
    rig.hub.end(one, Ending(.clientLeft))
    rig.send(second, .text(even))
    rig.hub.detach()?.close()
    rig.linkIs(.waiting(.lost(nil)))
    #expect(second.news().last == #"{"reply":2,"ok":false,"error":"the link is waiting"}"#)
  }

  @Test("waits while the line is restored, though no client watches the line any more")
  func watchEndsWhilePuttingRight() throws {
    let rig = try rig()
    let (first, one) = rig.joinControlChannel()
    let (second, _) = rig.joinControlChannel()
    rig.send(first, .text(#"{"request":"watch","on":true}"#))
    line.watcher?(.success(LineCondition(inputs: [])))
    rig.send(first, .text(faster))
    answerAll()
    rig.hub.end(one, Ending(.clientLeft))
    rig.advance(by: .milliseconds(1500))
    rig.send(second, .text(raise))
    #expect(line.watcher == nil && line.outputs.isEmpty)
    answerAll()
    #expect(line.outputs.count == 1)
  }

  @Test("replies when the device is lost during a command")
  func goesMeanwhile() throws {
    let rig = try rig()
    let (client, _) = rig.joinControlChannel()
    _ = client.news()
    rig.send(client, .text(raise), .text(even))
    rig.hub.detach()?.close()
    rig.linkIs(.waiting(.lost(nil)))
    answerAll()
    let replies = client.news().filter { $0.hasPrefix(#"{"reply""#) }
    #expect(replies == [#"{"reply":1,"ok":true}"#, #"{"reply":2,"ok":false,"error":"the link is waiting"}"#])
  }

  @Test(
    "applies its settings only after a departed client's command is finished and undone",
    arguments: [Config.Clients.Writers.all, .one], [true, false])
  func leavesMeanwhile(writers: Config.Clients.Writers, changesLine: Bool) throws {
    let rig = try rig(writers: writers)
    let (first, one) = rig.joinControlChannel()
    let (second, _) = rig.joinControlChannel()
    rig.send(first, .text(changesLine ? faster : raise))
    rig.hub.end(one, Ending(.clientLeft))
    let asked = line.asked
    rig.send(second, .text(even))
    #expect(line.asked == asked)
    answerAll()
    let fast = LineSettings(bitsPerSecond: 115_200)
    #expect(line.applied == (changesLine ? [fast, LineSettings()] : []) + [LineSettings(parity: .even)])
    #expect(second.news().last?.hasPrefix(#"{"reply":2,"ok":true"#) == true)
  }

  @Test("gets the next device's line after a client left during a command on the last one")
  func leavesAndGoes() throws {
    let rig = try rig()
    let (first, one) = rig.joinControlChannel()
    let (second, _) = rig.joinControlChannel()
    rig.send(first, .text(faster))
    rig.hub.end(one, Ending(.clientLeft))
    rig.hub.detach()?.close()
    rig.linkIs(.waiting(.lost(nil)))
    answerAll()
    #expect(line.applied == [], "a line that was let go of is left alone")
    let next = ScriptedLine()
    rig.linkIs(.open)
    rig.hub.attach(port(next))
    rig.send(second, .text(even))
    while next.asked > 0 { next.answer() }
    #expect(next.applied == [LineSettings(parity: .even)])
  }

  private static let fast: [UInt8] = [255, 250, 44, 1, 0, 1, 194, 0, 255, 240]
  private static let fastIsSet: [UInt8] = [255, 250, 44, 101, 0, 1, 194, 0, 255, 240]

  /// A client of RFC 2217 sets 115200 bit/s.
  private func joinTelnet(_ rig: HubRig, ends: Bool = false) -> ScriptedStream {
    let reads: [ScriptedStream.Step] = [.bytes([255, 251, 44]), .bytes(Self.fast)] + (ends ? [.ended] : [])
    let below = ScriptedStream(reads: reads, takesAll: true)
    let stream = TelnetStream(over: below, .init(.server), TelnetNegotiation(.server(comPort: true)), on: rig.poller)
    stream.begin()
    rig.join(stream, controlChannel: ControlChannel(TelnetControl(stream, sendsNotices: false)))
    for _ in 0..<6 {
      rig.wakeReader(below)
      rig.poller.runAgain()
    }
    return below
  }

  @Test("forgets what a client of RFC 2217 asked for while the device was away, once that client has finished")
  func finishesWhileAway() throws {
    let rig = try HubRig(buffer: 4096)
    rig.linkIs(.opening)
    let client = joinTelnet(rig, ends: true)
    rig.linkIs(.waiting(.openFailed(OpenFailure("open x", SystemError("open", 2)))))
    #expect(client.written.suffix(10) == Self.fastIsSet)
    let line = ScriptedLine()
    rig.linkIs(.open)
    rig.hub.attach(port(line))
    while line.asked > 0 { line.answer() }
    #expect(line.applied == [])
  }

  @Test(
    "sets on the next endpoint what a client of RFC 2217 was setting when the last one was lost",
    arguments: [true, false])
  func settingWasLost(isAnswered: Bool) throws {
    let rig = try rig()
    let client = joinTelnet(rig)
    #expect(line.asked == 1)
    rig.hub.detach()?.close()
    rig.linkIs(.waiting(.lost(nil)))
    if isAnswered { answerAll() }
    #expect(isAnswered == (client.written.suffix(10) == Self.fastIsSet))
    let next = ScriptedLine()
    rig.linkIs(.open)
    rig.hub.attach(port(next))
    #expect(client.written.suffix(10) == Self.fastIsSet)
    while next.asked > 0 { next.answer() }
    #expect(next.applied == [LineSettings(bitsPerSecond: 115_200)])
  }

  @Test("leaves the port alone for settings that a reload makes while the bytes before them are sent")
  func setMeanwhile() throws {
    let rig = try rig()
    let (client, _) = rig.joinControlChannel()
    rig.send(client, .text(faster))
    #expect(line.asked == 1 && line.applied.isEmpty)
    line.settings = LineSettings(bitsPerSecond: 115_200)
    answerAll()
    #expect(line.applied.isEmpty)
    #expect(client.news().last?.hasPrefix(#"{"reply":1,"ok":true"#) == true)
  }

  @Test("answers a request of a lost endpoint before those that follow on the next one")
  func lostRequest() throws {
    let rig = try HubRig(buffer: 4096)
    let (lost, next) = (ScriptedLine(unsent: [9]), ScriptedLine())
    rig.linkIs(.open)
    rig.hub.attach(port(lost))
    let (client, _) = rig.joinControlChannel()
    rig.send(client, .text(#"{"request":"line","id":1,"baud":115200}"#), .text(#"{"request":"dtr","id":2,"on":true}"#))
    lost.answer()  // it looks again a moment later
    rig.hub.detach()?.close()
    _ = client.news()
    rig.hub.attach(port(next))
    while next.asked > 0 { next.answer() }
    rig.advance(by: .milliseconds(20))
    while lost.asked > 0 { lost.answer() }
    let replies = client.news().filter { $0.contains("reply") }
    #expect(replies == [#"{"reply":1,"ok":false,"error":"the link has closed"}"#, #"{"reply":2,"ok":true}"#])
  }

  @Test("ends with its link when the client leaves, on links of their own")
  func ownLink() throws {
    let rig = try LinkRig(isShared: false)
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.closeBehavior = CloseBehavior()  // it has no half-close, so the client's end ends the session
    rig.connector.answerAtOnce = { .success(endpoint) }
    let group = SessionGroup(try rig.settings { _ in }, on: rig.poller, status: StatusSink([])) { _, _ in }
    let client = ScriptedControlStream()
    let label = AcceptedConnection.Label(address: nil, listener: "tcp://127.0.0.1:1")
    group.take(client, label, preface: [], 1)
    #expect(group.links.count == 1)
    client.add([.end])
    rig.wakeReader(client)
    #expect(group.links.isEmpty && client.isClosed)
  }
}
