// `Upstream` by itself, with the test as its hub, which records what is reported.

import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The upstream path")
struct UpstreamTests {
  /// Sessions have a hub, but that hub does not use this upstream path.
  private final class Rig: UpstreamDelegate {
    let other: HubRig
    let lineControl: LineControl?
    let upstream: Upstream
    let endpoint: ScriptedStream
    private(set) var sessions: [Session] = []
    private(set) var news: [String] = []

    init(
      writers: Config.Clients.Writers = .all, packets: Config.Packets? = nil,
      endpoint: ScriptedStream = ScriptedStream(takesAll: true)
    ) throws {
      other = try HubRig()
      self.endpoint = endpoint
      var policy = other.hub.policy
      (policy.writers, policy.packets) = (writers, packets)
      let control = LineControl(writers: writers, on: other.poller)
      lineControl = control
      upstream = Upstream(policy, on: other.poller)
      control.delegate = upstream
      upstream.delegate = self
    }

    deinit { for session in sessions { session.client.close() } }

    func evaluate(_ session: Session) { news.append("settle \(session.number)") }
    func end(_ session: Session, _ ending: Ending) { news.append("end \(session.number) \(ending.word)") }
    func clientFailed(_ session: Session, _ cause: (any Error)?) { news.append("client failed \(session.number)") }
    func lookForEnd(of session: Session) { news.append("look \(session.number)") }
    func writeFailed(_ cause: any Error) { news.append("write failed") }
    func lineWasAsked(_ request: ControlChannelRequest, refusal: String?, by session: Session) {}
    func writerChanged(from: Session?, to: Session?) {
      news.append("writer \(from?.number ?? 0) to \(to?.number ?? 0)")
    }

    func lineWasReset(by recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>) {}
    func lineChanged() {}

    func join(_ client: ScriptedStream = ScriptedStream(), role: Config.Listen.Role = .writer) -> Session {
      let label = AcceptedConnection.Label(address: nil, listener: "tcp://127.0.0.1:1", role: role)
      let session = Session(
        label, client: client, number: UInt64(sessions.count + 1), hub: other.hub, buffer: 16384, on: other.poller)
      sessions.append(session)
      upstream.join(session)
      return session
    }

    func attach(saying words: [UInt8] = []) { upstream.attach(endpoint, saying: words) }

    func send(_ steps: ScriptedStream.Step..., from session: Session) {
      guard let client = session.client as? ScriptedStream else { return }
      for step in steps { client.willRead(step) }
      upstream.takeInput(of: session)
    }
  }

  private static let takesNothing = ScriptedStream.Step.blocked(until: .writable)

  @Test("writes input directly while no other client waits, and reports nothing")
  func straightThrough() throws {
    let rig = try Rig()
    let session = rig.join()
    rig.attach()
    rig.send(.bytes([1, 2]), from: session)
    #expect(rig.endpoint.written == [1, 2] && session.up.bytes == 2 && rig.news == [])
    #expect(rig.endpoint.writerWaits == [])
  }

  @Test("serves waiting writers in the order they were blocked, 4 KiB per turn")
  func turns() throws {
    let rig = try Rig(endpoint: ScriptedStream(writes: [Self.takesNothing], takesAll: true))
    let (first, second) = (rig.join(), rig.join())
    rig.attach()
    rig.send(.bytes([UInt8](repeating: 1, count: 5000)), from: first)
    rig.send(.bytes([UInt8](repeating: 2, count: 5000)), from: second)
    #expect(rig.endpoint.written == [] && rig.endpoint.writerWaits == .writable && !rig.upstream.queue.isEmpty)
    #expect(rig.news == ["look 1", "look 2"])
    rig.upstream.serve()
    let runs = [(1, 4096), (2, 4096), (1, 904), (2, 904)]
    #expect(rig.endpoint.written == runs.flatMap { [UInt8](repeating: UInt8($0.0), count: $0.1) })
    #expect(rig.endpoint.writerWaits == [] && rig.upstream.queue.isEmpty)
  }

  @Test("keeps input until it was resumed as often as it was held")
  func holds() throws {
    let rig = try Rig()
    let session = rig.join()
    rig.attach()
    rig.upstream.hold()
    rig.upstream.hold()
    rig.send(.bytes([1]), from: session)
    rig.upstream.serve()
    rig.upstream.resume()
    #expect(rig.endpoint.written == [] && !rig.upstream.takesInput && rig.upstream.canReachEndpoint)
    rig.upstream.resume()
    #expect(rig.endpoint.written == [1])
    rig.upstream.resume()
    rig.upstream.hold()
    rig.send(.bytes([2]), from: session)
    #expect(rig.endpoint.written == [1], "a resume too many counts for nothing")
  }

  @Test("writes the link's 'on-open' bytes first, however few the endpoint takes at a time")
  func preface() throws {
    let rig = try Rig(endpoint: ScriptedStream(writes: [.moved(1), Self.takesNothing], takesAll: true))
    let session = rig.join()
    rig.send(.bytes([3]), from: session)
    rig.attach(saying: [1, 2])
    #expect(rig.endpoint.written == [1] && rig.endpoint.writerWaits == .writable && !rig.upstream.takesInput)
    rig.upstream.serve()
    #expect(rig.endpoint.written == [1, 2, 3])
  }

  @Test("writes to the next endpoint after one that took no more bytes")
  func nextAfterStopped() throws {
    let rig = try Rig()
    let session = rig.join()
    rig.attach()
    rig.upstream.stopWriting()
    rig.upstream.detach()
    #expect(!rig.upstream.canReachEndpoint)
    rig.send(.bytes([1, 2]), from: session)
    rig.attach()
    #expect(rig.endpoint.written == [1, 2] && rig.upstream.canReachEndpoint)
  }

  @Test("keeps input that a failed endpoint has not taken for the next one", arguments: [true, false])
  func failure(duringPreface: Bool) throws {
    let rig = try Rig(endpoint: ScriptedStream(writes: [.failed(SystemError("write", 5))]))
    let session = rig.join()
    rig.attach(saying: duringPreface ? [9] : [])
    rig.send(.bytes([1, 2]), from: session)
    #expect(rig.news.filter { $0 == "write failed" }.count == 1)
    #expect(rig.upstream.writeFailure != nil && !rig.upstream.canReachEndpoint && session.pump.count == 2)
    rig.upstream.detach()
    let next = ScriptedStream(takesAll: true)
    rig.upstream.attach(next, saying: [])
    #expect(next.written == [1, 2] && rig.upstream.writeFailure == nil)
  }

  @Test("drops and counts input while the endpoint is away if the policy says so, also input kept before")
  func drops() throws {
    let rig = try Rig()
    let session = rig.join()
    rig.send(.bytes([1, 2]), from: session)
    rig.upstream.setDropsInput(true)
    rig.send(.bytes([3]), .ended, from: session)
    #expect(session.dropped == 3 && session.pump.count == 0 && rig.upstream.queue.isEmpty)
    rig.attach()
    #expect(!rig.upstream.dropsInput && rig.endpoint.written == [])
  }

  @Test("moves the writer role from an ended session to its heir, but to none while all are ended")
  func heir() throws {
    let rig = try Rig(writers: .one)
    let (first, second, third) = (rig.join(), rig.join(role: .monitor), rig.join())
    #expect(rig.upstream.writer === first && first.up.mayWrite && !second.up.mayWrite && !third.up.mayWrite)
    rig.upstream.leave(first)
    #expect(rig.upstream.writer === third && third.up.mayWrite && !first.up.mayWrite)
    rig.upstream.withoutHeir { rig.upstream.leave(third) }
    #expect(rig.upstream.writer == nil)
    #expect(rig.news == ["writer 0 to 1", "writer 1 to 3", "writer 3 to 0"])
  }

  @Test("makes others wait while a client finishes its packet")
  func packets() throws {
    let rig = try Rig(packets: Config.Packets(idle: nil, max: 100, delimiter: [10]))
    let (first, second) = (rig.join(), rig.join())
    rig.attach()
    rig.send(.bytes([1]), from: first)
    rig.send(.bytes([2, 10]), from: second)
    #expect(rig.endpoint.written == [1] && rig.upstream.queue.othersWait(than: first))
    rig.send(.bytes([1, 10]), from: first)
    #expect(rig.endpoint.written == [1, 1, 10, 2, 10])
  }
}
