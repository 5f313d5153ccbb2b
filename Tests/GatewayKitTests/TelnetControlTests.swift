// RFC 2217 as a protocol of the control channel: requests in, answers with values in force out.

import StreamBroker
import StreamTelnet
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The control channel of a telnet client")
struct TelnetControlTests {
  private final class Rig {
    let hub: HubRig
    let below = ScriptedStream(takesAll: true)
    let stream: TelnetStream
    let control: TelnetControl

    init(comPort: Bool = true) throws {
      hub = try HubRig()
      stream = TelnetStream(
        over: below, .init(.server, keepalive: nil), TelnetNegotiation(.server(comPort: true)), on: hub.poller)
      control = TelnetControl(stream, sendsNotices: true)
      if comPort { receive([255, 251, 44]) }
    }

    /// The requests that come with these bytes of the client.
    @discardableResult
    func receive(_ bytes: [UInt8]) -> [ControlChannelRequest.Parsed] {
      below.willRead(.bytes(bytes))
      var requests: [ControlChannelRequest.Parsed] = []
      var run = [UInt8](repeating: 0, count: 512)
      repeat {
        _ = try? run.withUnsafeMutableBytes { try stream.read(into: $0) }
        while let request = control.takeRequest() { requests.append(request) }
      } while stream.hasBufferedInput
      return requests
    }

    func ask(_ content: UInt8...) -> [ControlChannelRequest.Parsed] { ask(content) }

    @discardableResult
    func ask(_ content: [UInt8]) -> [ControlChannelRequest.Parsed] { receive([255, 250, 44] + content + [255, 240]) }

    /// The content of the answers since the last call.
    func answers() -> [[UInt8]] {
      let bytes = Array(below.written[seen...])
      seen = below.written.count
      return bytes.split(separator: [255, 240]).compactMap { part in
        part.starts(with: [255, 250, 44]) ? Array(part.dropFirst(3)) : nil
      }
    }
    private var seen = 0
  }

  private func id(_ parsed: ControlChannelRequest.Parsed?) -> ControlChannelRequest.ID? {
    if case .success(let (id, _))? = parsed { id } else { nil }
  }

  private func request(_ parsed: ControlChannelRequest.Parsed?) -> ControlChannelRequest? {
    if case .success(let (_, request))? = parsed { request } else { nil }
  }

  @Test("watches the line from the agreement on, and not with masks of 0")
  func watching() throws {
    let rig = try Rig(comPort: false)
    #expect(rig.receive([255, 251, 44]).map { request($0) } == [.watch(isOn: true)])
    _ = rig.answers()
    #expect(rig.ask(11, 0).map { request($0) } == [.watch(isOn: false)])
    #expect(rig.ask(10, 16).map { request($0) } == [.watch(isOn: true)])
    #expect(rig.answers() == [[111, 0], [110, 16]])
  }

  @Test("tells another gateway what others change, and no other client")
  func reports() throws {
    let rig = try Rig()
    let outputs = ModemOutputStates(dtr: true, rts: false)
    _ = rig.control.send(.line(LineSettings()))
    _ = rig.control.send(.outputs(outputs, isBreak: false))
    #expect(rig.answers() == [])
    #expect(rig.ask([0] + Array("Baudway 9".utf8)).isEmpty)
    _ = rig.control.send(.line(LineSettings(bitsPerSecond: 300, parity: .odd)))
    _ = rig.control.send(.outputs(ModemOutputStates(dtr: false, rts: false), isBreak: false))
    #expect(rig.answers() == [[1, 0, 0, 1, 44], [3, 2], [5, 9]])
    _ = rig.control.send(.line(LineSettings(bitsPerSecond: 300, parity: .odd)))
    #expect(rig.answers() == [])
  }

  @Test(
    "tells another gateway what has changed with a setting that it asked for, and no other client",
    arguments: [true, false])
  func reportsMore(isGateway: Bool) throws {
    let rig = try Rig()
    if isGateway { rig.ask([0] + Array("Baudway 9".utf8)) }
    _ = rig.control.send(.line(LineSettings(dataBits: 5, stopBits: .oneAndHalf)))
    _ = rig.answers()
    let asked = rig.ask(2, 7)
    _ = rig.control.send(.done(id(asked.first), LineSettings(dataBits: 7, stopBits: .two)))
    #expect(rig.answers() == [[102, 7]] + (isGateway ? [[4, 2]] : []))
  }

  @Test("answers a refused change with the value in force, and one of an endpoint without a line with its own")
  func refusal() throws {
    let rig = try Rig()
    _ = rig.control.send(.line(LineSettings(bitsPerSecond: 9600)))
    _ = rig.answers()
    let asked = rig.ask(1, 0, 0, 0x4B, 0)
    #expect(asked.map { request($0) } == [.line(.init(bitsPerSecond: 19_200))])
    _ = rig.control.send(.failed(id(asked.first), "session 1 holds the line settings"))
    var unsupported = ControlChannelReply.failed(id(asked.first), LineControl.notSupported)
    unsupported.isUnsupported = true
    _ = rig.control.send(unsupported)
    #expect(rig.answers() == [[101, 0, 0, 0x25, 0x80], [101, 0, 0, 0x4B, 0]])
  }

  @Test("answers a change that waits for the device to come back as it was asked for")
  func remembered() throws {
    let rig = try Rig()
    _ = rig.control.send(.outputs(ModemOutputStates(dtr: true, rts: true), isBreak: false))
    _ = rig.answers()
    var reply = ControlChannelReply.done(id(rig.ask(5, 9).first))
    reply.isRemembered = true
    _ = rig.control.send(reply)
    #expect(rig.answers() == [[105, 9]])
  }

  @Test("answers a query with what it has answered before, while the device is away")
  func queryWhileAway() throws {
    let rig = try Rig()
    _ = rig.control.send(.line(LineSettings(bitsPerSecond: 9600, parity: .even)))
    _ = rig.control.send(.outputs(ModemOutputStates(dtr: true, rts: true), isBreak: false))
    for request in [[1, 0, 1, 194, 0], [5, 9]] as [[UInt8]] {
      var reply = ControlChannelReply.done(id(rig.ask(request).first))
      reply.isRemembered = true
      _ = rig.control.send(reply)
    }
    _ = rig.answers()
    for query in [[1, 0, 0, 0, 0], [3, 0], [5, 7], [5, 10]] as [[UInt8]] {
      var reply = ControlChannelReply.done(id(rig.ask(query).first))
      reply.isUnsupported = true
      _ = rig.control.send(reply)
    }
    #expect(rig.answers() == [[101, 0, 1, 194, 0], [103, 3], [105, 9], [105, 11]])
    // The device is back, and with another client's settings.
    _ = rig.control.send(.line(LineSettings(bitsPerSecond: 300)))
    var reply = ControlChannelReply.done(id(rig.ask(1, 0, 0, 0, 0).first))
    reply.isUnsupported = true
    _ = rig.control.send(reply)
    #expect(rig.answers() == [[101, 0, 0, 1, 44]])
  }

  @Test("reports modem lines by the mask, with the bits of what has changed")
  func modem() throws {
    let rig = try Rig()
    _ = rig.answers()
    _ = rig.control.send(.modem([.cts], changes: 0))
    _ = rig.control.send(.modem([.cts, .dsr], changes: 1))
    _ = rig.control.send(.modem([.cts, .dsr, .ri], changes: 1))
    _ = rig.control.send(.modem([.dsr], changes: 2))
    #expect(rig.answers() == [[107, 0x10], [107, 0x32], [107, 0x70], [107, 0x25]])
    _ = rig.ask(11, 0x80)  // DCD alone
    _ = rig.control.send(.modem([], changes: 1))
    _ = rig.control.send(.modem([.dcd], changes: 1))
    #expect(rig.answers() == [[111, 0x80], [107, 0x80]])
  }

  @Test("turns the modem lines off while the device is away, also those that the endpoint doesn't have")
  func away() throws {
    let rig = try Rig()
    _ = rig.answers()
    _ = rig.control.send(.link(.waiting(.lost(nil))))
    #expect(rig.answers() == [])  // nothing is known of the lines yet
    _ = rig.control.send(.modem([.cts, .dcd], changes: 0))
    _ = rig.control.send(.link(.waiting(.lost(nil))))
    _ = rig.control.send(.link(.waiting(.lost(nil))))
    _ = rig.control.send(.link(.open))
    _ = rig.control.send(.modem([.cts], changes: 0))
    #expect(rig.answers() == [[107, 0x90], [107, 0x09], [107, 0x11]])
    let without = try Rig()
    _ = without.answers()
    var reply = ControlChannelReply.failed(nil, "no line")
    reply.isUnsupported = true
    _ = without.control.send(reply)
    _ = without.control.send(.link(.waiting(.lost(nil))))
    _ = without.control.send(.link(.open))
    #expect(without.answers() == [[107, 0xB0], [107, 0x0B], [107, 0xBB]])
  }

  @Test("reports errors on the line since the last report, by the mask")
  func errors() throws {
    let rig = try Rig()
    _ = rig.ask(10, 0x18)
    _ = rig.answers()
    _ = rig.control.send(.errors(LineCounts(breaks: 1, parity: 1)))
    _ = rig.control.send(.errors(LineCounts(breaks: 1, parity: 2)))
    _ = rig.control.send(.errors(LineCounts(breaks: 1, framing: 1, parity: 2)))
    #expect(rig.answers() == [[106, 0x10], [106, 0x08]])
    // With masks of 0 the watch ends. The next one counts from 0.
    for request in [[11, 0], [10, 0], [10, 0x1E]] as [[UInt8]] { _ = rig.ask(request) }
    _ = rig.answers()
    _ = rig.control.send(.errors(LineCounts(breaks: 1)))
    #expect(rig.answers() == [[106, 0x10]])
  }

  @Test("keeps notices until the client has refused COM-PORT, and sends none to a program")
  func notices() throws {
    let person = try Rig(comPort: false)
    person.stream.begin()
    _ = person.control.send(.drops(bytes: 7, total: 7))
    #expect(!String(decoding: person.below.written, as: UTF8.self).contains("dropped"))
    person.receive([255, 254, 44, 255, 252, 44])
    #expect(String(decoding: person.below.written, as: UTF8.self).contains("baudway: 7 bytes were dropped"))
    // A session may end before the client has answered.
    let early = try Rig(comPort: false)
    early.stream.begin()
    _ = early.control.send(.drops(bytes: 7, total: 7))
    _ = early.control.send(.end(.openFailed, reason: "no device"))
    #expect(
      String(decoding: early.below.written, as: UTF8.self).hasSuffix(
        "baudway: 7 bytes were dropped, because you read too slowly\r\n\r\nbaudway: open-failed: no device\r\n"))
    let program = try Rig()
    _ = program.control.send(.end(.kicked, reason: nil))
    #expect(!String(decoding: program.below.written, as: UTF8.self).contains("kicked"))
  }

  @Test("makes IAC BREAK a break of a quarter of a second")
  func breakKey() throws {
    #expect(try Rig().receive([255, 243]).map { request($0) } == [.breakFor(.milliseconds(250))])
  }

  @Test("sends nothing when IAC BREAK fails: that says nothing about modem lines", arguments: [true, false])
  func breakKeyFails(comPort: Bool) throws {
    let rig = try Rig(comPort: comPort)
    let asked = rig.receive([255, 243])
    _ = rig.answers()
    let before = rig.below.written.count
    var reply = ControlChannelReply.failed(id(asked.first), "no break")
    reply.isUnsupported = true
    _ = rig.control.send(reply)
    _ = rig.control.send(.link(.open))
    #expect(rig.below.written.count == before)
  }
}
