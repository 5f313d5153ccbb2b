// `baudway release` and `reopen` at a link: the port is closed in order and stays closed, whatever happens; clients are
// treated as with an absent device.

import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A link whose port was released", .timeLimit(.minutes(5)))
struct LinkReleaseTests {
  /// A link whose endpoint is open, released.
  private func released(
    _ endpoint: ScriptedStream = Self.port(), _ change: (inout Config.Device) -> Void = { _ in }
  ) throws -> (rig: LinkRig, client: ScriptedStream, session: Session, answers: Answers) {
    let rig = try LinkRig(change)
    let client = ScriptedStream(takesAll: true)
    let session = rig.join(client)
    rig.openings[0].succeed(endpoint)
    let answers = Answers()
    rig.link.release { answers.all.append($0) }
    return (rig, client, session, answers)
  }

  /// As a tty, it has no end that could be passed on.
  private static func port(_ writes: ScriptedStream.Step...) -> ScriptedStream {
    let port = ScriptedStream(writes: writes, takesAll: true)
    port.closeBehavior = CloseBehavior()
    return port
  }

  private final class Answers {
    var all: [Result<String, LinkRefusal>] = []
  }

  @Test("is closed, and not opened by clients, time, the device's node, or a reload")
  func stays() throws {
    let endpoint = Self.port()
    let (rig, _, session, answers) = try released(endpoint)
    #expect(endpoint.isClosed && rig.link.status == .waiting(.released) && answers.all == [.success("released")])
    rig.join(ScriptedStream(takesAll: true))
    rig.pass(.seconds(100))
    rig.connector.watch?.changed(.appeared)
    rig.link.update(try rig.settings { $0.open = .always })
    rig.link.update(try rig.settings(of: "tty:///dev/y") { $0.open = .always })
    #expect(rig.openings.count == 1 && rig.link.status == .waiting(.released) && rig.endings.isEmpty)
    #expect(rig.ending(of: session) == nil && rig.pauses.isEmpty)
  }

  @Test("is opened again at once for clients that wait, which lose nothing")
  func reopens() throws {
    let (rig, client, session, _) = try released()
    client.willRead(.moved(5))
    rig.wakeReader(client)
    rig.link.reopen()
    #expect(rig.openings.count == 2 && rig.link.status == .opening)
    let endpoint = ScriptedStream(takesAll: true)
    rig.openings[1].succeed(endpoint)
    #expect(endpoint.written.count == 5 && session.dropped == 0 && rig.link.status == .open)
  }

  @Test("is closed after 'reopen' where nobody needs it")
  func unneeded() throws {
    let rig = try LinkRig()
    rig.link.release { _ in }
    #expect(rig.link.status == .waiting(.released))
    rig.link.reopen()
    #expect(rig.link.status == .closed && rig.openings.isEmpty)
    rig.join(ScriptedStream())
    #expect(rig.openings.count == 1)
  }

  @Test("ends clients where 'device.absent' is close, new ones, too, with the reason")
  func ends() throws {
    let (rig, _, session, _) = try released { $0.absent = .close }
    let late = rig.join(ScriptedStream(takesAll: true))
    #expect(rig.ending(of: session) == .deviceLost && rig.ending(of: late) == .openFailed)
    #expect(rig.endings.values.allSatisfy { $0[0].cause is PortReleased } && rig.openings.count == 1)
  }

  @Test("drops the input of clients where 'device.absent' is discard, until it is reopened")
  func discards() throws {
    let (rig, client, session, _) = try released { $0.absent = .discard }
    client.willRead(.moved(5))
    rig.wakeReader(client)
    #expect(session.dropped == 5)
    rig.link.reopen()
    client.willRead(.moved(3))
    rig.wakeReader(client)
    let endpoint = ScriptedStream(takesAll: true)
    rig.openings[1].succeed(endpoint)
    #expect(endpoint.written.count == 3 && session.dropped == 5)
  }

  @Test("says that the driver has not closed the port within 10 s; it stays released")
  func hangs() throws {
    let rig = try LinkRig()
    rig.join(ScriptedStream(takesAll: true))
    let endpoint = Self.port()
    endpoint.onClose = { _ = rig.poller.closings.begin {} }
    rig.openings[0].succeed(endpoint)
    let answers = Answers()
    rig.link.release { answers.all.append($0) }
    rig.pass(.milliseconds(9_900))
    #expect(rig.link.status == .waiting(.released) && answers.all.isEmpty)
    rig.pass(.milliseconds(200))
    #expect(answers.all == [.failure(LinkRefusal("the driver has not closed the port yet; it stays released"))])
    rig.pass(.seconds(100))
    #expect(rig.openings.count == 1)
  }

  @Test(
    "that was cancelled while it opened, or waited for its next try, is released at once", arguments: [true, false])
  func early(isOpening: Bool) throws {
    let rig = try LinkRig()
    let session = rig.join(ScriptedStream(takesAll: true))
    if !isOpening { rig.openings[0].fail() }
    let answers = Answers()
    rig.link.release { answers.all.append($0) }
    #expect(answers.all == [.success("released")] && rig.openings[0].isCancelled == isOpening)
    rig.pass(.seconds(100))
    #expect(rig.openings.count == 1 && rig.ending(of: session) == nil)
    #expect(rig.connector.watch == nil)
  }

  @Test("has its last output sent first; a client that comes meanwhile does not open it again")
  func drains() throws {
    let endpoint = Self.port(.blocked(until: .writable))
    let (rig, _, _, answers) = try released(endpoint) { $0.onClose = [7] }
    #expect(rig.link.status == .draining && answers.all.isEmpty && !endpoint.isClosed)
    rig.join(ScriptedStream(takesAll: true))
    rig.wakeWriter(endpoint)
    #expect(endpoint.written == [7] && rig.link.status == .waiting(.released) && answers.all.count == 1)
  }

  @Test("that is reopened before it is closed answers so to 'release', and opens again")
  func overtaken() throws {
    let endpoint = Self.port(.blocked(until: .writable))
    let (rig, _, _, answers) = try released(endpoint) { $0.onClose = [7] }
    rig.link.reopen()
    rig.wakeWriter(endpoint)
    #expect(rig.openings.count == 2)
    guard case .failure? = answers.all.first else {
      Issue.record("\(answers.all)")
      return
    }
  }

  @Test("stops with its route")
  func stops() throws {
    let (rig, _, session, _) = try released()
    rig.link.stop(Ending(.shutdown))
    #expect(rig.ending(of: session) == .shutdown && rig.link.status == .closed)
  }
}
