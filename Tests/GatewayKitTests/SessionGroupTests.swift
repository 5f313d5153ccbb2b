// Sessions of one lane on a clock turned by hand: the banner, and clients that are idle.

import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

/// A group whose endpoint the test opens, in the test's own thread.
private final class GroupRig {
  let clock = ManualClock()
  let poller: Poller
  let story = Story()
  let connector = ScriptedConnector()
  let group: SessionGroup
  private var streams: [any ByteStream] = []

  init(_ text: String) throws {
    poller = try Poller(clock: clock.clock) { _ in }
    let settings = RouteSettings(try routeConfig(text, endpoint: "sim://echo"), connector: connector)
    group = SessionGroup(settings, on: poller, status: story.sink) { _ in }
  }

  // An open stream and its session keep each other, as they shall.
  deinit { for stream in streams { stream.close() } }

  @discardableResult
  func take(_ client: ScriptedStream, _ number: UInt64 = 1, preface: [UInt8] = []) -> Session? {
    streams.append(client)
    let address = SocketAddress(numeric: "127.0.0.1", port: 51234)
    group.take(client, Arrival.Label(address: address, listener: "tcp://127.0.0.1:1"), preface: preface, number)
    return group.sessions.first { $0.number == number }
  }

  /// Opens the endpoint.
  func open(_ endpoint: ScriptedStream) {
    streams.append(endpoint)
    connector.openings[connector.openings.count - 1].succeed(endpoint)
  }

  func wake(_ stream: ScriptedStream, _ event: ByteStreamEvent) { stream.delegate?.stream(stream, handle: event) }

  /// Turns the clock, as the lane would live it.
  func pass(_ time: Duration) {
    let step = Duration.milliseconds(10)
    for _ in 0..<Int(time / step) {
      clock.advance(by: step)
      poller.timers.fireDue()
    }
  }

  var words: [Ending.Word] { story.reports.map(\.ending.word) }
}

@Suite("A banner", .timeLimit(.minutes(1)))
struct BannerTests {
  @Test("has its names filled in, once, and its lines ended as terminals want them")
  func text() {
    let label = Arrival.Label(address: SocketAddress(numeric: "::1", port: 7), listener: "tcp://[::1]:1")
    let banner = Banner("{route}: {endpoint}\n{client}\r\nα{a {b}\r{", route: "{client}", endpoint: "{route}")
    #expect(String(decoding: banner.bytes(for: label), as: UTF8.self) == "{client}: {route}\r\n[::1]:7\r\nα{a {b}\r\n{")
    let local = Arrival.Label(address: nil, listener: "unix:///x")
    #expect(Banner("{client}", route: "", endpoint: "").bytes(for: local) == Array("a local client".utf8))
  }

  @Test("has escapes as device.on-open has them, in whatever quotes YAML has it")
  func escapes() {
    let local = Arrival.Label(address: nil, listener: "unix:///x")
    for text in ["AT\r\n{route}\u{1B}\\x7Broute}", #"AT\r\n{route}\x1B\x7Broute}"#, "AT\n{route}\u{1B}\\x7broute}"] {
      #expect(Banner(text, route: #"a\n"#, endpoint: "").bytes(for: local) == Array("AT\r\na\\n\u{1B}{route}".utf8))
    }
  }

  @Test("comes before all else, also when the client takes it a few bytes at a time")
  func first() throws {
    let rig = try GroupRig(#"clients: { banner: "on {route}, {client}\n" }"#)
    let banner = "on x, 127.0.0.1:51234\r\n"
    let client = ScriptedStream(writes: [.moved(3), .blocked(until: .writable)])
    let session = try #require(rig.take(client, preface: [1, 2]))
    let endpoint = ScriptedStream(reads: [.moved(10)])
    rig.open(endpoint)
    rig.wake(endpoint, .hasBytesAvailable)
    #expect(client.written.count == 3 && client.writerWaits == .writable && session.down == 0)
    client.willWrite(.moved(5), .blocked(until: .writable), .moved(100), .moved(4), .moved(100))
    rig.wake(client, .hasSpaceAvailable)
    #expect(client.written.count == 8 && client.writerWaits == .writable)
    rig.wake(client, .hasSpaceAvailable)
    #expect(client.written == [1, 2] + Array(banner.utf8) + pattern(0..<10))
    #expect(session.down == 10 && client.writerWaits == [])  // the banner is not the endpoint's
  }

  @Test("is finished before the client's end, whoever ends him")
  func beforeTheEnd() throws {
    let rig = try GroupRig("clients: { banner: hello }")
    let client = ScriptedStream(writes: [.moved(1), .blocked(until: .writable)])
    rig.take(client)
    rig.group.end(1, Ending(.kicked))
    #expect(rig.words == [.kicked] && !client.finishedWriting && !client.isClosed)
    client.willWrite(.moved(10))
    rig.wake(client, .hasSpaceAvailable)
    #expect(client.written == Array("hello".utf8) && client.finishedWriting)
  }

  @Test("that can't be written ends nothing by itself, and the session learns why")
  func broken() throws {
    let rig = try GroupRig("clients: { banner: hello }")
    let client = ScriptedStream(
      reads: [.failed(SystemError("read", 104))], writes: [.failed(SystemError("write", 104))])
    rig.take(client)
    #expect(rig.words.isEmpty)
    rig.wake(client, .hasBytesAvailable)
    #expect(rig.words == [.clientLost])
  }
}

@Suite("An idle client", .timeLimit(.minutes(1)))
struct IdleClientTests {
  @Test("ends when no byte went either way for so long, and not before")
  func ends() throws {
    let rig = try GroupRig("clients: { idle-timeout: 8s }")
    let client = ScriptedStream(takesAll: true)
    rig.take(client)
    rig.open(ScriptedStream(takesAll: true))
    rig.pass(.milliseconds(7900))
    #expect(rig.words.isEmpty)
    rig.pass(.milliseconds(200))
    #expect(rig.words == [.idle] && client.finishedWriting)
  }

  @Test("is not idle while bytes go either way", arguments: ["up", "down", "kept"])
  func stays(way: String) throws {
    let rig = try GroupRig("clients: { idle-timeout: 8s }")
    let (client, endpoint) = (ScriptedStream(takesAll: true), ScriptedStream(takesAll: way != "kept"))
    rig.take(client)
    rig.open(endpoint)
    for _ in 0..<10 {
      rig.pass(.seconds(5))
      let speaker = way == "down" ? endpoint : client
      speaker.willRead(.moved(1))
      rig.wake(speaker, .hasBytesAvailable)
    }
    #expect(rig.words.isEmpty)
    rig.pass(.milliseconds(7900))
    #expect(rig.words.isEmpty)
    rig.pass(.milliseconds(2200))  // a quarter later at most
    #expect(rig.words == [.idle] && rig.story.reports[0].dropped == (way == "kept" ? 10 : 0))
  }

  @Test("who is on his way out ends with the word he was sent away with")
  func leaving() throws {
    let rig = try GroupRig("clients: { idle-timeout: 8s, slow: block }")
    rig.take(ScriptedStream())
    let endpoint = ScriptedStream(reads: [.moved(10)])
    rig.open(endpoint)
    rig.wake(endpoint, .hasBytesAvailable)
    rig.group.stop(Ending(.routeRemoved)) {}
    rig.pass(.seconds(31))
    #expect(rig.words == [.routeRemoved])
  }

  @Test("follows a new limit at once, and none when it is taken away")
  func reload() throws {
    let rig = try GroupRig("clients: { idle-timeout: 8s }")
    for number in 1...2 as ClosedRange<UInt64> { rig.take(ScriptedStream(takesAll: true), number) }
    let settings = { RouteSettings(try routeConfig($0, endpoint: "sim://echo"), connector: rig.connector) }
    rig.group.update(try settings(""))
    rig.pass(.seconds(100))
    #expect(rig.words.isEmpty)
    rig.group.update(try settings("clients: { idle-timeout: 2s }"))
    rig.pass(.milliseconds(2100))
    #expect(rig.words == [.idle, .idle])
  }
}
