// Sessions of one lane on a manual clock: the banner, idle clients, and what happens to client and link at the end.

import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

/// A group whose endpoint the test opens, in the test's own thread.
final class GroupRig {
  let clock = ManualClock()
  let poller: Poller
  let story = Story()
  let connector = ScriptedConnector()
  let group: SessionGroup
  private var streams: [any ByteStream] = []

  init(_ text: String) throws {
    poller = try Poller(clock: clock.clock) { _ in }
    let settings = RouteSettings(try routeConfig(text, endpoint: "sim://echo"), connector: connector)
    group = SessionGroup(settings, on: poller, status: story.sink) { _, _ in }
  }

  // An open stream and its session keep each other alive, as intended; closing the streams breaks the cycle.
  deinit { for stream in streams { stream.close() } }

  @discardableResult
  func take(_ client: ScriptedStream, _ number: UInt64 = 1, preface: [UInt8] = []) -> Session? {
    streams.append(client)
    let address = SocketAddress(numeric: "127.0.0.1", port: 51234)
    group.take(
      client, AcceptedConnection.Label(address: address, listener: "tcp://127.0.0.1:1"), preface: preface, number)
    return group.sessions.first { $0.number == number }
  }

  /// Opens the endpoint.
  func open(_ endpoint: ScriptedStream) {
    streams.append(endpoint)
    connector.openings[connector.openings.count - 1].succeed(endpoint)
  }

  func wake(_ stream: ScriptedStream, _ event: ByteStreamEvent) { stream.delegate?.stream(stream, handle: event) }

  /// Advances the clock in steps, as the lane would see it.
  func pass(_ time: Duration) {
    let step = Duration.milliseconds(10)
    for _ in 0..<Int(time / step) {
      clock.advance(by: step)
      poller.timers.fireDue()
    }
  }

  var words: [Ending.Word] { story.reports.map(\.ending.word) }
}

@Suite("A banner", .timeLimit(.minutes(5)))
struct BannerTests {
  @Test("has its placeholders replaced once, and CRLF line ends")
  func text() {
    let label = AcceptedConnection.Label(address: SocketAddress(numeric: "::1", port: 7), listener: "tcp://[::1]:1")
    let banner = Banner("{route}: {endpoint}\n{client}\r\nα{a {b}\r{", route: "{client}", endpoint: "{route}")
    #expect(String(decoding: banner.bytes(for: label), as: UTF8.self) == "{client}: {route}\r\n[::1]:7\r\nα{a {b}\r\n{")
    let local = AcceptedConnection.Label(address: nil, listener: "unix:///x")
    #expect(Banner("{client}", route: "", endpoint: "").bytes(for: local) == Array("a local client".utf8))
  }

  @Test("has the escapes of device.on-open, with any YAML quotes")
  func escapes() {
    let local = AcceptedConnection.Label(address: nil, listener: "unix:///x")
    for text in ["AT\r\n{route}\u{1B}\\x7Broute}", #"AT\r\n{route}\x1B\x7Broute}"#, "AT\n{route}\u{1B}\\x7broute}"] {
      #expect(Banner(text, route: #"a\n"#, endpoint: "").bytes(for: local) == Array("AT\r\na\\n\u{1B}{route}".utf8))
    }
  }

  @Test("comes before all other output, also when the client takes it a few bytes at a time")
  func first() throws {
    let rig = try GroupRig(#"clients: { banner: "on {route}, {client}\n" }"#)
    let banner = "on x, 127.0.0.1:51234\r\n"
    let client = ScriptedStream(writes: [.moved(3), .blocked(until: .writable)])
    let session = try #require(rig.take(client, preface: [1, 2]))
    let endpoint = ScriptedStream(reads: [.moved(10)])
    rig.open(endpoint)
    rig.wake(endpoint, .hasBytesAvailable)
    #expect(client.written.count == 3 && client.writerWaits == .writable && session.down.bytes == 0)
    client.willWrite(.moved(5), .blocked(until: .writable), .moved(100), .moved(4), .moved(100))
    rig.wake(client, .hasSpaceAvailable)
    #expect(client.written.count == 8 && client.writerWaits == .writable)
    rig.wake(client, .hasSpaceAvailable)
    #expect(client.written == [1, 2] + Array(banner.utf8) + pattern(0..<10))
    #expect(session.down.bytes == 10 && client.writerWaits == [])  // the banner does not count as the endpoint's output
  }

  @Test("is finished before the client's end, whichever side ends the session")
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

  @Test("that can't be written does not end the session; the session reads the reason later")
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

@Suite("An idle client", .timeLimit(.minutes(5)))
struct IdleClientTests {
  @Test("ends when no byte moved in either direction for the limit, and not before")
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

  @Test("is not idle while bytes move in either direction", arguments: ["up", "down", "kept"])
  func stays(way: String) throws {
    let rig = try GroupRig("clients: { idle-timeout: 8s }")
    let (client, endpoint) = (ScriptedStream(takesAll: true), ScriptedStream(takesAll: way != "kept"))
    rig.take(client)
    rig.open(endpoint)
    for _ in 0..<10 {
      rig.pass(.seconds(5))
      let packetOwner = way == "down" ? endpoint : client
      packetOwner.willRead(.moved(1))
      rig.wake(packetOwner, .hasBytesAvailable)
    }
    #expect(rig.words.isEmpty)
    rig.pass(.milliseconds(7900))
    #expect(rig.words.isEmpty)
    rig.pass(.milliseconds(2200))  // a quarter later at most
    #expect(rig.words == [.idle] && rig.story.reports[0].dropped == (way == "kept" ? 10 : 0))
  }

  @Test("that is already being ended keeps the word of that ending")
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

  @Test("follows a new limit at once, and stays when the limit is removed")
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

@Suite("A link of one client", .timeLimit(.minutes(5)))
struct ClientLinkTests {
  @Test("sends its endpoint the last bytes after its client left, and its route's stop waits for that or cuts it off")
  func drains() throws {
    for isCutOff in [false, true] {
      let rig = try GroupRig("link: per-client")
      let client = ScriptedStream(takesAll: true)
      rig.take(client)
      let line = ScriptedLine(unsent: [300])
      let endpoint = ScriptedStream(takesAll: true)
      endpoint.closeBehavior.canHalfClose = false
      endpoint.serialLine = line
      rig.open(endpoint)
      rig.wake(client, .errorOccurred(SystemError("read", 104)))
      #expect(rig.words == [.clientLost] && rig.group.links[1]?.status == .draining)
      var hasStopped = false
      rig.group.stop(Ending(.shutdown)) { hasStopped = true }
      line.answer()  // the earlier request to the line is done
      line.answer()
      #expect(!hasStopped && !endpoint.isClosed)
      if isCutOff {
        rig.group.cutOff(Ending(.shutdown))
      } else {
        rig.pass(.milliseconds(40))
        line.answer()
      }
      #expect(endpoint.isAborted, "its input was cut short")
      #expect(hasStopped && rig.group.links.isEmpty && rig.group.totals.dropped == (isCutOff ? 300 : 0))
    }
  }
}

@Suite("A client whose last input the device does not take", .timeLimit(.minutes(5)))
struct UnreadInputTests {
  @Test("is closed in order: the unread input is read first, since it would cause a reset")
  func givenUp() throws {
    let rig = try GroupRig("clients: { buffer: 4KiB, refuse-http: no }")
    let client = ScriptedStream(reads: [.moved(10_000), .ended])
    rig.take(client)
    rig.open(ScriptedStream())
    rig.wake(client, .hasBytesAvailable)
    rig.wake(client, .inputEnded)
    for _ in 0..<200 where rig.words.isEmpty { rig.pass(.milliseconds(100)) }
    #expect(rig.words == [.clientLeft] && rig.story.reports[0].dropped > 0)
    #expect(client.finishedWriting && !client.isClosed)
    for _ in 0..<2 { rig.wake(client, .hasBytesAvailable) }
    #expect(client.isClosed)
  }
}
