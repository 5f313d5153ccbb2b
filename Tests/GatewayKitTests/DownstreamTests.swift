// `Downstream` by itself, with the test as its hub: when it reads, pauses and resumes, and what it reports.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The downstream path", .timeLimit(.minutes(5)))
struct DownstreamTests {
  /// Records what is reported to it.
  private final class Owner: DownstreamDelegate {
    var causes: [(any Error)?] = []
    var settled: [UInt64] = []
    var ended: [(number: UInt64, word: Ending.Word)] = []
    var drops: [UInt64] = []
    var faults = 0
    var sessions = SessionList()
    func outputIsOver(_ cause: (any Error)?) { causes.append(cause) }
    func evaluate(_ session: Session) { settled.append(session.number) }
    func end(_ session: Session, _ ending: Ending) {
      ended.append((session.number, ending.word))
      sessions.remove(session)
    }
    func sessionDrops(_ session: Session, bytes: UInt64) { drops.append(bytes) }
    func isBroken(_ fault: InternalFault) { faults += 1 }
  }

  private let owner = Owner()
  private let rig: HubRig
  private let downstream: Downstream

  init() throws {
    rig = try HubRig(buffer: 16)
    downstream = Downstream(Hub.SharedPolicy(rig.hub.policy), owner.sessions, on: rig.poller)
    downstream.delegate = owner
  }

  private func join(_ client: ScriptedStream) -> Session {
    let label = AcceptedConnection.Label(address: nil, listener: "tcp://127.0.0.1:1", role: .writer)
    let number = UInt64(owner.sessions.all.count + 1)
    let session = Session(label, client: client, number: number, hub: rig.hub, buffer: 16, on: rig.poller)
    downstream.start(session)
    owner.sessions.add(session)
    downstream.join(session)
    return session
  }

  @Test("gives each client everything in the turn that reads it, and keeps nothing")
  func plain() {
    let clients = [ScriptedStream(takesAll: true), ScriptedStream(takesAll: true)]
    let sessions = clients.map { join($0) }
    let endpoint = ScriptedStream(reads: [.moved(10)])
    downstream.attach(endpoint)
    downstream.read()
    #expect(clients.allSatisfy { $0.written == pattern(0..<10) })
    #expect(sessions.allSatisfy { $0.down.bytes == 10 && $0.down.kept(head: downstream.head) == 0 })
    #expect(downstream.head == 10 && !downstream.waitsForRoom && owner.settled.isEmpty)
    for client in clients { client.close() }
  }

  @Test("stops reading while a client fills the ring, and resumes as soon as there is room")
  func pause() {
    let client = ScriptedStream(writes: [.blocked(until: .writable)], takesAll: true)
    let session = join(client)
    let endpoint = ScriptedStream(reads: [.moved(16), .moved(4)])
    downstream.attach(endpoint)
    downstream.read()
    #expect(downstream.waitsForRoom && endpoint.readerWaits == [])
    #expect(session.down.kept(head: downstream.head) == 16)
    downstream.give(to: session)
    #expect(client.written == pattern(0..<20) && !downstream.waitsForRoom && endpoint.readerWaits == .readable)
    client.close()
  }

  @Test("is over once the endpoint is read to its end, also after a write to the endpoint failed")
  func over() {
    let client = ScriptedStream(takesAll: true)
    _ = join(client)
    let endpoint = ScriptedStream(reads: [.moved(5)])
    downstream.attach(endpoint)
    downstream.writeFailed(SystemError("write", 32))
    #expect(client.written == pattern(0..<5), "what it sent before is delivered")
    #expect(owner.causes.map { ($0 as? SystemError)?.errno } == [32])
    downstream.detach()
    downstream.attach(ScriptedStream(reads: [.ended]))
    downstream.read()
    #expect(owner.causes.count == 2 && owner.causes.last! == nil, "the failure was the other endpoint's")
    client.close()
  }

  @Test("reports a session that is leaving, or whose client accepts no more")
  func asks() {
    let broken = ScriptedStream(writes: [.failed(SystemError("write", 32))])
    let leaving = ScriptedStream(takesAll: true)
    let (one, other) = (join(broken), join(leaving))
    other.ending.leave(Ending(.kicked), at: 0, upTo: downstream.head)
    downstream.attach(ScriptedStream(reads: [.moved(5)]))
    downstream.read()
    #expect(owner.settled == [one.number, other.number] && one.dropped == 5)
    for client in [broken, leaving] { client.close() }
  }

  @Test("counts what was kept for a removed session, and resumes reading once that frees the ring")
  func leave() {
    let client = ScriptedStream()
    let session = join(client)
    let endpoint = ScriptedStream(reads: [.moved(16), .moved(3)])
    downstream.attach(endpoint)
    downstream.read()
    #expect(downstream.waitsForRoom)
    owner.sessions.remove(session)
    downstream.leave(session)
    #expect(session.dropped == 16 && !downstream.waitsForRoom && downstream.head == 19)
    client.close()
  }
}
