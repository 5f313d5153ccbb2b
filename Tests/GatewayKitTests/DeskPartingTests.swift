// What a desk is told, and when, while the device goes, is closed to be opened again, or another client leaves.

import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A desk when the device or another goes", .timeLimit(.minutes(1)))
struct DeskPartingTests {
  private let line = ScriptedLine()

  private func rig(writers: Config.Clients.Writers = .all) throws -> HubRig {
    let rig = try HubRig(buffer: 4096, writers: writers)
    rig.hub.linkIs(.open)
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

  @Test("waits for a link that closes to open again, whatever it asks")
  func closesToOpenAgain() throws {
    let rig = try rig()
    rig.hub.detach()?.close()
    rig.hub.linkIs(.draining)
    let (client, _) = rig.joinDesk()
    _ = client.news()
    rig.send(client, .text(faster), .text(#"{"request":"watch","on":true,"id":"w"}"#))
    #expect(client.news() == [])
    #expect(rig.ask(client, #"{"request":"purge","what":"both"}"#) == [#"{"reply":null,"ok":true}"#])
    rig.hub.linkIs(.opening)
    let next = ScriptedLine()
    rig.hub.linkIs(.open)
    rig.hub.attach(port(next))
    #expect(next.watcher != nil)
    while next.asked > 0 { next.answer() }
    #expect(next.applied == [LineSettings(bitsPerSecond: 115_200)])
    #expect(client.news().last?.hasPrefix(#"{"reply":1,"ok":true"#) == true)
  }

  @Test("gets its answer when the device goes while the line is put right")
  func goesWhilePuttingRight() throws {
    let rig = try rig()
    let (first, one) = rig.joinDesk()
    let (second, _) = rig.joinDesk()
    rig.send(first, .text(faster))
    answerAll()
    rig.hub.end(one, Ending(.clientLeft))
    rig.send(second, .text(even))
    rig.hub.detach()?.close()
    rig.hub.linkIs(.waiting(.lost(nil)))
    #expect(second.news().last == #"{"reply":2,"ok":false,"error":"the link is waiting"}"#)
  }

  @Test("waits while the line is put right, though nobody watches it any more")
  func watchEndsWhilePuttingRight() throws {
    let rig = try rig()
    let (first, one) = rig.joinDesk()
    let (second, _) = rig.joinDesk()
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

  @Test("gets its answers when the device goes while a command is carried out")
  func goesMeanwhile() throws {
    let rig = try rig()
    let (client, _) = rig.joinDesk()
    _ = client.news()
    rig.send(client, .text(raise), .text(even))
    rig.hub.detach()?.close()
    rig.hub.linkIs(.waiting(.lost(nil)))
    answerAll()
    let replies = client.news().filter { $0.hasPrefix(#"{"reply""#) }
    #expect(replies == [#"{"reply":1,"ok":true}"#, #"{"reply":2,"ok":false,"error":"the link is waiting"}"#])
  }

  @Test(
    "gets the line when the command of one who left is carried out and taken back, and not before",
    arguments: [Config.Clients.Writers.all, .one], [true, false])
  func leavesMeanwhile(writers: Config.Clients.Writers, changesLine: Bool) throws {
    let rig = try rig(writers: writers)
    let (first, one) = rig.joinDesk()
    let (second, _) = rig.joinDesk()
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

  @Test("gets the next device's line though one left in the middle of a command on the last one")
  func leavesAndGoes() throws {
    let rig = try rig()
    let (first, one) = rig.joinDesk()
    let (second, _) = rig.joinDesk()
    rig.send(first, .text(faster))
    rig.hub.end(one, Ending(.clientLeft))
    rig.hub.detach()?.close()
    rig.hub.linkIs(.waiting(.lost(nil)))
    answerAll()
    #expect(line.applied == [], "a line that was let go of is left alone")
    let next = ScriptedLine()
    rig.hub.linkIs(.open)
    rig.hub.attach(port(next))
    rig.send(second, .text(even))
    while next.asked > 0 { next.answer() }
    #expect(next.applied == [LineSettings(parity: .even)])
  }
}
