// How a link that nobody needs any more is left: lingering, last words, and what the port has not sent yet.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A link that nobody needs any more", .timeLimit(.minutes(1)))
struct LinkPartingTests {
  private func leave(_ rig: LinkRig, _ client: ScriptedStream) {
    rig.tell(client, .errorOccurred(SystemError("read", ECONNRESET)))
  }

  /// A link whose only client has left.
  private func left(
    _ endpoint: ScriptedStream, _ change: (inout Config.Device) -> Void
  ) throws -> LinkRig {
    let rig = try LinkRig(change)
    let client = ScriptedStream()
    rig.join(client)
    rig.openings[0].succeed(endpoint)
    leave(rig, client)
    return rig
  }

  @Test("stays open for as long as it lingers, and then closes")
  func lingers() throws {
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.canHalfClose = false
    let rig = try left(endpoint) { $0.linger = .seconds(7) }
    rig.pass(.milliseconds(6_999))
    #expect(rig.link.status == .open && !endpoint.isClosed)
    rig.pass(.milliseconds(1))
    #expect(rig.link.status == .closed && endpoint.isClosed)
  }

  @Test("is found open by a newcomer while it lingers, who then has it for as long as he wants")
  func newcomer() throws {
    let endpoint = ScriptedStream(takesAll: true)
    let rig = try left(endpoint) { $0.linger = .seconds(7) }
    rig.pass(.seconds(5))
    let newcomer = ScriptedStream(reads: [.bytes([1])], takesAll: true)
    rig.join(newcomer)
    rig.wakeReader(newcomer)
    #expect(endpoint.written == [1] && rig.openings.count == 1)
    rig.pass(.seconds(60))
    #expect(rig.link.status == .open)
    leave(rig, newcomer)
    rig.pass(.seconds(6))
    #expect(rig.link.status == .open, "the time begins anew")
    rig.pass(.seconds(1))
    #expect(rig.link.status == .closed)
  }

  @Test("that lingers and is lost is not awaited")
  func lostWhileLingering() throws {
    let endpoint = ScriptedStream(reads: [.ended])
    let rig = try left(endpoint) { $0.linger = .seconds(7) }
    rig.wakeReader(endpoint)
    #expect(rig.words == ["opening", "open", "waiting", "closed"])
    rig.pass(.seconds(60))
    #expect(rig.openings.count == 1)
  }

  @Test("does not linger when its route stops")
  func stopped() throws {
    let endpoint = ScriptedStream(takesAll: true)
    let rig = try left(endpoint) { $0.linger = .seconds(7) }
    rig.link.stop(Ending(.shutdown))
    #expect(rig.link.status == .closed && endpoint.finishedWriting)
  }

  @Test("says its last words behind everything that clients have sent, and closes when they are out")
  func lastWords() throws {
    let rig = try LinkRig { $0.onClose = [7, 8, 9] }
    let client = ScriptedStream(reads: [.bytes([1, 2, 3]), .failed(SystemError("read", ECONNRESET))])
    client.holdsBytes = true
    let session = rig.join(client)
    let endpoint = ScriptedStream(writes: [.moved(1), .blocked(until: .writable)])
    endpoint.canHalfClose = false
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(client)
    #expect(endpoint.written == [1] && rig.link.status == .open)
    endpoint.willWrite(.moved(2), .moved(1), .blocked(until: .writable))
    rig.wakeWriter(endpoint)
    #expect(rig.ending(of: session) == .clientLost && session.up == 3 && session.dropped == 0)
    #expect(endpoint.written == [1, 2, 3, 7] && rig.link.status == .draining && !endpoint.isClosed)
    endpoint.willWrite(.moved(2))
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == [1, 2, 3, 7, 8, 9] && endpoint.isClosed)
    #expect(rig.words == ["opening", "open", "draining", "closed"] && rig.dropped == 0)
  }

  @Test("says them when its route stops too", arguments: [true, false])
  func lastWordsAtStop(staysOpen: Bool) throws {
    let rig = try LinkRig { device in
      device.onClose = [7]
      if staysOpen { device.open = .always }
    }
    if staysOpen { rig.link.start() } else { rig.join(ScriptedStream(takesAll: true)) }
    let endpoint = ScriptedStream(takesAll: true)
    rig.openings[0].succeed(endpoint)
    rig.link.stop(Ending(.routeRemoved))
    rig.pass(.milliseconds(20))  // a client may have sent more than came yet
    #expect(endpoint.written == [7] && rig.link.status == .closed)
  }

  @Test("waits for an endpoint that does not listen only while that makes progress, and still reads what it says")
  func deaf() throws {
    let endpoint = ScriptedStream(reads: [.moved(1000), .ended], writes: [.blocked(until: .writable)])
    endpoint.canHalfClose = false
    let rig = try left(endpoint) { $0.onClose = [7, 8, 9] }
    for _ in 0..<2 {
      rig.pass(.milliseconds(4_999))
      endpoint.willWrite(.moved(1), .blocked(until: .writable))
      rig.wakeWriter(endpoint)
      #expect(rig.link.status == .draining)
    }
    rig.wakeReader(endpoint)
    #expect(endpoint.readCalls > 0)
    rig.pass(.milliseconds(5_000))
    #expect(rig.link.status == .closed && endpoint.isClosed && endpoint.written == [7, 8])
  }

  @Test("is opened behind its last words for those who come meanwhile")
  func opensAgain() throws {
    let endpoint = ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true)
    endpoint.canHalfClose = false
    let rig = try left(endpoint) { $0.onClose = [7] }
    let newcomer = ScriptedStream(reads: [.bytes([1])])
    rig.join(newcomer)
    rig.wakeReader(newcomer)
    #expect(rig.openings.count == 1 && rig.link.status == .draining)
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == [7] && endpoint.isClosed && rig.openings.count == 2)
    let next = ScriptedStream(takesAll: true)
    rig.openings[1].succeed(next)
    #expect(next.written == [1] && rig.words == ["opening", "open", "draining", "opening", "open"])
  }

  @Test("is cut off when its route has no more time, after what can go at once")
  func cutOff() throws {
    let endpoint = ScriptedStream(writes: [.blocked(until: .writable), .moved(1)])
    endpoint.canHalfClose = false
    let rig = try left(endpoint) { $0.onClose = [7, 8] }
    rig.link.stop(Ending(.shutdown))
    #expect(rig.link.status == .draining)
    rig.link.cutOff(Ending(.shutdown))
    #expect(rig.link.status == .closed && endpoint.isClosed && endpoint.written == [7])
  }

  @Test("closes at once when the endpoint breaks under its last words")
  func breaks() throws {
    let endpoint = ScriptedStream(writes: [.failed(SystemError("write", EIO))])
    let rig = try left(endpoint) { $0.onClose = [7] }
    #expect(rig.link.status == .closed)
    rig.join(ScriptedStream())
    #expect(rig.openings.count == 2)
  }

  @Test("waits for what the port has not sent yet, as long as that becomes less")
  func unsent() throws {
    let line = ScriptedLine(unsent: [900, 900, 600, 300, 0])
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.canHalfClose = false
    endpoint.serialLine = line
    let rig = try left(endpoint) { device in
      device.onClose = [7]
      device.drain = .milliseconds(50)
    }
    line.answer()  // what was asked of the line before is done
    #expect(endpoint.written == [7] && rig.link.status == .draining)
    for _ in 0..<3 {
      line.answer()
      rig.pass(.milliseconds(40))
    }
    #expect(rig.link.status == .draining && rig.dropped == 0)
    line.answer()
    #expect(rig.link.status == .closed && endpoint.isClosed && line.purges.isEmpty && rig.dropped == 0)
  }

  @Test(
    "says its last words at the line's own settings, whatever its last client had set or is about to",
    arguments: 0...2)
  func lastWordsAtOwnSettings(answers: Int) throws {
    let rig = try LinkRig { $0.onClose = [7] }
    let client = DeskStream()
    rig.join(client, desk: Desk(client))
    let line = ScriptedLine()
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.canHalfClose = false
    endpoint.serialLine = line
    rig.openings[0].succeed(endpoint)
    client.add([.text(#"{"request":"line","baud":115200}"#)])
    rig.wakeReader(client)
    for _ in 0..<answers { line.answer() }
    rig.tell(client, .errorOccurred(SystemError("read", ECONNRESET)))
    for _ in 0..<2 { line.answer() }
    #expect(endpoint.written == [] && rig.link.status == .draining)
    line.answer()
    #expect(endpoint.written == [7] && line.settings == LineSettings() && line.applied.last == LineSettings())
    line.answer()
    #expect(rig.link.status == .closed && endpoint.isClosed && line.asked == 0)
  }

  @Test("does not wait for ever for a port that can't send what was to go at other settings")
  func stuckAtOtherSettings() throws {
    let line = ScriptedLine(unsent: [0] + Array(repeating: 300, count: 1000))
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.canHalfClose = false
    endpoint.serialLine = line
    let rig = try LinkRig { device in
      device.onClose = [7]
      device.drain = .milliseconds(50)
    }
    let client = DeskStream()
    rig.join(client, desk: Desk(client))
    rig.openings[0].succeed(endpoint)
    client.add([.text(#"{"request":"line","baud":115200}"#)])
    rig.wakeReader(client)
    for _ in 0..<2 { line.answer() }
    rig.tell(client, .errorOccurred(SystemError("read", ECONNRESET)))
    for _ in 0..<200 where rig.link.status == .draining {
      while line.asked > 0 { line.answer() }
      rig.pass(.milliseconds(10))
    }
    #expect(endpoint.written == [7] && line.settings == LineSettings())
    #expect(rig.link.status == .closed && line.purges == [.output] && rig.dropped == 300)
  }

  @Test("throws away what the port does not get rid of, and counts it")
  func stuck() throws {
    let line = ScriptedLine(unsent: [300, 300])
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.canHalfClose = false
    endpoint.serialLine = line
    let rig = try left(endpoint) { $0.drain = .milliseconds(50) }
    line.answer()
    line.answer()
    rig.pass(.milliseconds(50))
    #expect(rig.link.status == .closed && line.purges == [.output] && rig.dropped == 300)
    line.answer()  // comes too late to matter
    #expect(rig.words == ["opening", "open", "draining", "closed"])
  }
}
