// How a reload changes a link at work.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A link whose settings change", .timeLimit(.minutes(5)))
struct LinkUpdateTests {
  @Test(
    "opens another endpoint and holds its clients, under any policy for an absent device",
    arguments: LinkAbsenceTests.absences)
  func otherEndpoint(absent: Config.Device.Absent) throws {
    let rig = try LinkRig { device in
      device.absent = absent
      device.onClose = [7]
    }
    let client = ScriptedStream(takesAll: true)
    let session = rig.join(client)
    let old = ScriptedStream(takesAll: true)
    old.closeBehavior.canHalfClose = false
    rig.openings[0].succeed(old)
    let other = ScriptedConnector()
    rig.link.update(try rig.settings(of: "tty:///dev/y", connector: other) { $0.absent = absent })
    #expect(old.written == [7] && old.isClosed && other.openings.count == 1)
    client.willRead(.bytes([1, 2]))
    rig.wakeReader(client)
    other.openings[0].fail()  // the old endpoint, just closed, may still be in the way
    #expect(rig.ending(of: session) == nil)
    rig.pass(.seconds(1))
    let new = ScriptedStream(takesAll: true)
    other.openings[1].succeed(new)
    #expect(new.written == [1, 2] && rig.ending(of: session) == nil && session.dropped == 0)
    #expect(rig.openings.count == 1 && rig.link.status == .open)
  }

  @Test("holds its clients for the time of one opening at most, where an absent device ends them")
  func otherEndpointIsNotThere() throws {
    let rig = try LinkRig { $0.absent = .close }
    let session = rig.join(ScriptedStream())
    rig.openings[0].succeed(ScriptedStream())
    let other = ScriptedConnector()
    rig.link.update(try rig.settings(of: "tty:///dev/y", connector: other) { $0.absent = .close })
    for _ in 0..<20 where rig.ending(of: session) == nil {
      other.openings.last?.fail()
      rig.pass(.seconds(1))
    }
    #expect(rig.ending(of: session) == .openFailed)
    #expect(other.openings.count >= 4)
  }

  @Test("holds them longer if an opening has more steps than connecting")
  func otherEndpointHasSteps() throws {
    let rig = try LinkRig { $0.absent = .close }
    let session = rig.join(ScriptedStream())
    rig.openings[0].succeed(ScriptedStream())
    let other = ScriptedConnector()
    rig.link.update(try rig.settings(of: "tty:///dev/y", connector: SteppedScript(other)) { $0.absent = .close })
    rig.pass(.seconds(49))
    other.openings.last?.fail()
    #expect(rig.ending(of: session) == nil)
    for _ in 0..<60 where rig.ending(of: session) == nil {
      rig.pass(.seconds(1))
      other.openings.last?.fail()
    }
    #expect(rig.ending(of: session) == .openFailed)
  }

  @Test("does not open another endpoint as long as no client needs it", arguments: ["closed", "lingering"])
  func unneeded(state: String) throws {
    let rig = try LinkRig { $0.linger = .seconds(5) }
    if state == "lingering" {
      let client = ScriptedStream()
      rig.join(client)
      rig.openings[0].succeed(ScriptedStream())
      rig.report(client, .errorOccurred(SystemError("read", ECONNRESET)))
    }
    let other = ScriptedConnector()
    rig.link.update(try rig.settings(of: "tty:///dev/y", connector: other) { _ in })
    #expect(other.openings.isEmpty && rig.link.status == .closed)
    rig.join(ScriptedStream())
    #expect(other.openings.count == 1)
  }

  @Test("switches to another endpoint at once while it tries the old one", arguments: ["opening", "waiting"])
  func stillTrying(state: String) throws {
    let rig = try LinkRig()
    rig.join(ScriptedStream())
    if state == "waiting" { rig.openings[0].fail() }
    let other = ScriptedConnector()
    rig.link.update(try rig.settings(of: "tty:///dev/y", connector: other) { _ in })
    #expect(rig.openings[0].isCancelled == (state == "opening") && other.openings.count == 1)
    rig.pass(.seconds(9))
    #expect(rig.openings.count == 1)
    other.openings[0].succeed(ScriptedStream())
    #expect(rig.link.status == .open)
  }

  @Test("changes nothing when the endpoint is the same, however it is written")
  func sameEndpoint() throws {
    let rig = try LinkRig()
    rig.join(ScriptedStream())
    let endpoint = ScriptedStream()
    rig.openings[0].succeed(endpoint)
    rig.link.update(try rig.settings(of: "tty:///dev/x?baud=115200") { _ in })
    #expect(!endpoint.isClosed && rig.words == ["opening", "open"])
  }

  @Test("opens at once when 'open' becomes always, and closes later when it no longer is")
  func always() throws {
    let rig = try LinkRig()
    rig.link.update(try rig.settings { $0.open = .always })
    #expect(rig.openings.count == 1)
    let endpoint = ScriptedStream()
    endpoint.closeBehavior.canHalfClose = false
    rig.openings[0].succeed(endpoint)
    rig.link.update(try rig.settings { $0.linger = .seconds(3) })
    rig.pass(.seconds(2))
    #expect(!endpoint.isClosed)
    rig.pass(.seconds(1))
    #expect(endpoint.isClosed && rig.link.status == .closed)
  }

  @Test("follows new policies from the next decision on")
  func policies() throws {
    let rig = try LinkRig()
    let session = rig.join(ScriptedStream())
    rig.openings[0].fail()
    let first = try #require(rig.pauses.last)
    rig.link.update(
      try rig.settings { device in
        device.retry = .seconds(8) ... .seconds(8)
        device.connectTimeout = .seconds(2)
      })
    rig.pass(first)
    #expect(rig.openings.count == 2, "the alarm that was set stays")
    rig.pass(.seconds(2))
    #expect(rig.openings[1].isCancelled)
    #expect(try #require(rig.pauses.last) >= .seconds(6))
    #expect(rig.ending(of: session) == nil)
    rig.link.update(try rig.settings { $0.absent = .close })
    rig.pass(.seconds(8))
    rig.openings[2].fail()
    #expect(rig.ending(of: session) == .openFailed)
  }

  /// An open link to a port with a line; it takes its client's bytes.
  private func open(
    unsent: [Int] = [], url: String = "tty:///dev/x?baud=9600"
  ) throws -> (rig: LinkRig, client: ScriptedStream, endpoint: ScriptedStream, line: ScriptedLine) {
    let rig = try LinkRig()
    rig.link.update(try rig.settings(of: url) { _ in })
    let client = ScriptedStream()
    rig.join(client)
    let endpoint = ScriptedStream(takesAll: true)
    endpoint.closeBehavior.canHalfClose = false
    let line = ScriptedLine(unsent: unsent)
    endpoint.serialLine = line
    rig.openings[0].succeed(endpoint)
    return (rig, client, endpoint, line)
  }

  @Test("sets other line parameters at the open port, after earlier bytes and before later ones")
  func lineSettings() throws {
    let (rig, client, endpoint, line) = try open(unsent: [20, 10, 0])
    client.willRead(.bytes([1]))
    rig.wakeReader(client)
    rig.link.update(try rig.settings(of: "tty:///dev/x?baud=57600&parity=even&dtr=on&rts=keep") { _ in })
    client.willRead(.bytes([2]))
    rig.wakeReader(client)
    for _ in 0..<3 {
      #expect(endpoint.written == [1] && line.applied.isEmpty, "the old bytes are not out")
      line.answer()
      rig.pass(.milliseconds(10))
    }
    #expect(line.applied == [LineSettings(bitsPerSecond: 57_600, parity: .even)])
    #expect(line.outputs.map(\.line) == [.dtr] && line.outputs.map(\.isOn) == [true])
    line.answer()
    #expect(endpoint.written == [1])
    line.answer()
    #expect(endpoint.written == [1, 2] && !endpoint.isClosed && rig.words == ["opening", "open"])
  }

  @Test("waits at most a second for bytes that the port does not send")
  func stuckLine() throws {
    let (rig, _, _, line) = try open(unsent: Array(repeating: 20, count: 1000))
    rig.link.update(try rig.settings(of: "tty:///dev/x?baud=57600") { _ in })
    for _ in 0..<99 {
      line.answer()
      rig.pass(.milliseconds(10))
    }
    #expect(line.applied.isEmpty)
    for _ in 0..<3 {
      line.answer()
      rig.pass(.milliseconds(10))
    }
    #expect(line.applied.count == 1)
  }

  @Test("reports a refused setting, and reopens the port while it holds its clients", arguments: [true, false])
  func refused(isRounded: Bool) throws {
    let (rig, client, endpoint, line) = try open()
    line.takes = { asked in
      if isRounded {
        .success(LineSettings(bitsPerSecond: 9600))
      } else {
        .failure(SystemError("ioctl TCSETS2", EINVAL))
      }
    }
    let other = ScriptedConnector()
    var reported: [LinkStatus] = []
    rig.onStatus = { reported.append($0) }
    rig.link.update(try rig.settings(of: "tty:///dev/x?baud=3000000", connector: other) { _ in })
    client.willRead(.bytes([5]))
    rig.wakeReader(client)
    while line.asked > 0 { line.answer() }
    let reason =
      isRounded
      ? "set tty:///dev/x?baud=3000000: the port does not support 3000000 bit/s (it runs at 9600)"
      : "ioctl TCSETS2 tty:///dev/x?baud=3000000: Invalid argument (EINVAL)"
    #expect(reported.first?.description == "waiting: \(reason)")
    #expect(endpoint.isClosed && other.openings.count == 1)
    let next = ScriptedStream(takesAll: true)
    other.openings[0].succeed(next)
    #expect(next.written == [5] && rig.endings.isEmpty)
  }

  @Test("does not use a late answer of a port that is gone for the next port")
  func lateAnswer() throws {
    let (rig, client, endpoint, line) = try open(unsent: [0])
    rig.link.update(try rig.settings(of: "tty:///dev/x?baud=57600") { _ in })
    line.answer()
    endpoint.willRead(.failed(SystemError("read", EIO)))
    rig.wakeReader(endpoint)
    rig.pass(.seconds(1))
    let next = ScriptedStream(takesAll: true)
    rig.openings[1].succeed(next)
    while line.asked > 0 { line.answer() }
    client.willRead(.bytes([6]))
    rig.wakeReader(client)
    #expect(next.written == [6] && rig.link.status == .open)
  }

  @Test(
    "reopens the port for settings that can't be changed while it is open",
    arguments: ["tty:///dev/x?baud=9600&hupcl=yes", "tty:///dev/x?baud=9600&exclusive=no"])
  func otherOptions(url: String) throws {
    let (rig, _, endpoint, line) = try open()
    rig.link.update(try rig.settings(of: url) { _ in })
    while line.asked > 0 { line.answer() }
    #expect(endpoint.isClosed && rig.openings.count == 2 && line.applied.isEmpty)
  }

  @Test("leaves the line alone when none of its settings changed")
  func sameLine() throws {
    let (rig, _, _, line) = try open(url: "tty:///dev/x?baud=9600&dtr=on")
    rig.link.update(try rig.settings(of: "tty:///dev/x?dtr=on&baud=9600&parity=none") { $0.linger = .seconds(1) })
    #expect(line.asked == 0)
    // A line with 'keep' from now on is left as it is.
    rig.link.update(try rig.settings(of: "tty:///dev/x?dtr=keep&baud=9600") { _ in })
    while line.asked > 0 { line.answer() }
    #expect(line.applied.isEmpty && line.outputs.isEmpty)
  }
}
