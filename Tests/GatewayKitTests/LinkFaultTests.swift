// Runs a scenario with its first fallible call failing, then the second, until none failed. After each run every
// session has one ending, nothing is open, and the counts are right.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A link whose nth step fails", .timeLimit(.minutes(5)))
struct LinkFaultTests {
  /// What a link may do besides carrying bytes. The running pattern has no 255: those are the link's own bytes.
  enum Policy: CaseIterable {
    case plain, own, held, dropped, sentAway

    func change(_ device: inout Config.Device) {
      guard self != .plain, self != .own else { return }
      device.onOpen = [255, 255, 255]
      device.onClose = [255, 255]
      device.linger = .seconds(1)
      device.absent = self == .held ? .hold : self == .dropped ? .discard : .close
      if self == .dropped { device.flush = .both }
    }
  }

  @Test("ends every session once, closes every stream and accounts for every byte", arguments: Policy.allCases)
  func everyStep(policy: Policy) throws {
    let isShared = policy != .own
    for step in 0..<1000 {
      let faults = Faults(failing: step)
      let rig = try LinkRig(isShared: isShared, policy.change)
      let clients = scenarioClients(faults, count: isShared ? 3 : 1)
      let sessions = clients.map { rig.join($0) }
      var endpoints: [ScriptedStream] = []
      for _ in 0..<400 where rig.endings.count < sessions.count || !rig.isIdle {
        answerOpenings(of: rig, faults, &endpoints, end: !isShared)
        for stream in clients + endpoints {
          rig.wakeWriter(stream)
          rig.wakeReader(stream)
        }
        rig.poller.runAgain()
        rig.pass(.seconds(1))
      }
      for _ in 0..<2 { rig.pass(.seconds(2)) }  // an endpoint that drains, and had sent in its first two seconds
      for session in sessions {
        let word = rig.ending(of: session)
        #expect(word != nil, "step \(step): a session hangs")
        if !faults.wasReached && policy != .dropped {
          #expect(word == .clientLeft && session.up.bytes == 20 && session.dropped == 0)
        }
      }
      let open = (clients + endpoints).count { !$0.isClosed }
      #expect(open == 0, "step \(step)")
      // The endpoint received what the sessions count as delivered.
      let received = endpoints.reduce(0) { $0 + $1.written.count { $0 != 255 } }
      #expect(received == sessions.reduce(0) { $0 + Int($1.up.bytes) })
      if isShared {
        for session in sessions where !faults.wasReached { #expect(session.up.bytes + session.dropped == 20) }
      }
      for (client, session) in zip(clients, sessions) { #expect(client.written.count == Int(session.down.bytes)) }
      #expect(rig.link.status == .closed)
      if !faults.wasReached {
        #expect(step > 10)
        return
      }
    }
    Issue.record("the scenario never ran to its end")
  }

  private func scenarioClients(_ faults: Faults, count: Int) -> [ScriptedStream] {
    (0..<count).map { _ in
      ScriptedStream(
        reads: [.moved(9), .blocked(until: .readable), .moved(11), .ended],
        writes: [.moved(3), .blocked(until: .writable)], takesAll: true, faults: faults)
    }
  }

  /// Opening is a fallible step too.
  private func answerOpenings(of rig: LinkRig, _ faults: Faults, _ endpoints: inout [ScriptedStream], end: Bool) {
    for opening in rig.openings where !opening.isAnswered && !opening.isCancelled {
      do {
        try faults.step("open")
        let endpoint = ScriptedStream(
          reads: [.moved(30), .blocked(until: .readable), .moved(30)] + (end ? [.ended] : []),
          writes: [.moved(4), .blocked(until: .writable)], takesAll: true, faults: faults)
        endpoints.append(endpoint)
        opening.succeed(endpoint)
      } catch {
        opening.fail(EIO)
      }
    }
  }
}
