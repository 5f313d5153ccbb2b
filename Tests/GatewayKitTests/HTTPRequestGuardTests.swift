// Web pages can send HTTP requests to ports where a device executes what it reads. These requests are refused; all
// other bytes are forwarded.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A client's first bytes", .timeLimit(.minutes(5)))
struct HTTPRequestGuardTests {
  /// A client of a hub with a request guard, and its endpoint.
  private struct Story {
    let rig: HubRig
    let device = ScriptedStream(takesAll: true)
    let client: ScriptedStream
    let session: Session

    init(
      _ reads: [ScriptedStream.Step], role: Config.Listen.Role = .writer, buffer: Int = 65_536,
      takesAll: Bool = true, writers: Config.Clients.Writers = .all
    ) throws {
      rig = try HubRig(buffer: buffer, writers: writers)
      client = ScriptedStream(reads: reads, takesAll: takesAll)
      rig.hub.attach(device)
      session = rig.join(HTTPRequestGuard(client, on: rig.poller), role: role)
    }

    /// Reads the client's bytes, piece by piece.
    func read(_ times: Int = 1) {
      for _ in 0..<times {
        rig.wakeReader(session.client)
        rig.poller.runAgain()
      }
    }

    var refused: Bool { rig.ending(of: session) == .denied }
    var answer: String { String(decoding: client.written, as: UTF8.self) }
    /// No guard is between the client and its session any more.
    var isBare: Bool { session.client === client && session.pump.source === client && client.delegate === session }
  }

  private static func bytes(_ text: String) -> [UInt8] { Array(text.utf8) }
  private static let methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"]
  private static let rest = " HTTP/1.1\r\nHost: 10.0.0.7:4001\r\nContent-Length: 8\r\n\r\nreboot\r\n"

  @Test(
    "that are a request get a 400, and none of them reach the device", arguments: methods,
    ["/", "*", "/a?b=c", "http://x/"])
  func request(method: String, target: String) throws {
    let story = try Story([.bytes(Self.bytes("\(method) \(target)\(Self.rest)"))])
    story.read()
    #expect(story.refused && story.device.written.isEmpty)
    #expect(story.answer.hasPrefix("HTTP/1.1 400 Bad Request\r\n"))
    #expect(story.answer.contains("clients.refuse-http") == (method != "HEAD"))
    #expect(story.answer.hasSuffix("\r\n\r\n") == (method == "HEAD"))
    #expect(story.session.dropped == UInt64(method.utf8.count + target.utf8.count + Self.rest.utf8.count + 1))
  }

  @Test(
    "that are a request in two pieces are refused, if the cut is after the first letter of the target",
    arguments: methods)
  func split(method: String) throws {
    let text = Self.bytes("\(method) /upload HTTP/1.0\r\n\r\nreboot\r\n")
    for cut in 1..<text.count {
      let story = try Story([.bytes(Array(text[..<cut])), .bytes(Array(text[cut...]))])
      story.read(2)
      let isHeld = cut >= method.utf8.count + 2
      #expect(story.refused == isHeld, "cut at \(cut)")
      #expect(story.device.written == (isHeld ? [] : text), "cut at \(cut)")
      #expect(isHeld || story.isBare)
    }
  }

  @Test("that arrive one by one after the first letter of the target are checked the same way")
  func dribble() throws {
    let first = Self.bytes("GET /")
    let others = Self.bytes("x HTTP/1.1\r").flatMap { [ScriptedStream.Step.blocked(until: .readable), .bytes([$0])] }
    let story = try Story([.bytes(first)] + others)
    story.read(others.count / 2)
    #expect(!story.refused && story.device.written.isEmpty)
    story.read()
    #expect(story.refused)
  }

  @Test(
    "that are no request are forwarded at once, and the guard is removed",
    arguments: [
      "G", "GET", "GET ", "GET x HTTP/1.1\r\n", "get / HTTP/1.1\r\n", "GET  / HTTP/1.1\r\n", "AT\r\n", "GET htt",
      "GETS / HTTP/1.1\r\n",
      "GET /\r\n", "GET / \n", "GET / HTTP/2.0\r\n", "GET / HTTP/1.\r\n", "GET / HTTP/1.1 \r\n", "GET /\rHTTP/1.1\r\n",
      "\r\nGET / HTTP/1.1\r\n",
      "PUT /dev/x\nGET / HTTP/1.1\n", "\u{0}", "POST /\n",
    ])
  func harmless(text: String) throws {
    let story = try Story([.bytes(Self.bytes(text)), .bytes([1, 2])])
    story.read()
    #expect(story.device.written == Self.bytes(text) && !story.refused && story.isBare)
    story.read()
    #expect(story.device.written == Self.bytes(text) + [1, 2])
  }

  @Test("are checked only once: a later request is forwarded")
  func later() throws {
    let story = try Story([.bytes([0x0A]), .bytes(Self.bytes("GET / HTTP/1.1\r\n"))])
    story.read(2)
    #expect(story.device.written == [0x0A] + Self.bytes("GET / HTTP/1.1\r\n"))
  }

  @Test("that may become a request are kept for a second, and then forwarded")
  func silence() throws {
    let story = try Story([.bytes(Self.bytes("GET /")), .blocked(until: .readable), .bytes([0x21])])
    story.read()
    #expect(story.device.written.isEmpty)
    story.rig.advance(by: .milliseconds(990))
    #expect(story.device.written.isEmpty)
    story.rig.advance(by: .milliseconds(20))
    #expect(story.device.written == Self.bytes("GET /") && story.isBare)
    story.read()
    #expect(story.device.written == Self.bytes("GET /!"))
  }

  @Test(
    "are kept up to 16 KiB, and refused as a request beyond that", arguments: [16_383, 16_384, 16_385], [1000, 65_536])
  func length(count: Int, piece: Int) throws {
    // The line, without its end.
    let line = Self.bytes("GET /" + String(repeating: "x", count: count - 5))
    let steps = stride(from: 0, to: line.count, by: piece).map {
      ScriptedStream.Step.bytes(Array(line[$0..<min($0 + piece, line.count)]))
    }
    let story = try Story(steps + [.blocked(until: .readable), .bytes([0x0A])])
    story.read()
    #expect(story.refused == (count > 16_384))
    if count < 16_384 {
      story.read(2)
      #expect(story.device.written == line + [0x0A])
    }
  }

  @Test("that may become a request are forwarded before the client's end", arguments: [true, false])
  func end(isReset: Bool) throws {
    let last: ScriptedStream.Step = isReset ? .failed(SystemError("read", ECONNRESET)) : .ended
    let text = Self.bytes("GET / HTTP/1.1")
    let story = try Story([.bytes(text), .blocked(until: .readable), last, last])
    story.read(3)
    #expect(story.device.written == text && story.session.pump.sourceEnded)
    if isReset { #expect(story.rig.ending(of: story.session) == .clientLost) }
  }

  @Test("that may become a request are not lost when an event reports the end", arguments: [true, false])
  func reported(isReset: Bool) throws {
    let text = Self.bytes("GET / HTTP/1.1")
    let story = try Story([.bytes(text), .blocked(until: .readable)])
    story.read()
    story.rig.report(story.client, isReset ? .errorOccurred(SystemError("poll", ECONNRESET)) : .endEncountered)
    #expect(story.device.written == text && story.session.pump.sourceEnded)
  }

  @Test("of a monitor are checked as well, and dropped", arguments: [true, false])
  func monitor(isRequest: Bool) throws {
    let text = Self.bytes("GET / HTTP/1.1")
    let story = try Story([.bytes(text), .bytes(isRequest ? [0x0D, 0x0A] : [0x21, 0x0A])], role: .monitor)
    story.read(2)
    #expect(story.refused == isRequest && story.device.written.isEmpty)
    #expect(story.session.dropped == UInt64(text.count + 2))
  }

  @Test(
    "are delivered when the client's session ends in order, and counted as dropped when it is cut off",
    arguments: [true, false])
  func leaves(inOrder: Bool) throws {
    let text = Self.bytes("GET / HT")
    let story = try Story([.bytes(text), .blocked(until: .readable), .blocked(until: .readable)])
    story.read()
    if inOrder {
      story.rig.hub.leave(story.session, Ending(.shutdown))
    } else {
      story.rig.hub.end(story.session, Ending(.kicked))
    }
    story.rig.advance(by: .milliseconds(100))
    #expect(story.rig.ending(of: story.session) == (inOrder ? .shutdown : .kicked))
    #expect(story.device.written == (inOrder ? text : []))
    #expect(story.session.dropped == (inOrder ? 0 : UInt64(text.count)))
  }

  @Test("are delivered when they are read only after the session began to end")
  func leavesUnread() throws {
    let text = Self.bytes("GET / HT")
    let story = try Story([.bytes(text)])
    story.rig.hub.leave(story.session, Ending(.shutdown))
    story.rig.advance(by: .milliseconds(100))
    #expect(story.rig.ending(of: story.session) == .shutdown)
    #expect(story.device.written == text && story.session.dropped == 0)
  }

  @Test("are dropped at the end of the session, and the guard is removed")
  func forgotten() throws {
    let story = try Story([.bytes(Self.bytes("GET /"))])
    story.read()
    story.session.requestGuard?.forget()
    #expect(story.isBare && story.device.written.isEmpty)
    story.rig.advance(by: .seconds(2))
    #expect(story.device.written.isEmpty)
  }

  @Test("count as activity from the moment they are read")
  func activity() throws {
    let story = try Story([.bytes(Self.bytes("GET /"))])
    story.read()
    #expect(story.device.written.isEmpty && story.session.activity == 5)
    story.rig.advance(by: .seconds(1))
    #expect(story.device.written.count == 5 && story.session.activity == 5)
  }

  @Test("are delivered, and the session ends, when the client closes before they fit into the ring")
  func gone() throws {
    let text = Self.bytes("GET / and more than the ring holds")
    let story = try Story([.bytes(text), .ended], buffer: 16)
    story.rig.hub.detach()?.close()
    story.read()
    story.rig.report(story.client, .endEncountered)
    let device = ScriptedStream(takesAll: true)
    story.rig.hub.attach(device)
    story.read(5)
    story.rig.advance(by: .milliseconds(10))
    #expect(device.written == text)
    #expect(story.rig.ending(of: story.session) == .clientLeft)
  }

  @Test(
    "are dropped after 'device.drain' when the client has closed and the device takes nothing", arguments: [16, 34])
  func stuck(buffer: Int) throws {
    let text = Self.bytes("GET / and as much as the ring holds")[..<34]
    let story = try Story([.bytes(Array(text)), .ended], buffer: buffer)
    story.rig.hub.detach()?.close()
    story.read()
    story.rig.advance(by: .seconds(4))
    #expect(story.rig.ending(of: story.session) == nil)
    story.rig.advance(by: .seconds(2))
    #expect(story.rig.ending(of: story.session) == .clientLeft)
    #expect(story.session.dropped == 34)
  }

  @Test("reach a device that reopens only later, whatever the size of the ring", arguments: [16, 100, 65_536])
  func absent(buffer: Int) throws {
    let text = Self.bytes("POST /dev/null HTTP/9.9 and more that does not fit into a small ring\r\n")
    let story = try Story([.bytes(Array(text[..<12])), .bytes(Array(text[12...]))], buffer: buffer)
    let device = ScriptedStream(takesAll: true)
    story.rig.hub.detach()?.close()
    story.read(3)
    story.rig.hub.attach(device)
    story.read(20)
    #expect(device.written == text)
  }

  @Test("may wait while the reply before the refusal is sent in pieces")
  func slowAnswer() throws {
    let story = try Story([.bytes(Self.bytes("GET / HTTP/1.1\r\n"))], takesAll: false)
    story.read()
    #expect(story.refused && story.answer.isEmpty)  // `ClosingStreams` writes the answer after the session
  }
}

@Suite("HTTP at a raw listener", .timeLimit(.minutes(5)))
struct HTTPRefusalTests {
  private static let request = Array("POST /x HTTP/1.1\r\nHost: 10.0.0.7\r\n\r\nreboot\r\n".utf8)

  @Test("gets a 400 and ends as denied; 'clients.refuse-http: no' forwards it", arguments: [true, false])
  func tcp(isRefused: Bool) async throws {
    let config = try routeConfig(isRefused ? "" : "clients: { refuse-http: no }", endpoint: "sim://echo")
    try await withRoute(config) { story, _ in
      let client = try connectTCP(story.address())
      try client.send(Self.request)
      if isRefused {
        #expect(try client.receiveToEnd().starts(with: Array("HTTP/1.1 400 ".utf8)))
        let ending = try story.reports(atLeast: 1)[0].ending
        #expect(ending.word == .denied && ending.cause is HTTPRequestFault)
      } else {
        #expect(try client.receive(exactly: Self.request.count) == Self.request)
      }
      client.close()
    }
  }

  @Test("inside TLS gets its answer there")
  func tls() async throws {
    let rig = try HandshakeRig()
    try await withRoute(rig.config("tls://127.0.0.1:0")) { story, _ in
      let client = try rig.connectTLS(story.address(), rig.manner())
      try client.send(Self.request)
      #expect(try client.receive(upTo: 1000).starts(with: Array("HTTP/1.1 400 ".utf8)))
      #expect(try story.reports(atLeast: 1)[0].ending.word == .denied)
      client.close()
    }
  }

  @Test("after a proxy's header gets an answer")
  func proxied() async throws {
    let config = try routeConfig(listen: "tcp://127.0.0.1:0?proxy-protocol=required", endpoint: "sim://echo")
    let rules = HandshakeServer.Rules(proxies: [try #require(AddressBlock("127.0.0.1"))])
    try await withRoute(config, rules: rules) { story, _ in
      let client = try connectTCP(story.address())
      try client.send(Array("PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n".utf8) + Self.request)
      #expect(try client.receiveToEnd().starts(with: Array("HTTP/1.1 400 ".utf8)))
      client.close()
    }
  }

  @Test("of a client that waited in the queue gets its answer when the client gets a place")
  func queued() async throws {
    let config = try routeConfig("clients: { max: 1, when-full: queue, notices: off }", endpoint: "sim://echo")
    try await withRoute(config) { story, route in
      let first = try connectTCP(story.address())
      _ = try story.sessions(atLeast: 1)
      let second = try connectTCP(story.address())
      try second.send(Self.request)
      first.close()
      #expect(try second.receiveToEnd().starts(with: Array("HTTP/1.1 400 ".utf8)))
      second.close()
    }
  }

  @Test("is forwarded to a per-client endpoint, and on a unix socket")
  func others() async throws {
    let folder = try TemporaryFolder()
    let perClient = try routeConfig("link: per-client", endpoint: "exec:/bin/cat")
    let local = try routeConfig(listen: "unix://\(folder / "x.sock")", endpoint: "sim://echo")
    try await withRoute(perClient) { story, _ in
      let client = try connectTCP(story.address())
      try client.send(Self.request)
      #expect(try client.receive(exactly: Self.request.count) == Self.request)
      client.close()
    }
    try await withRoute(local) { story, _ in
      _ = try story.bound()
      let client = try connectUnix(folder / "x.sock")
      try client.send(Self.request)
      #expect(try client.receive(exactly: Self.request.count) == Self.request)
      client.close()
    }
  }

  @Test("that is held back is forwarded when a reload turns the refusal off", .timed)
  func reloaded() async throws {
    let config = try routeConfig(endpoint: "sim://echo")
    let open = try routeConfig("clients: { refuse-http: no }", endpoint: "sim://echo")
    let connector = try Gateway.broker.connector(open.endpoint)
    try await withRoute(config) { story, route in
      let client = try connectTCP(story.address())
      _ = try story.sessions(atLeast: 1)
      try client.send(Array("GET /".utf8))
      let limit = monotonicNanoseconds() + 900_000_000  // then it would be forwarded anyway
      while try ask(route, { $0.group.sessions.first?.requestGuard?.kept }) != 5, monotonicNanoseconds() < limit {}
      let isScreened = try ask(route) { route in
        route.update(open, connector: connector)
        return route.group.sessions.first?.requestGuard != nil
      }
      #expect(!isScreened)
      #expect(try client.receive(exactly: 5) == Array("GET /".utf8))
      try client.send(Self.request)
      #expect(try client.receive(exactly: Self.request.count) == Self.request)
      client.close()
    }
  }
}
