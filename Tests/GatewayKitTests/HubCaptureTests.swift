import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A hub that is recorded")
struct HubCaptureTests {
  private func file(_ capture: CaptureRig) throws -> PcapngReader {
    capture.end()
    return try PcapngReader(capture.folder.bytes("x.pcapng"))
  }

  @Test("records what the endpoint takes, when it takes it, and all that it sends, once for all clients")
  func bytes() throws {
    let (rig, capture) = (try HubRig(buffer: 4096), try CaptureRig(.pcapng))
    let endpoint = ScriptedStream(writes: [.moved(30), .blocked(until: .writable)])
    rig.hub.record(to: capture.tap)
    rig.hub.attach(endpoint, saying: [])
    let client = ScriptedStream(reads: [.moved(100)])
    let other = ScriptedStream(takesAll: true)
    rig.join(client)
    rig.join(other)
    rig.wakeReader(client)
    endpoint.willRead(.bytes(pattern(7..<57)))
    rig.wakeReader(endpoint)
    endpoint.willWrite(.moved(70))
    rig.wakeWriter(endpoint)
    let file = try file(capture)
    #expect(endpoint.written == pattern(0..<100))
    #expect(file.data(1) == pattern(0..<100) && file.data(2) == pattern(7..<57))
    let events = file.packets.map(\.event).filter { $0 == 1 || $0 == 2 }
    #expect(events.first == 1 && events.contains(2) && events.last == 1, "in the order in which it happened")
    rig.hub.record(to: nil)
  }

  @Test("records the bytes of packets and of on-open, too")
  func packets() throws {
    let (rig, capture) = (try HubRig(packets: .lines), try CaptureRig(.pcapng))
    rig.hub.record(to: capture.tap)
    let client = PieceStream()
    rig.join(client)
    let endpoint = PieceStream()
    rig.hub.attach(endpoint, saying: Array("hello\n".utf8))
    client.script += Array("a\nb\n".utf8)
    rig.wakeReader(client)
    #expect(String(decoding: endpoint.taken, as: UTF8.self) == "hello\na\nb\n")
    #expect(String(decoding: try file(capture).data(1), as: UTF8.self) == "hello\na\nb\n")
    rig.hub.record(to: nil)
  }

  @Test("may begin and end while bytes flow, and no byte is lost")
  func midway() throws {
    let (rig, capture) = (try HubRig(), try CaptureRig(.pcapng))
    let endpoint = PieceStream()
    rig.hub.attach(endpoint)
    let client = PieceStream()
    rig.join(client)
    let say = { (text: String) in
      client.script += Array(text.utf8)
      rig.wakeReader(client)
    }
    say("one ")
    #expect(rig.hub.upstream.outlet === endpoint, "without a recording nothing is in between")
    rig.hub.record(to: capture.tap)
    say("two ")
    rig.hub.record(to: nil)
    #expect(rig.hub.upstream.outlet === endpoint)
    say("three")
    #expect(String(decoding: endpoint.taken, as: UTF8.self) == "one two three")
    #expect(String(decoding: try file(capture).data(1), as: UTF8.self) == "two ")
  }

  @Test("records the link, the settings, DTR and RTS, breaks, modem lines and errors of the line")
  func line() throws {
    let (rig, capture) = (try HubRig(), try CaptureRig(.pcapng))
    let line = ScriptedLine()
    line.outputStates = ModemOutputStates(dtr: true, rts: false)
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.serialLine = line
    rig.hub.record(to: capture.tap)
    rig.linkIs(.open)
    rig.hub.attach(endpoint)
    let client = ScriptedControlStream()
    let session = rig.join(client, controlChannel: ControlChannel(ControlTexts(client)))
    rig.hub.lineControl?.add(.line(.init(bitsPerSecond: 9600)), nil, of: session)
    line.answer()
    rig.hub.lineControl?.add(.output(.rts, isOn: true), nil, of: session)
    line.answer()
    rig.hub.lineControl?.add(.break(isOn: true), nil, of: session)
    line.answer()
    line.watcher?(.success(LineCondition(inputs: [.cts], counts: LineCounts(framing: 1))))
    line.watcher?(
      .success(LineCondition(inputs: [.cts, .dcd], counts: LineCounts(breaks: 1, framing: 3, parity: 1, overruns: 4))))
    endpoint.willRead(.bytes([1]))
    rig.wakeReader(endpoint)
    let file = try file(capture)
    let comments = file.packets.compactMap(\.comment)
    #expect(comments.contains("link open") && comments.contains("line 9600 8N1"), "\(comments)")
    #expect(comments.contains("break begins"))
    #expect(comments.contains("dtr on rts on cts off dsr off dcd off ri off"), "\(comments)")
    #expect(comments.contains("dtr on rts on cts on dsr off dcd on ri off"))
    #expect(comments.contains("framing errors: 2") && comments.contains("parity errors: 1"))
    #expect(comments.contains("breaks received: 1") && comments.contains("bytes lost in the port: 4"))
    #expect(file.packets.filter { $0.event == 7 }.count == 1 && file.packets.filter { $0.event == 10 }.count == 1)
    let data = try #require(file.packets.last { $0.event == 2 })
    #expect(data.lines == ControlLines([.dtr, .rts, .cts, .dcd]).rawValue)
    rig.hub.record(to: nil)
    rig.advance(by: .seconds(2))
    #expect(line.watcher == nil, "and nobody watches the line afterwards")
  }
}
