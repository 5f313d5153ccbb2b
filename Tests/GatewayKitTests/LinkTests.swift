// When a link opens, retries and closes, and what its clients notice.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A link", .timeLimit(.minutes(5)))
struct LinkTests {
  @Test("opens with its first client and closes with its last")
  func onDemand() throws {
    let rig = try LinkRig()
    #expect(rig.openings.isEmpty)
    let client = ScriptedStream()
    let session = rig.join(client)
    #expect(rig.openings.count == 1 && rig.openings[0].discardsInput)
    let endpoint = ScriptedStream()
    endpoint.closeBehavior.canHalfClose = false
    rig.openings[0].succeed(endpoint)
    rig.report(client, .errorOccurred(SystemError("read", ECONNRESET)))
    #expect(rig.ending(of: session) == .clientLost && endpoint.isClosed)
    #expect(rig.words == ["opening", "open", "closed"])
    rig.join(ScriptedStream())
    #expect(rig.openings.count == 2)
  }

  @Test("that is always open opens without clients, and stays open when they leave")
  func always() throws {
    let rig = try LinkRig { device in
      device.open = .always
      device.flush = .none
    }
    rig.link.start()
    #expect(rig.openings.count == 1 && !rig.openings[0].discardsInput)
    let endpoint = ScriptedStream(takesAll: true)
    rig.openings[0].succeed(endpoint)
    let client = ScriptedStream(reads: [.failed(SystemError("read", ECONNRESET))])
    rig.join(client)
    rig.wakeReader(client)
    #expect(!endpoint.isClosed && rig.link.status == .open)
    rig.link.stop(Ending(.shutdown))
    #expect(rig.link.status == .closed && endpoint.finishedWriting)
  }

  @Test("drops the kept output of an earlier opening when it is closed")
  func closedInBetween() throws {
    let rig = try LinkRig { $0.flush = .none }
    let before = ScriptedStream(reads: [.ended])
    let session = rig.join(before)
    let endpoint = ScriptedStream(reads: [.moved(20)])
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(endpoint)
    rig.wakeReader(before)
    rig.pass(.seconds(31))  // the client took none of it
    #expect(rig.ending(of: session) == .clientLeft && session.dropped == 20)
    let after = ScriptedStream(takesAll: true)
    rig.join(after)
    rig.openings[1].succeed(ScriptedStream())
    #expect(after.written.isEmpty)
  }

  @Test("holds its clients while the device is away: input is kept up to the buffer, and delivered later")
  func holds() throws {
    let rig = try LinkRig(buffer: 8)
    let client = ScriptedStream(reads: [.moved(20)], takesAll: true)
    let session = rig.join(client)
    rig.openings[0].succeed(ScriptedStream(reads: [.bytes([1]), .failed(SystemError("read", EIO))]))
    let lost = try #require(rig.link.hub.endpoint as? ScriptedStream)
    rig.wakeReader(lost)
    rig.wakeReader(lost)
    #expect(lost.isClosed && client.written == [1] && rig.link.status == .waiting(.lost(SystemError("read", EIO))))
    rig.wakeReader(client)
    #expect(client.readerWaits == [] && session.pump.count == 8)
    for _ in 0..<3 {  // each pause is at most its full length
      rig.pass(.seconds(2))
      rig.openings.last?.fail(ENOENT)
    }
    #expect(rig.openings.count == 4 && rig.ending(of: session) == nil)
    rig.pass(.seconds(2))
    let next = ScriptedStream(reads: [.bytes([2])], takesAll: true)
    rig.openings[4].succeed(next)
    #expect(next.written == pattern(0..<20))
    rig.wakeReader(next)
    #expect(client.written == [1, 2] && session.dropped == 0)
  }

  @Test("retries after a pause, longer each time, and reports its length")
  func retries() throws {
    let rig = try LinkRig()
    rig.join(ScriptedStream())
    rig.openings[0].fail()
    for tries in 1...5 {
      let pause = try #require(rig.pauses.last)
      let full = Duration.milliseconds(250) * (1 << (tries - 1))
      #expect(full * 0.75...full ~= pause)
      rig.pass(pause - .nanoseconds(1))
      #expect(rig.openings.count == tries)
      rig.pass(.nanoseconds(1))
      #expect(rig.openings.count == tries + 1)
      rig.openings[tries].fail()
    }
    #expect(rig.words.suffix(2) == ["opening", "waiting"])
  }

  @Test(
    "stops retrying when no client needs it, in every state", arguments: ["opening", "waiting", "opening again"])
  func unneeded(state: String) throws {
    let rig = try LinkRig()
    let client = ScriptedStream()
    rig.join(client)
    if state != "opening" { rig.openings[0].fail() }
    if state == "opening again" { rig.pass(.seconds(1)) }
    let openings = rig.openings.count
    rig.report(client, .errorOccurred(SystemError("read", ECONNRESET)))
    #expect(rig.link.status == .closed)
    #expect(rig.openings.last?.isCancelled == state.hasPrefix("opening"))
    rig.pass(.seconds(60))
    #expect(rig.openings.count == openings)
  }

  @Test("gives up an opening that takes longer than the connect timeout, and retries")
  func timeout() throws {
    let rig = try LinkRig()
    let session = rig.join(ScriptedStream())
    rig.pass(.milliseconds(9_999))
    #expect(!rig.openings[0].isCancelled)
    rig.pass(.milliseconds(1))
    #expect(rig.openings[0].isCancelled && rig.link.status.word == "waiting")
    rig.pass(.milliseconds(250))
    #expect(rig.openings.count == 2 && rig.ending(of: session) == nil)
  }

  @Test("of one client gives up an opening that takes too long, and ends the session with the reason")
  func timeoutOfOwn() throws {
    let rig = try LinkRig(isShared: false) { $0.connectTimeout = .seconds(3) }
    let session = rig.join(ScriptedStream())
    rig.pass(.milliseconds(2_999))
    #expect(rig.ending(of: session) == nil)
    rig.pass(.milliseconds(1))
    #expect(rig.openings[0].isCancelled && rig.ending(of: session) == .openFailed)
    let cause = try #require(rig.endings[session.number]?.first?.cause)
    #expect("\(cause)".hasSuffix("no answer within 3.0 seconds"))
    rig.openings[0].succeed(ScriptedStream())  // too late to matter
    #expect(rig.link.status == .closed)
  }

  @Test("works with a connector that completes at once", arguments: [true, false])
  func atOnce(succeeds: Bool) throws {
    let rig = try LinkRig()
    rig.connector.answerAtOnce = {
      succeeds ? .success(ScriptedStream(takesAll: true)) : .failure(OpenFailure("open x", SystemError("open", ENOENT)))
    }
    let client = ScriptedStream()
    rig.join(client)
    #expect(rig.link.status.word == (succeeds ? "open" : "waiting"))
    rig.pass(.seconds(1))
    #expect(rig.openings.count == (succeeds ? 1 : 2))
    rig.report(client, .errorOccurred(SystemError("read", ECONNRESET)))
    #expect(rig.link.status == .closed)
  }

  @Test("of one client ends the session after one try that failed")
  func openFailed() throws {
    let rig = try LinkRig(isShared: false)
    let client = ScriptedStream(reads: [.moved(5)])
    let session = rig.join(client)
    rig.wakeReader(client)
    rig.openings[0].fail(ECONNREFUSED)
    #expect(rig.ending(of: session) == .openFailed && session.up.bytes == 0 && session.dropped == 5)
    #expect((rig.endings[session.number]?.first?.cause as? OpenFailure)?.cause?.name == "ECONNREFUSED")
    rig.pass(.seconds(60))
    #expect(rig.openings.count == 1)
  }

  @Test("of one client ends the session when the device is lost, after delivering earlier bytes")
  func deviceLost() throws {
    let rig = try LinkRig(isShared: false)
    let client = ScriptedStream(reads: [.moved(5)], writes: [.blocked(until: .writable)], takesAll: true)
    let session = rig.join(client)
    let endpoint = ScriptedStream(reads: [.moved(30), .failed(SystemError("read", ECONNRESET))])
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(client)
    rig.wakeReader(endpoint)
    rig.wakeReader(endpoint)
    #expect(rig.ending(of: session) == nil)
    rig.wakeWriter(client)
    #expect(client.written == pattern(0..<30))
    #expect(
      rig.ending(of: session) == .deviceLost && session.up.bytes == 0 && session.down.bytes == 30
        && session.dropped == 5)
  }

  @Test(
    "of one client resets its endpoint after a client's reset, or finishes after a FIN, once input is delivered",
    arguments: [true, false])
  func brokenOff(breaks: Bool) throws {
    let rig = try LinkRig(isShared: false)
    let client = ScriptedStream(reads: [.moved(5), breaks ? .failed(SystemError("read", ECONNRESET)) : .ended])
    client.hasBufferedInput = true
    let session = rig.join(client)
    let endpoint = ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true)
    endpoint.undelivered = .onItsWay(5)
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(client)
    #expect(rig.ending(of: session) == nil)
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == pattern(0..<5) && endpoint.finishedWriting == !breaks)
    #expect(rig.ending(of: session) == (breaks ? .clientLost : nil))
    // Not before the endpoint has acknowledged it, or the reset would destroy it.
    rig.pass(.milliseconds(100))
    #expect(!endpoint.isClosed)
    endpoint.undelivered = .onItsWay(0)
    rig.pass(.milliseconds(400))
    #expect(endpoint.isAborted == breaks)
  }

  @Test("of one client resets its endpoint also when a write reported the client's reset and a read finds an end")
  func brokenOffWhileWriting() throws {
    let rig = try LinkRig(isShared: false)
    let client = ScriptedStream(
      reads: [.moved(5), .ended], writes: [.failed(SystemError("write", ECONNRESET))])
    client.hasBufferedInput = true
    let session = rig.join(client)
    let endpoint = ScriptedStream(reads: [.moved(30), .ended], takesAll: true)
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(endpoint)
    rig.wakeReader(client)
    #expect(rig.ending(of: session) == .clientLost && session.dropped == 30)
    #expect(endpoint.written == pattern(0..<5) && endpoint.isAborted && !endpoint.finishedWriting)
  }

  @Test("of one client resets its endpoint when the client's last input was dropped")
  func inputGivenUp() throws {
    let rig = try LinkRig(isShared: false)
    let client = ScriptedStream(reads: [.moved(5), .ended])
    client.hasBufferedInput = true
    let session = rig.join(client)
    let endpoint = ScriptedStream()
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(client)
    for _ in 0..<4 { rig.pass(.seconds(10)) }
    #expect(rig.ending(of: session) == .clientLeft && session.dropped == 5)
    #expect(endpoint.isAborted && !endpoint.finishedWriting)
  }

  @Test("of one client ends as endpoint-left when its endpoint ended in order and then takes no more")
  func deafAfterEnd() throws {
    let rig = try LinkRig(isShared: false)
    let client = ScriptedStream(reads: [.moved(5)], takesAll: true)
    let session = rig.join(client)
    let endpoint = ScriptedStream(reads: [.moved(30), .ended], writes: [.failed(SystemError("write", EPIPE))])
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(endpoint)
    rig.wakeReader(endpoint)
    #expect(client.finishedWriting && rig.ending(of: session) == nil)
    rig.wakeReader(client)
    #expect(rig.ending(of: session) == .endpointLeft && session.down.bytes == 30 && session.dropped == 5)
  }

  @Test("is retried at once when its node appears, and leaves no watch behind", arguments: [0, 1, 2])
  func node(leavesIn state: Int) async throws {
    let folder = "/tmp/baudway-link-\(getpid())-\(state)"
    mkdir(folder, 0o700)
    defer { rmdir(folder) }
    let path = folder + "/node"
    // lives longer, as a gateway's lane does: anything that the link does not remove from it would show
    let lane = try Lane("link")
    defer { lane.stop() }
    try await expectNoDescriptorLeak {
      try await onLane(lane) { lane in
        let rig = try LinkRig(connector: ScriptedConnector(node: path), on: lane.poller)
        let client = ScriptedStream()
        rig.join(client)
        // After many failures the pause is long, so that only the node can cause another try.
        let waiting = Gate()
        let opening = Gate()
        rig.onStatus = { status in
          if status.word == "waiting" { waiting.open() }
          if status == .opening { opening.open() }
        }
        rig.connector.answerAtOnce = { .failure(OpenFailure("open", SystemError("open", ENOENT))) }
        rig.openings[0].fail()
        await waiting.wait(on: lane)
        rig.connector.answerAtOnce = nil
        if state > 0 {
          close(open(path, O_CREAT | O_WRONLY, 0o600))
          await opening.wait(on: lane)
          if state == 2 { rig.openings.last?.succeed(ScriptedStream()) }
        }
        rig.report(client, .errorOccurred(SystemError("read", ECONNRESET)))
        #expect(rig.link.status == .closed)
        rig.closing.closeAll()
      }
    }
    unlink(path)
  }
}
