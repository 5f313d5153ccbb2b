// Which client gets the writer role, as a table: the role by itself, without a hub.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The writer role")
struct WriterRoleTests {
  private let rig: HubRig

  init() throws { rig = try HubRig() }

  private func session(_ number: UInt64, _ role: Config.Listen.Role = .writer) -> Session {
    let label = AcceptedConnection.Label(address: nil, listener: "tcp://127.0.0.1:1", role: role)
    return Session(label, client: ScriptedStream(), number: number, hub: rig.hub, buffer: 64, on: rig.poller)
  }

  private func role(_ writers: Config.Clients.Writers = .one, _ takeover: Config.Clients.Takeover = .refuse)
    -> WriterRole
  {
    var policy = rig.hub.policy
    (policy.writers, policy.takeover) = (writers, takeover)
    return WriterRole(policy)
  }

  private static let idle = Config.Clients.Takeover.idle(.seconds(3))

  @Test(
    "goes to a new writer if it is free, or with takeover newest, and never to a monitor",
    arguments: [
      (Config.Clients.Writers.one, Config.Clients.Takeover.refuse, false, true), (.one, .refuse, true, false),
      (.one, .newest, true, true), (.one, idle, true, false), (.one, idle, false, true), (.all, .newest, false, false),
      (.none, .newest, false, false),
    ])
  func newcomer(
    writers: Config.Clients.Writers, takeover: Config.Clients.Takeover, isHeld: Bool, getsIt: Bool
  ) {
    var role = role(writers, takeover)
    let (holder, newcomer, monitor) = (session(1), session(2), session(3, .monitor))
    if isHeld { role.move(to: holder, at: 0) }
    #expect(role.isFor(newcomer: newcomer) == getsIt)
    #expect(!role.isFor(newcomer: monitor))
    for session in [holder, newcomer, monitor] { session.client.close() }
  }

  @Test(
    "may be taken from a holder that has been idle for the policy's time, and requested",
    arguments: [
      (idle, UInt64(3_000_000_000), true, true), (idle, 2_999_999_999, false, false),
      (.newest, 0, false, true), (.refuse, 9_000_000_000, false, false),
    ])
  func taking(takeover: Config.Clients.Takeover, now: UInt64, bySending: Bool, byAsking: Bool) {
    var role = role(.one, takeover)
    let (holder, other, monitor) = (session(1), session(2), session(3, .monitor))
    role.move(to: holder, at: 0)
    #expect(role.mayTake(other, at: now) == bySending && !role.mayTake(monitor, at: now))
    #expect(role.refusal(toTake: other, at: now) == (byAsking ? nil : "session 1 has the writer role"))
    #expect(role.refusal(toTake: monitor, at: now) == "a monitor may only read")
    #expect(role.refusal(toTake: holder, at: now) == nil)
    role.isUsed(at: now)
    #expect(!role.mayTake(other, at: now))
    for session in [holder, other, monitor] { session.client.close() }
  }

  @Test("stays with a holder whose input is not delivered yet, however long it has been idle")
  func onItsWay() throws {
    var role = role(.one, Self.idle)
    let (holder, other) = (session(1), session(2))
    role.move(to: holder, at: 0)
    (holder.client as? ScriptedStream)?.willRead(.bytes([1]))
    _ = try holder.pump.turn(mayWrite: false)
    #expect(!role.mayTake(other, at: 9_000_000_000))
    for session in [holder, other] { session.client.close() }
  }

  @Test("goes to the oldest writer that still sends")
  func heir() {
    var role = role()
    let sessions = [session(4), session(2), session(1, .monitor), session(3), session(5)]
    sessions[1].pump.endSource()
    role.move(to: sessions[3], at: 0)
    #expect(role.heir(among: sessions) === sessions[0])
    role.passesOn(false)
    #expect(role.heir(among: sessions) == nil)
    for session in sessions { session.client.close() }
  }
}
