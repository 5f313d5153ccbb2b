// The three policies for clients while the device is away: hold them and their input, drop their input, or end their
// sessions with the reason. In each case the clients first receive the device's last output.

import Glibc
import StreamBroker
import StreamTestKit
import StreamWebSocket
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A link whose device is away", .timeLimit(.minutes(5)))
struct LinkAbsenceTests {
  static let absences: [Config.Device.Absent] = [.hold, .discard, .close]

  @Test("gives its clients all output from before the loss, slow clients too", arguments: absences)
  func lastOutput(absent: Config.Device.Absent) throws {
    let rig = try LinkRig { $0.absent = absent }
    let quick = ScriptedStream(takesAll: true)
    let slow = ScriptedStream(writes: [.moved(3), .blocked(until: .writable)], takesAll: true)
    let sessions = [rig.join(quick), rig.join(slow)]
    let endpoint = ScriptedStream(reads: [.moved(30), .failed(SystemError("read", EIO))])
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(endpoint)
    rig.wakeReader(endpoint)
    #expect(quick.written == pattern(0..<30) && slow.written == pattern(0..<3))
    #expect(rig.link.status.word == (absent == .close ? "closed" : "waiting"))
    #expect(rig.ending(of: sessions[0]) == (absent == .close ? .deviceLost : nil))
    rig.wakeWriter(slow)
    #expect(slow.written == pattern(0..<30))
    #expect(rig.ending(of: sessions[1]) == (absent == .close ? .deviceLost : nil))
    for session in sessions { #expect(session.down.bytes == 30 && session.dropped == 0) }
  }

  @Test("ends the sessions with the reason where the policy is close, and stops retrying", arguments: [true, false])
  func close(isLost: Bool) throws {
    let rig = try LinkRig { $0.absent = .close }
    let client = ScriptedStream(reads: [.moved(5)])
    let session = rig.join(client)
    if isLost {
      let endpoint = ScriptedStream(reads: [.failed(SystemError("read", EIO))])
      rig.openings[0].succeed(endpoint)
      rig.wakeReader(client)
      rig.wakeReader(endpoint)
      #expect(rig.endings[session.number]?.first?.cause as? SystemError == SystemError("read", EIO))
    } else {
      rig.wakeReader(client)
      rig.openings[0].fail(ENOENT)
      #expect((rig.endings[session.number]?.first?.cause as? OpenFailure)?.cause?.name == "ENOENT")
    }
    #expect(rig.ending(of: session) == (isLost ? .deviceLost : .openFailed) && session.dropped == 5)
    #expect(rig.words.suffix(2) == ["waiting", "closed"] && rig.pauses.isEmpty)
    rig.pass(.seconds(60))
    #expect(rig.openings.count == 1)
  }

  @Test("reports a hang-up when the device went without an error")
  func hungUp() throws {
    let rig = try LinkRig { $0.absent = .close }
    let session = rig.join(ScriptedStream())
    let endpoint = ScriptedStream(reads: [.ended])
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(endpoint)
    let cause = try #require(rig.endings[session.number]?.first?.cause)
    #expect("\(cause)" == "tty:///dev/x hung up; was it unplugged?")
  }

  @Test("keeps retrying without clients if 'open' is always")
  func closeAlways() throws {
    let rig = try LinkRig { device in
      device.absent = .close
      device.open = .always
    }
    rig.link.start()
    let session = rig.join(ScriptedStream())
    rig.openings[0].fail()
    #expect(rig.ending(of: session) == .openFailed && rig.pauses.count == 1)
    rig.pass(.seconds(1))
    #expect(rig.openings.count == 2)
    rig.openings[1].succeed(ScriptedStream(takesAll: true))
    let next = rig.join(ScriptedStream())
    #expect(rig.ending(of: next) == nil && rig.link.status == .open)
  }

  @Test("refuses no new client without a try, and tries no more often than its pauses allow", arguments: [true, false])
  func newcomers(staysOpen: Bool) throws {
    let rig = try LinkRig { device in
      device.absent = .close
      device.retry = .milliseconds(400) ... .seconds(30)
      if staysOpen { device.open = .always }
    }
    if staysOpen { rig.link.start() }
    let first = rig.join(ScriptedStream())
    rig.openings[0].fail()
    for round in 1...3 {  // each comes 100 ms after the last try, together with two others
      rig.pass(.milliseconds(100))
      let crowd = (0..<3).map { _ in rig.join(ScriptedStream()) }
      #expect(rig.openings.count == round && crowd.allSatisfy { rig.ending(of: $0) == nil })
      rig.pass(.milliseconds(300))
      #expect(rig.openings.count == round + 1)
      rig.openings[round].fail()
      #expect(crowd.allSatisfy { rig.ending(of: $0) == .openFailed })
    }
    rig.pass(.seconds(1))
    let tries = rig.openings.count
    if staysOpen, !rig.openings[tries - 1].isAnswered { rig.openings[tries - 1].fail() }
    rig.pass(.milliseconds(400))
    let last = rig.join(ScriptedStream())
    rig.openings[rig.openings.count - 1].succeed(ScriptedStream())
    #expect(rig.ending(of: last) == nil && rig.ending(of: first) == .openFailed && rig.link.status == .open)
  }

  @Test("drops and counts input while the device is away, where the policy is discard; then the sessions continue")
  func discard() throws {
    let rig = try LinkRig(buffer: 8) { $0.absent = .discard }
    let client = ScriptedStream(reads: [.moved(4)], takesAll: true)
    let session = rig.join(client)
    rig.wakeReader(client)
    let endpoint = ScriptedStream(
      reads: [.failed(SystemError("read", EIO))], writes: [.moved(1), .blocked(until: .writable)])
    rig.openings[0].succeed(endpoint)
    #expect(endpoint.written == pattern(0..<1) && session.dropped == 0, "before it is known to be away all is kept")
    rig.wakeReader(endpoint)
    #expect(session.dropped == 3, "what was kept when it went")
    for _ in 0..<10 {
      client.willRead(.moved(10))
      for _ in 0..<5 { rig.wakeReader(client) }
    }
    #expect(session.dropped == 103 && client.readerWaits == .readable, "more than any ring holds")
    rig.pass(.seconds(1))
    client.willRead(.moved(2))
    rig.wakeReader(client)
    #expect(session.dropped == 105, "a try that is under way is not the device")
    let next = ScriptedStream(takesAll: true)
    rig.openings[1].succeed(next)
    client.willRead(.moved(5))
    rig.wakeReader(client)
    #expect(next.written == pattern(106..<111) && rig.ending(of: session) == nil)
    #expect(session.up.bytes == 6 && session.dropped == 105)
  }

  @Test("keeps the first client's input until it knows that the device is absent, and then drops it")
  func discardAtFirst() throws {
    let rig = try LinkRig { $0.absent = .discard }
    let client = ScriptedStream(reads: [.moved(4)])
    let session = rig.join(client)
    rig.wakeReader(client)
    #expect(session.pump.count == 4)
    rig.openings[0].fail()
    #expect(session.pump.count == 0 && session.dropped == 4)
    rig.report(client, .errorOccurred(SystemError("read", ECONNRESET)))
    // For the next client the device may be there again, so its input is kept until that is known.
    let next = ScriptedStream(reads: [.moved(3)])
    rig.join(next)
    rig.wakeReader(next)
    let endpoint = ScriptedStream(takesAll: true)
    rig.openings[1].succeed(endpoint)
    #expect(endpoint.written.count == 3)
  }

  @Test("notices the end of clients whose input it drops")
  func endWhileDiscarding() throws {
    let rig = try LinkRig { $0.absent = .discard }
    let client = ScriptedStream(reads: [.moved(4), .ended])
    client.hasBufferedInput = true
    let session = rig.join(client)
    rig.openings[0].fail()
    rig.wakeReader(client)
    #expect(session.isHalfClosed && session.dropped == 4)
    rig.pass(.seconds(31))
    #expect(rig.ending(of: session) == .clientLeft)
  }

  @Test("sends the 'on-open' bytes first, at every opening, before any kept input")
  func firstWords() throws {
    let rig = try LinkRig { $0.onOpen = [7, 8, 9] }
    let client = ScriptedStream(reads: [.bytes([1, 2])])
    let session = rig.join(client)
    rig.wakeReader(client)
    let endpoint = ScriptedStream(
      reads: [.moved(5), .failed(SystemError("read", EIO))],
      writes: [.moved(1), .blocked(until: .writable), .moved(1), .blocked(until: .writable)], takesAll: true)
    rig.openings[0].succeed(endpoint)
    client.willRead(.bytes([3]))
    rig.wakeReader(client)
    #expect(endpoint.written == [7])
    let late = ScriptedStream(reads: [.bytes([4])])
    rig.join(late)
    rig.wakeReader(late)
    #expect(endpoint.written == [7])
    rig.wakeReader(endpoint)  // its output is read meanwhile
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == [7, 8] && session.up.bytes == 0)
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == [7, 8, 9, 1, 2, 3, 4] && session.up.bytes == 3)
    client.willRead(.bytes([5]))
    rig.wakeReader(client)
    #expect(endpoint.written.last == 5)
    rig.wakeReader(endpoint)
    rig.pass(.seconds(1))
    let next = ScriptedStream(takesAll: true)
    rig.openings[1].succeed(next)
    #expect(next.written == [7, 8, 9])
  }

  @Test("keeps input that arrives while the 'on-open' bytes are being sent")
  func behindFirstWords() throws {
    let rig = try LinkRig { $0.onOpen = [7, 8, 9] }
    let client = ScriptedStream()
    rig.join(client)
    let endpoint = ScriptedStream(writes: [.moved(1), .blocked(until: .writable)], takesAll: true)
    rig.openings[0].succeed(endpoint)
    client.willRead(.bytes([1]))
    rig.wakeReader(client)
    #expect(endpoint.written == [7])
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == [7, 8, 9, 1])
  }

  @Test("handles a device that fails during its 'on-open' bytes like any lost device")
  func breaksAtFirstWords() throws {
    let rig = try LinkRig { $0.onOpen = [7, 8, 9] }
    let client = ScriptedStream(reads: [.bytes([1, 2])])
    let session = rig.join(client)
    rig.wakeReader(client)
    let endpoint = ScriptedStream(writes: [.moved(1), .failed(SystemError("write", EIO))])
    rig.openings[0].succeed(endpoint)
    #expect(endpoint.isClosed && rig.link.status.word == "waiting" && session.pump.count == 2)
    rig.pass(.seconds(1))
    let next = ScriptedStream(takesAll: true)
    rig.openings[1].succeed(next)
    #expect(next.written == [7, 8, 9, 1, 2])
  }

  @Test(
    "reports the reason in a WebSocket's close frame, to a client of a per-client or a shared link",
    arguments: [true, false])
  func closeFrame(isShared: Bool) throws {
    let rig = try LinkRig(isShared: isShared) { $0.absent = .close }
    let client = ScriptedStream(reads: [.ended], takesAll: true)
    let session = rig.join(client)
    let frames: [UInt8] = [0x82, 1, 7, 0x88, 6, 0x03, 0xF3] + Array("lost".utf8)
    let below = ScriptedStream(reads: [.bytes(frames)], takesAll: true)
    let settings = WebSocketStream.Settings(pingInterval: nil)
    rig.openings[0].succeed(WebSocketStream(over: below, as: .client, settings, on: rig.poller))
    rig.wakeReader(below)
    rig.poller.runAgain()
    rig.wakeReader(client)
    #expect(client.written == [7] && rig.ending(of: session) == (isShared ? .deviceLost : .endpointLeft))
    let cause = try #require(rig.endings[session.number]?.first?.cause)
    #expect("\(cause)" == "tty:///dev/x ended: 1011 lost")
  }
}
