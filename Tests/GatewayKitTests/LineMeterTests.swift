// What holds up the output of a serial line, and when stopped output is started.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The meter of a line", .timeLimit(.minutes(1)))
struct LineMeterTests {
  private final class Port {
    let rig: HubRig
    let line: ScriptedLine
    let client = ScriptedStream()
    let device: ScriptedStream
    let session: Session
    var hold: OutputHold? { rig.hub.upstream.lineMeter?.hold }

    init(_ flow: LineSettings.FlowControl, unsent: [Int] = [], takesAll: Bool) throws {
      rig = try HubRig()
      line = ScriptedLine(unsent: unsent)
      line.settings.flowControl = flow
      device = ScriptedStream(takesAll: takesAll)
      device.serialLine = line
      session = rig.join(client)
      rig.hub.attach(device)
    }

    func send() {
      client.willRead(.moved(3))
      rig.wakeReader(client)
    }

    func pass(_ time: Duration) {
      var left = time
      while left > .zero {
        rig.advance(by: .milliseconds(100), step: .milliseconds(100))
        for _ in 0..<4 { line.answer() }
        left -= .milliseconds(100)
      }
    }
  }

  @Test("tells since when XOFF has held up bytes, in the driver or before it, and forgets it when they move")
  func xoff() throws {
    let blocked = try Port(.xonxoff, takesAll: false)
    blocked.send()
    let began = blocked.rig.poller.timers.now
    blocked.pass(.seconds(1))
    #expect(blocked.hold == nil)
    blocked.pass(.seconds(1))
    #expect(blocked.hold?.cause == .xoff)
    #expect(blocked.hold.map { $0.since - began <= 600_000_000 } ?? false)
    blocked.device.willWrite(.moved(3))
    blocked.rig.wakeWriter(blocked.device)
    blocked.pass(.seconds(1))
    #expect(blocked.hold == nil)
    let taken = try Port(.xonxoff, unsent: [5, 5, 5, 5], takesAll: true)
    taken.send()
    taken.pass(.seconds(2))
    #expect(taken.hold?.cause == .xoff)
    taken.pass(.seconds(2))
    #expect(taken.hold == nil && taken.line.asked == 0, "nothing is asked any more")
  }

  @Test("names CTS only while that line is off", arguments: [true, false])
  func cts(isOn: Bool) throws {
    let port = try Port(.rtscts, takesAll: false)
    port.line.conditionNow = .success(LineCondition(inputs: isOn ? [.cts] : []))
    port.send()
    port.pass(.seconds(3))
    #expect(port.hold?.cause == (isOn ? nil : .cts))
  }

  @Test("does not look at a line without flow control")
  func without() throws {
    let port = try Port(.none, takesAll: false)
    port.send()
    port.rig.advance(by: .seconds(3), step: .milliseconds(100))
    #expect(port.line.asked == 0)
  }

  @Test("starts output when the last client has left, when what waited was dropped, and for a first client")
  func starts() throws {
    let port = try Port(.xonxoff, takesAll: false)
    for _ in 0..<4 { port.line.answer() }
    port.send()
    #expect(port.line.starts == 0)
    port.rig.hub.end(port.session, Ending(.clientLost))
    for _ in 0..<4 { port.line.answer() }
    #expect(port.line.starts == 1)
    let (second, third) = (ScriptedStream(), ScriptedStream())
    port.rig.join(second)
    for _ in 0..<4 { port.line.answer() }
    #expect(port.line.starts == 2)
    let session = port.rig.join(third)
    for _ in 0..<4 { port.line.answer() }
    #expect(port.line.starts == 2, "it is not the first")
    third.willRead(.moved(3))
    port.rig.wakeReader(third)
    port.rig.hub.end(session, Ending(.clientLost))
    for _ in 0..<4 { port.line.answer() }
    #expect(port.line.starts == 3 && session.dropped == 3)
  }

  @Test("leaves bytes that the port still sends to the device's XOFF, and starts them when nothing moves")
  func due() throws {
    let port = try Port(.xonxoff, unsent: [9, 5, 5], takesAll: true)
    port.rig.hub.end(port.session, Ending(.clientLost))
    port.line.answer()
    port.pass(.seconds(5))
    #expect(port.line.starts == 0, "fewer than before: it still sends")
    port.pass(.seconds(5))
    for _ in 0..<4 { port.line.answer() }
    #expect(port.line.starts == 1)
  }

  @Test("shows what the driver has lost, and does not wait long for a slow one")
  func overruns() throws {
    let port = try Port(.none, takesAll: true)
    port.line.conditionNow = .success(LineCondition(counts: LineCounts(overruns: 2, bufferOverruns: 5)))
    var answers = 0
    port.rig.hub.upstream.lineMeter?.refresh { answers += 1 }
    port.line.answer()
    #expect(answers == 1 && port.rig.hub.upstream.lineMeter?.overruns == 7)
    port.rig.hub.upstream.lineMeter?.refresh { answers += 1 }
    port.rig.advance(by: .milliseconds(300))
    #expect(answers == 2)
    port.line.answer()
    #expect(answers == 2)
  }
}
