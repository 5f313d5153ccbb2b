// An inconsistency in our own state costs the session or link that it concerns, which ends as `internal`. All others
// continue.

import Logging
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A fault of our own", .timeLimit(.minutes(5)))
struct HubFaultTests {
  /// Two clients, the first of which is blocked, and a device that has sent ten bytes.
  private func rig(_ packets: Config.Packets? = nil) throws -> (HubRig, [Session], [ScriptedStream], ScriptedStream) {
    let rig = try HubRig(packets: packets)
    let clients = [
      ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true), ScriptedStream(takesAll: true),
    ]
    let sessions = clients.map { rig.join($0) }
    let endpoint = ScriptedStream(takesAll: true)
    rig.hub.attach(endpoint)
    endpoint.willRead(.moved(10))
    rig.wakeReader(endpoint)
    return (rig, sessions, clients, endpoint)
  }

  @Test("ends a session whose position in the ring is wrong, and no other", arguments: [11, 1000, UInt64.max])
  func cursor(place: UInt64) throws {
    let (rig, sessions, clients, endpoint) = try rig()
    sessions[0].startOutput(at: place)
    rig.wakeWriter(clients[0])
    #expect(rig.ending(of: sessions[0]) == .internal)
    let fault = rig.endings[sessions[0].number]?.first?.cause as? InternalFault
    #expect(fault?.location == "session.take")
    #expect(sessions[0].dropped == 0, "no figure of the wrong place gets into the account")
    endpoint.willRead(.moved(5))
    rig.wakeReader(endpoint)
    #expect(rig.ending(of: sessions[1]) == nil && clients[1].written == pattern(0..<15) && rig.losses.isEmpty)
  }

  @Test("ends a session whose bytes the ring no longer keeps")
  func released() throws {
    let (rig, sessions, clients, endpoint) = try rig()
    sessions[0].startOutput(at: 10)
    rig.hub.downstream.release()  // no session needs them
    endpoint.willRead(.moved(5))
    clients[1].willWrite(.blocked(until: .writable))
    rig.wakeReader(endpoint)
    sessions[0].startOutput(at: 3)
    rig.wakeWriter(clients[0])
    #expect(rig.ending(of: sessions[0]) == .internal)
    #expect((rig.endings[sessions[0].number]?.first?.cause as? InternalFault)?.location == "ring.look")
    rig.wakeWriter(clients[1])
    #expect(rig.ending(of: sessions[1]) == nil && clients[1].written == pattern(0..<15))
  }

  @Test("ends a session whose stream reports an impossible count of written bytes", arguments: LyingStream.Lie.allCases)
  func lyingClient(lie: LyingStream.Lie) throws {
    let rig = try HubRig()
    let sessions = [rig.join(LyingStream(lie)), rig.join(ScriptedStream(takesAll: true))]
    let endpoint = ScriptedStream(reads: [.moved(10)], takesAll: true)
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    #expect(rig.ending(of: sessions[0]) == .internal && rig.ending(of: sessions[1]) == nil)
  }

  @Test("ends a session whose stream reports an impossible count of read bytes", arguments: LyingStream.Lie.allCases)
  func lyingReader(lie: LyingStream.Lie) throws {
    let rig = try HubRig()
    let liar = LyingStream(lie)
    let sessions = [rig.join(liar), rig.join(ScriptedStream(takesAll: true))]
    rig.hub.attach(ScriptedStream(takesAll: true))
    rig.wakeReader(liar)
    #expect(rig.ending(of: sessions[0]) == .internal && rig.ending(of: sessions[1]) == nil)
  }

  @Test("that concerns a whole link ends the link and its sessions, and the next device starts anew")
  func link() throws {
    let (rig, sessions, _, endpoint) = try rig(Config.Packets(idle: nil, max: 4, delimiter: nil))
    let ring = try #require(rig.hub.downstream.output.ring)
    _ = try ring.fill { _ in .moved(2) }  // nobody looks for packets in these
    try ring.release(upTo: ring.head)
    endpoint.willRead(.moved(4))
    rig.wakeReader(endpoint)
    #expect(sessions.map { rig.ending(of: $0) } == [.internal, .internal])
    #expect(rig.losses.count == 1 && endpoint.isClosed)
    // Another device, another client.
    let client = ScriptedStream(takesAll: true)
    rig.join(client)
    let other = ScriptedStream(reads: [.moved(9)], takesAll: true)
    rig.hub.attach(other)
    rig.wakeReader(other)
    #expect(client.written == pattern(0..<8), "two packets, and a byte of the next one")
  }

  @Test("ends a link whose stream reports an impossible count of read bytes", arguments: LyingStream.Lie.allCases)
  func lyingEndpoint(lie: LyingStream.Lie) throws {
    let rig = try HubRig()
    let session = rig.join(ScriptedStream(takesAll: true))
    let endpoint = LyingStream(lie)
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    #expect(rig.ending(of: session) == .internal && rig.losses.count == 1 && endpoint.isClosed)
  }

  // Layers between streams and rings have counts of their own.

  @Test(
    "ends a session whose first bytes are checked for HTTP, and no other", arguments: LyingStream.Lie.allCases,
    [[], Array("GET /".utf8)])
  func screened(lie: LyingStream.Lie, first: [UInt8]) throws {
    let rig = try HubRig(buffer: 4096)
    let liar = LyingStream(lie, in: .reading, reads: first.isEmpty ? [] : [first])
    let sessions = [rig.join(HTTPRequestGuard(liar, on: rig.poller)), rig.join(ScriptedStream(takesAll: true))]
    let endpoint = ScriptedStream(takesAll: true)
    rig.hub.attach(endpoint)
    for _ in 0..<3 { rig.wakeReader(liar) }
    #expect(rig.faultLocation(of: sessions[0]) == (first.isEmpty ? "requestGuard.readFirst" : "requestGuard.readMore"))
    #expect(rig.ending(of: sessions[1]) == nil && rig.losses.isEmpty)
    #expect(endpoint.written == first, "what came before is forwarded")
  }

  @Test(
    "ends a session that is sent a text of ours, at once or when it has space", arguments: LyingStream.Lie.allCases,
    [true, false])
  func prefaced(lie: LyingStream.Lie, isAtOnce: Bool) throws {
    let rig = try HubRig()
    let liar = LyingStream(lie, in: .writing, writes: isAtOnce ? [] : [.moved(1), .blocked(until: .writable)])
    let session = rig.join(PrefacedStream.send([1, 2, 3], through: liar))
    let other = rig.join(ScriptedStream(takesAll: true))
    rig.hub.attach(ScriptedStream(takesAll: true))
    #expect(rig.ending(of: session) == nil)
    rig.wakeWriter(liar)
    #expect(rig.faultLocation(of: session) == "preface.write" && rig.ending(of: other) == nil)
  }

  @Test("ends a link while its 'on-open' bytes are written", arguments: LyingStream.Lie.allCases)
  func firstWords(lie: LyingStream.Lie) throws {
    let rig = try HubRig()
    let session = rig.join(ScriptedStream(takesAll: true))
    let liar = LyingStream(lie, in: .writing)
    rig.hub.attach(liar, saying: [1, 2, 3])
    rig.wakeWriter(liar)
    #expect(rig.causes.map { ($0 as? InternalFault)?.location } == ["hub.preface"] && liar.isClosed)
    #expect(rig.ending(of: session) == nil, "its sessions end with the link, whatever that is lost by")
  }

  @Test("ends a link whose packets are written through a gate", arguments: LyingStream.Lie.allCases)
  func gate(lie: LyingStream.Lie) throws {
    let rig = try HubRig(packets: Config.Packets(idle: nil, max: 4, delimiter: nil))
    let clients = [ScriptedStream(takesAll: true), ScriptedStream(takesAll: true)]
    for client in clients { rig.join(client) }
    let liar = LyingStream(lie, in: .writing)
    rig.hub.attach(liar)
    clients[0].willRead(.moved(9))
    rig.wakeReader(clients[0])
    #expect(rig.causes.map { ($0 as? InternalFault)?.location } == ["gate.write"] && liar.isClosed)
  }

  @Test(
    "at an endpoint that gets its 'on-close' bytes is reported, and the link closes",
    arguments: LyingStream.Lie.allCases)
  func endpointDrain(lie: LyingStream.Lie) throws {
    let rig = try LinkRig { $0.onClose = [1, 2, 3] }
    let client = ScriptedStream(reads: [.blocked(until: .readable), .ended], takesAll: true)
    let session = rig.join(client)
    let liar = LyingStream(lie, in: .writing)
    try #require(rig.openings.first).succeed(liar)
    for _ in 0..<10 {
      rig.wakeReader(client)
      rig.poller.runAgain()
      rig.pass(.seconds(2))
    }
    #expect(rig.ending(of: session) == .clientLeft && rig.link.status == .closed && liar.isClosed)
    #expect(rig.faults.map(\.location) == ["endpointDrain.write"])
  }

  @Test("at a client that is refused becomes its ending", arguments: LyingStream.Lie.allCases)
  func turnedAway(lie: LyingStream.Lie) throws {
    let poller = try Poller { _ in }
    let story = Story()
    let settings = RouteSettings(try routeConfig(endpoint: "sim://echo"), connector: ScriptedConnector())
    let group = SessionGroup(settings, on: poller, status: story.sink) { _, _ in }
    let liar = LyingStream(lie)
    group.refuse(liar, AcceptedConnection.Label(address: nil, listener: "tcp://:1"), 1, Ending(.full), text: [1, 2])
    let report = try #require(story.reports.first)
    #expect(report.ending.word == .internal && report.dropped == 0 && liar.isClosed)
  }

  @Test("at a client in the queue becomes its ending", arguments: LyingStream.Lie.allCases)
  func waiting(lie: LyingStream.Lie) throws {
    let clock = ManualClock()
    let poller = try Poller(clock: clock.clock) { _ in }
    var gone: [(any Error)?] = []
    let queue = ClientQueue(on: poller, notice: { place, _ in "number \(place)" }, hasLeft: { gone.append($1) })
    let label = AcceptedConnection.Label(address: nil, listener: "tcp://:1")
    let (first, liar) = (ScriptedStream(takesAll: true), LyingStream(lie, in: .writing))
    queue.append(first, label, waitingFor: .turn)
    queue.append(liar, label, waitingFor: .turn)
    #expect(gone.isEmpty && queue.count == 2)
    poller.timers.fireDue()
    #expect(gone.map { ($0 as? InternalFault)?.location } == ["preface.write"] && queue.count == 1)
  }

  @Test("at a connection in orderly close closes it", arguments: LyingStream.Lie.allCases)
  func lingering(lie: LyingStream.Lie) throws {
    let poller = try Poller { _ in }
    let closing = ClosingStreams(on: poller)
    let liar = LyingStream(lie, closesByHalf: true)
    closing.close(liar, otherSideFinished: false, readingAtMost: ClosingStreams.mostBeforeSession)
    #expect(!liar.isClosed && liar.readerWaits == .readable)
    liar.delegate?.stream(liar, handle: .hasBytesAvailable)
    #expect(liar.isClosed)
  }

  @Test("is reported with route and place", arguments: [true, false])
  func logged(isOfSession: Bool) throws {
    let fault = InternalFault("ring.look", "5 bytes from position 3 on, of 10 to 15 that are kept")
    let report = SessionReport(ending: Ending(.internal, fault), nanoseconds: 0)
    let label = AcceptedConnection.Label(address: nil, listener: "tcp://127.0.0.1:4001")
    let event: StatusEvent =
      isOfSession
      ? .sessionEnded(route: "gps", number: 17, label, report)
      : .link(route: "gps", endpoint: "sim://echo", .waiting(LinkStatus.Reason(losingBy: fault)), retry: nil)
    let line = LogLine(event)
    #expect(line.level == .error && LogLine.level(of: event) == .error)
    let fields = line.fields.compactMap { field in
      if case .text(let text) = field.value { (field.key, text) } else { nil }
    }
    let named = Dictionary(fields) { first, _ in first }
    #expect(named["route"] == "gps" && named["place"] == "ring.look")
    #expect(named["error"]?.hasSuffix("of 10 to 15 that are kept") == true)
  }
}

extension HubRig {
  /// The place of the fault that ended a session as `internal`.
  fileprivate func faultLocation(of session: Session) -> String? {
    guard ending(of: session) == .internal else { return nil }
    return (endings[session.number]?.first?.cause as? InternalFault)?.location
  }
}
