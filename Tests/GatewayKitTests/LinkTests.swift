// When a link opens, tries again and closes, and what its clients notice of that.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A link", .timeLimit(.minutes(1)))
struct LinkTests {
  @Test("opens with its first client and closes with its last")
  func onDemand() throws {
    let rig = try LinkRig()
    #expect(rig.openings.isEmpty)
    let client = ScriptedStream()
    let session = rig.join(client)
    #expect(rig.openings.count == 1 && rig.openings[0].discardsInput)
    let endpoint = ScriptedStream()
    endpoint.canHalfClose = false
    rig.openings[0].succeed(endpoint)
    rig.tell(client, .errorOccurred(SystemError("read", ECONNRESET)))
    #expect(rig.ending(of: session) == .clientLost && endpoint.isClosed)
    #expect(rig.words == ["opening", "open", "closed"])
    rig.join(ScriptedStream())
    #expect(rig.openings.count == 2)
  }

  @Test("that is to be open always opens without clients and stays when they leave")
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

  @Test("gives nobody what its device said to those before, once it was closed")
  func closedInBetween() throws {
    let rig = try LinkRig { $0.flush = .none }
    let before = ScriptedStream(reads: [.ended])
    let session = rig.join(before)
    let endpoint = ScriptedStream(reads: [.moved(20)])
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(endpoint)
    rig.wakeReader(before)
    rig.pass(.seconds(31))  // he took none of it
    #expect(rig.ending(of: session) == .clientLeft && session.dropped == 20)
    let after = ScriptedStream(takesAll: true)
    rig.join(after)
    rig.openings[1].succeed(ScriptedStream())
    #expect(after.written.isEmpty)
  }

  @Test("holds its clients while the device is away: what they send is kept, then not read, then delivered")
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

  @Test("tries again after a pause, longer each time, and says how long it will be")
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
    "stops trying when nobody needs it any more, in every state", arguments: ["opening", "waiting", "opening again"])
  func unneeded(state: String) throws {
    let rig = try LinkRig()
    let client = ScriptedStream()
    rig.join(client)
    if state != "opening" { rig.openings[0].fail() }
    if state == "opening again" { rig.pass(.seconds(1)) }
    let openings = rig.openings.count
    rig.tell(client, .errorOccurred(SystemError("read", ECONNRESET)))
    #expect(rig.link.status == .closed)
    #expect(rig.openings.last?.isCancelled == state.hasPrefix("opening"))
    rig.pass(.seconds(60))
    #expect(rig.openings.count == openings)
  }

  @Test("gives up an opening that takes longer than the connect timeout, and tries again")
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

  @Test("of one client gives up an opening that takes too long, too, and ends him with the reason")
  func timeoutOfOwn() throws {
    let rig = try LinkRig(isShared: false) { $0.connectTimeout = .seconds(3) }
    let session = rig.join(ScriptedStream())
    rig.pass(.milliseconds(2_999))
    #expect(rig.ending(of: session) == nil)
    rig.pass(.milliseconds(1))
    #expect(rig.openings[0].isCancelled && rig.ending(of: session) == .openFailed)
    let cause = try #require(rig.endings[session.number]?.first?.cause)
    #expect("\(cause)".hasSuffix("no answer within 3.0 seconds"))
    rig.openings[0].succeed(ScriptedStream())  // comes too late to matter
    #expect(rig.link.status == .closed)
  }

  @Test("works with a connector that answers at once", arguments: [true, false])
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
    rig.tell(client, .errorOccurred(SystemError("read", ECONNRESET)))
    #expect(rig.link.status == .closed)
  }

  @Test("of one client ends him when it can't be opened, after one try")
  func openFailed() throws {
    let rig = try LinkRig(isShared: false)
    let client = ScriptedStream(reads: [.moved(5)])
    let session = rig.join(client)
    rig.wakeReader(client)
    rig.openings[0].fail(ECONNREFUSED)
    #expect(rig.ending(of: session) == .openFailed && session.up == 0 && session.dropped == 5)
    #expect((rig.endings[session.number]?.first?.cause as? OpenFailure)?.cause?.name == "ECONNREFUSED")
    rig.pass(.seconds(60))
    #expect(rig.openings.count == 1)
  }

  @Test("of one client ends him when it breaks, with what came before it broke")
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
    #expect(rig.ending(of: session) == .deviceLost && session.up == 0 && session.down == 30 && session.dropped == 5)
  }

  @Test(
    "of one client breaks off where he did, after what he sent before, and finishes where he finished",
    arguments: [true, false])
  func brokenOff(breaks: Bool) throws {
    let rig = try LinkRig(isShared: false)
    let client = ScriptedStream(reads: [.moved(5), breaks ? .failed(SystemError("read", ECONNRESET)) : .ended])
    client.holdsBytes = true
    let session = rig.join(client)
    let endpoint = ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true)
    endpoint.unacknowledged = 5
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(client)
    #expect(rig.ending(of: session) == nil)
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == pattern(0..<5) && endpoint.finishedWriting == !breaks)
    #expect(rig.ending(of: session) == (breaks ? .clientLost : nil))
    // Not before the other side has it, or the reset would destroy it.
    rig.pass(.milliseconds(100))
    #expect(!endpoint.isClosed)
    endpoint.unacknowledged = 0
    rig.pass(.milliseconds(400))
    #expect(endpoint.isAborted == breaks)
  }

  @Test("of one client breaks off where he did also when writing to him was told of it, and reading finds an end")
  func brokenOffWhileWriting() throws {
    let rig = try LinkRig(isShared: false)
    let client = ScriptedStream(
      reads: [.moved(5), .ended], writes: [.failed(SystemError("write", ECONNRESET))])
    client.holdsBytes = true
    let session = rig.join(client)
    let endpoint = ScriptedStream(reads: [.moved(30), .ended], takesAll: true)
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(endpoint)
    rig.wakeReader(client)
    #expect(rig.ending(of: session) == .clientLost && session.dropped == 30)
    #expect(endpoint.written == pattern(0..<5) && endpoint.isAborted && !endpoint.finishedWriting)
  }

  @Test("of one client breaks off when what he sent last was given up")
  func inputGivenUp() throws {
    let rig = try LinkRig(isShared: false)
    let client = ScriptedStream(reads: [.moved(5), .ended])
    client.holdsBytes = true
    let session = rig.join(client)
    let endpoint = ScriptedStream()
    rig.openings[0].succeed(endpoint)
    rig.wakeReader(client)
    for _ in 0..<4 { rig.pass(.seconds(10)) }
    #expect(rig.ending(of: session) == .clientLeft && session.dropped == 5)
    #expect(endpoint.isAborted && !endpoint.finishedWriting)
  }

  @Test("of one client calls it the endpoint's leave when it ended in order and then takes no more")
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
    #expect(rig.ending(of: session) == .endpointLeft && session.down == 30 && session.dropped == 5)
  }

  @Test("is tried at once when its node appears, and leaves no watch behind", arguments: [0, 1, 2])
  func node(leavesIn state: Int) async throws {
    let folder = "/tmp/baudway-link-\(getpid())-\(state)"
    mkdir(folder, 0o700)
    defer { rmdir(folder) }
    let path = folder + "/node"
    let lane = try Lane("link")  // lives longer, as a gateway's does: what the link leaves on it would show
    defer { lane.stop() }
    try await expectNoDescriptorLeak {
      try await onLane(lane) { lane in
        let rig = try LinkRig(connector: ScriptedConnector(node: path), on: lane.poller)
        let client = ScriptedStream()
        rig.join(client)
        // Many failures: the pause is long now, so that only the node can be the reason for another try.
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
        rig.tell(client, .errorOccurred(SystemError("read", ECONNRESET)))
        #expect(rig.link.status == .closed)
        rig.lingering.closeAll()
      }
    }
    unlink(path)
  }
}
