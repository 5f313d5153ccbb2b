// What is left when something that our code keeps does not fit together: the session, or the link, that it concerns ends as
// `internal`, and all others go on.

import Logging
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A fault of our own", .timeLimit(.minutes(1)))
struct HubFaultTests {
  /// Two clients, of whom the first is blocked, and a device that has said ten bytes.
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

  @Test("costs the session whose place in the ring is wrong, and no other", arguments: [11, 1000, UInt64.max])
  func cursor(place: UInt64) throws {
    let (rig, sessions, clients, endpoint) = try rig()
    sessions[0].cursor = place
    rig.wakeWriter(clients[0])
    #expect(rig.ending(of: sessions[0]) == .internal)
    let fault = rig.endings[sessions[0].number]?.first?.cause as? InternalFault
    #expect(fault?.place == "session.take")
    #expect(sessions[0].dropped == 0, "no figure of the wrong place gets into the account")
    endpoint.willRead(.moved(5))
    rig.wakeReader(endpoint)
    #expect(rig.ending(of: sessions[1]) == nil && clients[1].written == pattern(0..<15) && rig.losses.isEmpty)
  }

  @Test("costs the session whose bytes the ring does not keep any more")
  func released() throws {
    let (rig, sessions, clients, endpoint) = try rig()
    sessions[0].cursor = 10
    rig.hub.release()  // nobody needs them
    endpoint.willRead(.moved(5))
    clients[1].willWrite(.blocked(until: .writable))
    rig.wakeReader(endpoint)
    sessions[0].cursor = 3
    rig.wakeWriter(clients[0])
    #expect(rig.ending(of: sessions[0]) == .internal)
    #expect((rig.endings[sessions[0].number]?.first?.cause as? InternalFault)?.place == "ring.look")
    rig.wakeWriter(clients[1])
    #expect(rig.ending(of: sessions[1]) == nil && clients[1].written == pattern(0..<15))
  }

  @Test("costs the session whose stream says it has written more than it was given")
  func lyingClient() throws {
    let rig = try HubRig()
    let sessions = [rig.join(LyingStream()), rig.join(ScriptedStream(takesAll: true))]
    let endpoint = ScriptedStream(reads: [.moved(10)], takesAll: true)
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    #expect(rig.ending(of: sessions[0]) == .internal && rig.ending(of: sessions[1]) == nil)
  }

  @Test("costs the session whose stream says it has read more than there was room for")
  func lyingReader() throws {
    let rig = try HubRig()
    let liar = LyingStream()
    let sessions = [rig.join(liar), rig.join(ScriptedStream(takesAll: true))]
    rig.hub.attach(ScriptedStream(takesAll: true))
    rig.wakeReader(liar)
    #expect(rig.ending(of: sessions[0]) == .internal && rig.ending(of: sessions[1]) == nil)
  }

  @Test("costs the link, and its sessions, where it concerns all, and what comes next begins anew")
  func link() throws {
    let (rig, sessions, _, endpoint) = try rig(Config.Packets(idle: nil, max: 4, delimiter: nil))
    sessions[0].cursor = 8
    rig.hub.release()
    rig.hub.cutter = PacketCutter(PacketRule(Config.Packets(idle: nil, max: 4, delimiter: nil)), at: 0, oldest: 0)
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

  @Test("costs the link whose stream says it has read more than there was room for")
  func lyingEndpoint() throws {
    let rig = try HubRig()
    let session = rig.join(ScriptedStream(takesAll: true))
    let endpoint = LyingStream()
    rig.hub.attach(endpoint)
    rig.wakeReader(endpoint)
    #expect(rig.ending(of: session) == .internal && rig.losses.count == 1 && endpoint.isClosed)
  }

  @Test("is reported with route and place", arguments: [true, false])
  func logged(isOfSession: Bool) throws {
    let fault = InternalFault("ring.look", "5 bytes from position 3 on, of 10 to 15 that are kept")
    let report = SessionReport(ending: Ending(.internal, fault), nanoseconds: 0)
    let label = Arrival.Label(address: nil, listener: "tcp://127.0.0.1:4001")
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

/// Says of every call that it has moved a byte more than there was.
private final class LyingStream: ByteStream {
  var delegate: (any ByteStreamDelegate)?
  var readerWaits: Readiness = []
  var writerWaits: Readiness = []
  private(set) var isClosed = false
  func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer { .moved(run.count + 1) }
  func write(_ run: UnsafeRawBufferPointer) throws -> Transfer { .moved(run.count + 1) }
  func close() { isClosed = true }
}
