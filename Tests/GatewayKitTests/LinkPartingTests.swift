// How a link closes that no client needs: lingering, 'on-close' bytes, and bytes that the port has not sent yet.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A link that no client needs", .timeLimit(.minutes(5)))
struct LinkPartingTests {
  private func leave(_ rig: LinkRig, _ client: ScriptedStream) {
    rig.report(client, .errorOccurred(SystemError("read", ECONNRESET)))
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

  @Test("stays open while it lingers, and then closes")
  func lingers() throws {
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.closeBehavior.canHalfClose = false
    let rig = try left(endpoint) { $0.linger = .seconds(7) }
    rig.pass(.milliseconds(6_999))
    #expect(rig.link.status == .open && !endpoint.isClosed)
    rig.pass(.milliseconds(1))
    #expect(rig.link.status == .closed && endpoint.isClosed)
  }

  @Test("that lingers is open for a new client, which may keep it as long as it wants")
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

  @Test("that is lost while it lingers is not retried")
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

  @Test("sends its 'on-close' bytes after all clients' input, and closes when they are sent")
  func endpointDrain() throws {
    let rig = try LinkRig { $0.onClose = [7, 8, 9] }
    let client = ScriptedStream(reads: [.bytes([1, 2, 3]), .failed(SystemError("read", ECONNRESET))])
    client.hasBufferedInput = true
    let session = rig.join(client)
    let endpoint = ScriptedStream(writes: [.moved(1), .blocked(until: .writable)])
    endpoint.closeBehavior.canHalfClose = false
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(client)
    #expect(endpoint.written == [1] && rig.link.status == .open)
    endpoint.willWrite(.moved(2), .moved(1), .blocked(until: .writable))
    rig.wakeWriter(endpoint)
    #expect(rig.ending(of: session) == .clientLost && session.up.bytes == 3 && session.dropped == 0)
    #expect(endpoint.written == [1, 2, 3, 7] && rig.link.status == .draining && !endpoint.isClosed)
    endpoint.willWrite(.moved(2))
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == [1, 2, 3, 7, 8, 9] && endpoint.isClosed)
    #expect(rig.words == ["opening", "open", "draining", "closed"] && rig.dropped == 0)
  }

  @Test("sends its 'on-close' bytes also when its route stops", arguments: [true, false])
  func lastWordsAtStop(staysOpen: Bool) throws {
    let rig = try LinkRig { device in
      device.onClose = [7]
      if staysOpen { device.open = .always }
    }
    if staysOpen { rig.link.start() } else { rig.join(ScriptedStream(takesAll: true)) }
    let endpoint = ScriptedStream(takesAll: true)
    rig.openings[0].succeed(endpoint)
    rig.link.stop(Ending(.routeRemoved))
    rig.pass(.milliseconds(20))  // a client may have sent more than has arrived
    #expect(endpoint.written == [7] && rig.link.status == .closed)
  }

  @Test("waits for a slow endpoint only while it makes progress, and still reads its output")
  func deaf() throws {
    let endpoint = ScriptedStream(reads: [.moved(1000), .ended], writes: [.blocked(until: .writable)])
    endpoint.closeBehavior.canHalfClose = false
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

  @Test("reopens after its 'on-close' bytes for clients that come meanwhile")
  func opensAgain() throws {
    let endpoint = ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true)
    endpoint.closeBehavior.canHalfClose = false
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

  @Test("is cut off when its route has no more time, after one last write")
  func cutOff() throws {
    let endpoint = ScriptedStream(writes: [.blocked(until: .writable), .moved(1)])
    endpoint.closeBehavior.canHalfClose = false
    let rig = try left(endpoint) { $0.onClose = [7, 8] }
    rig.link.stop(Ending(.shutdown))
    #expect(rig.link.status == .draining)
    rig.link.cutOff(Ending(.shutdown))
    #expect(rig.link.status == .closed && endpoint.isClosed && endpoint.written == [7])
  }

  @Test("closes at once when the endpoint fails during its 'on-close' bytes")
  func breaks() throws {
    let endpoint = ScriptedStream(writes: [.failed(SystemError("write", EIO))])
    let rig = try left(endpoint) { $0.onClose = [7] }
    #expect(rig.link.status == .closed)
    rig.join(ScriptedStream())
    #expect(rig.openings.count == 2)
  }

  @Test("waits for bytes that the port has not sent yet, as long as they become fewer")
  func unsent() throws {
    let line = ScriptedLine(unsent: [900, 900, 600, 300, 0])
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.closeBehavior.canHalfClose = false
    endpoint.serialLine = line
    let rig = try left(endpoint) { device in
      device.onClose = [7]
      device.drain = .milliseconds(50)
    }
    line.answer()  // the earlier request to the line is done
    #expect(endpoint.written == [7] && rig.link.status == .draining)
    for _ in 0..<3 {
      line.answer()
      rig.pass(.milliseconds(40))
    }
    #expect(rig.link.status == .draining && rig.dropped == 0)
    line.answer()
    #expect(rig.link.status == .closed && endpoint.isClosed && line.purges.isEmpty && rig.dropped == 0)
  }

  @Test("leaves `packets.idle` between a client's last packet and its 'on-close' bytes", arguments: [true, false])
  func lastWordsAfterSilence(hasLine: Bool) throws {
    let line = ScriptedLine()
    line.settings = LineSettings(bitsPerSecond: 1000)  // 10 ms for each character
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.closeBehavior.canHalfClose = false
    if hasLine { endpoint.serialLine = line }
    let rig = try LinkRig(packets: Config.Packets(idle: .milliseconds(100), max: nil, delimiter: nil)) { device in
      device.onClose = [7]
      device.drain = .milliseconds(200)
    }
    send([1, 2], to: endpoint, rig)
    while line.asked > 0 { line.answer() }
    // With a line 1 ms for the start of an adapter, and 20 ms for two characters.
    for _ in 0..<(hasLine ? 120 : 99) { rig.pass(.milliseconds(1)) }
    #expect(endpoint.written == [1, 2] && rig.link.status == .draining)
    rig.pass(.milliseconds(1))
    while line.asked > 0 { line.answer() }
    #expect(endpoint.written == [1, 2, 7])
    for _ in 0..<60 {
      rig.pass(.milliseconds(1))
      while line.asked > 0 { line.answer() }
    }
    #expect(rig.link.status == .closed && endpoint.isClosed)
  }

  /// The endpoint takes these bytes of a client, which then leaves.
  private func send(_ bytes: [UInt8], to endpoint: ScriptedStream, _ rig: LinkRig) {
    let client = ScriptedStream(takesAll: true)
    rig.join(client)
    rig.openings[0].succeed(endpoint)
    client.willRead(.bytes(bytes))
    rig.wakeReader(client)
    leave(rig, client)
  }

  /// How the wait for a silence of 10 s ends that is longer than `device.drain`.
  enum Limit: CaseIterable { case timeout, timeoutWithLine, stuckLine, cutOff }

  @Test("waits for that silence no longer than for progress", arguments: Limit.allCases)
  func silenceIsBounded(limit: Limit) throws {
    let line = ScriptedLine(unsent: limit == .stuckLine ? Array(repeating: 2, count: 1000) : [])
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.closeBehavior.canHalfClose = false
    if limit == .timeoutWithLine || limit == .stuckLine { endpoint.serialLine = line }
    let rig = try LinkRig(packets: Config.Packets(idle: .seconds(10), max: nil, delimiter: nil)) { device in
      device.onClose = [7]
      device.drain = .milliseconds(500)
    }
    send([1, 2], to: endpoint, rig)
    for _ in 0..<499 {
      while line.asked > 0 { line.answer() }
      rig.pass(.milliseconds(1))
    }
    #expect(endpoint.written == [1, 2] && rig.link.status == .draining)
    if limit == .cutOff {
      rig.link.stop(Ending(.shutdown))
      rig.link.cutOff(Ending(.shutdown))
    } else {
      rig.pass(.milliseconds(1))
      while line.asked > 0 { line.answer() }
    }
    // A port that sends nothing gets no more bytes.
    #expect(endpoint.written == (limit == .stuckLine ? [1, 2] : [1, 2, 7]))
    #expect(line.purges == (limit == .stuckLine ? [.output] : []) && rig.dropped == (limit == .stuckLine ? 2 : 0))
    #expect(rig.link.status == .closed && endpoint.isClosed)
  }

  @Test("waits for that silence as long as the port sends")
  func silenceAfterMuch() throws {
    let line = ScriptedLine(unsent: (0..<12).map { 24 - 2 * $0 })
    line.settings = LineSettings(bitsPerSecond: 1000)  // 10 ms for each character, and the line is asked every 20 ms
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.closeBehavior.canHalfClose = false
    endpoint.serialLine = line
    let rig = try LinkRig(packets: Config.Packets(idle: .milliseconds(30), max: nil, delimiter: nil)) { device in
      device.onClose = [7]
      device.drain = .milliseconds(50)
    }
    send(pattern(0..<24), to: endpoint, rig)
    for _ in 0..<270 {
      while line.asked > 0 { line.answer() }
      rig.pass(.milliseconds(1))
    }
    #expect(endpoint.written.count == 24)
    for _ in 0..<3 {
      while line.asked > 0 { line.answer() }
      rig.pass(.milliseconds(1))
    }
    #expect(endpoint.written == pattern(0..<24) + [7] && line.purges == [])
  }

  @Test(
    "sends its 'on-close' bytes at the line's own settings, also while a client's settings are in force or being set",
    arguments: 0...2)
  func lastWordsAtOwnSettings(answers: Int) throws {
    let rig = try LinkRig { $0.onClose = [7] }
    let client = ScriptedControlStream()
    rig.join(client, controlChannel: ControlChannel(ControlTexts(client)))
    let line = ScriptedLine()
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.closeBehavior.canHalfClose = false
    endpoint.serialLine = line
    rig.openings[0].succeed(endpoint)
    client.add([.text(#"{"request":"line","baud":115200}"#)])
    rig.wakeReader(client)
    for _ in 0..<answers { line.answer() }
    rig.report(client, .errorOccurred(SystemError("read", ECONNRESET)))
    for _ in 0..<3 { line.answer() }
    #expect(endpoint.written == [] && rig.link.status == .draining)
    line.answer()
    #expect(endpoint.written == [7] && line.settings == LineSettings() && line.applied.last == LineSettings())
    line.answer()
    #expect(rig.link.status == .closed && endpoint.isClosed && line.asked == 0)
  }

  @Test("does not wait forever for a port that can't send bytes meant for other settings")
  func stuckAtOtherSettings() throws {
    let line = ScriptedLine(unsent: [0] + Array(repeating: 300, count: 1000))
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.closeBehavior.canHalfClose = false
    endpoint.serialLine = line
    let rig = try LinkRig { device in
      device.onClose = [7]
      device.drain = .milliseconds(50)
    }
    let client = ScriptedControlStream()
    rig.join(client, controlChannel: ControlChannel(ControlTexts(client)))
    rig.openings[0].succeed(endpoint)
    client.add([.text(#"{"request":"line","baud":115200}"#)])
    rig.wakeReader(client)
    for _ in 0..<2 { line.answer() }
    rig.report(client, .errorOccurred(SystemError("read", ECONNRESET)))
    for _ in 0..<200 where rig.link.status == .draining {
      while line.asked > 0 { line.answer() }
      rig.pass(.milliseconds(10))
    }
    #expect(endpoint.written == [7] && line.settings == LineSettings())
    #expect(rig.link.status == .closed && line.purges == [.output] && rig.dropped == 300)
  }

  @Test("discards what the port can't send, and counts it")
  func stuck() throws {
    let line = ScriptedLine(unsent: [300, 300])
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.closeBehavior.canHalfClose = false
    endpoint.serialLine = line
    let rig = try left(endpoint) { $0.drain = .milliseconds(50) }
    line.answer()
    line.answer()
    rig.pass(.milliseconds(50))
    #expect(rig.link.status == .closed && line.purges == [.output] && rig.dropped == 300)
    line.answer()  // too late to matter
    #expect(rig.words == ["opening", "open", "draining", "closed"])
  }
}
