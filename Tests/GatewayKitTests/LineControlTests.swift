// `LineControl` by itself. The test is the upstream path, which is only held and resumed.

import Glibc
import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("Line control")
struct LineControlTests {
  /// Sessions have a hub, but that hub does not use this line control.
  private final class Rig: LineControlDelegate {
    let other: HubRig
    let control: LineControl
    private(set) var holds = 0
    /// Sessions whose control channel was read again, in order.
    private(set) var readOn: [UInt64] = []
    private var lastNumber: UInt64 = 0

    init(writers: Config.Clients.Writers) throws {
      other = try HubRig(writers: writers)
      control = LineControl(writers: writers, on: other.poller)
      control.delegate = self
    }

    func hold() { holds += 1 }
    func resume() { holds -= 1 }
    func purge(_ what: Purge, of line: any SerialLine, then done: @escaping (Result<Void, SystemError>) -> Void) {
      line.purge(what, done)
    }
    private(set) var refusals: [String] = []
    func lineWasAsked(_ request: ControlChannelRequest, refusal: String?, by session: Session) {
      if let refusal { refusals.append(refusal) }
    }
    func takeRequests(of session: Session) { readOn.append(session.number) }
    private(set) var resets: [String] = []
    func lineWasReset(by recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>) {
      resets.append("\(recipe.name) \(session.map(String.init) ?? "command")")
    }
    func lineChanged() {}

    func join(role: Config.Listen.Role = .writer, mayWrite: Bool = true) -> (ScriptedControlStream, Session) {
      lastNumber += 1
      let client = ScriptedControlStream()
      let label = AcceptedConnection.Label(address: nil, listener: "tcp://127.0.0.1:1", role: role)
      let session = Session(
        label, client: client, controlChannel: ControlChannel(ControlTexts(client)), number: lastNumber,
        hub: other.hub, buffer: 64, on: other.poller)
      if mayWrite { session.up.gainsRight() }
      control.join(session)
      _ = client.news()
      return (client, session)
    }

    func end(_ session: Session) {
      session.ending.end(other.poller.timers)
      control.leave(session)
      session.client.close()
    }
  }

  private let line = ScriptedLine()
  private let fast = ControlChannelRequest.line(.init(bitsPerSecond: 115_200))
  private let raise = ControlChannelRequest.output(.dtr, isOn: true)

  private func rig(writers: Config.Clients.Writers = .all) throws -> Rig {
    let rig = try Rig(writers: writers)
    rig.control.linkIs(.open)
    _ = rig.control.attach(line)
    return rig
  }

  @Test("holds the clients' input from a command's start to its end, and then reads the control channel again")
  func holds() throws {
    let rig = try rig()
    let (client, session) = rig.join()
    rig.control.add(raise, nil, of: session)
    #expect(rig.holds == 1 && rig.readOn == [] && client.news() == [])
    line.answer()
    #expect(rig.holds == 0 && rig.readOn == [1] && client.news() == [#"{"reply":null,"ok":true}"#])
    rig.end(session)
  }

  @Test("reports no break that the port has refused, also to a client that had the report", arguments: [EIO, ENOTTY])
  func refusedBreak(errno: Int32) throws {
    let rig = try rig()
    let (_, session) = rig.join()
    let (other, second) = rig.join()
    line.sets = .failure(SystemError("ioctl TIOCSBRK", errno))
    rig.control.add(.break(isOn: true), nil, of: session)
    rig.control.reportStatus(to: second)
    #expect(other.news().contains { $0.contains(#""break":true"#) })
    line.answer()
    #expect(other.news() == [#"{"event":"outputs","dtr":null,"rts":null,"break":false}"#])
    rig.end(session)
    #expect(line.breaks == [true], "there is no break to end")
    rig.end(second)
  }

  @Test("reports a break that could not be ended as on, and ends it when its client leaves")
  func stuckBreak() throws {
    let rig = try rig()
    let (_, session) = rig.join()
    let (other, second) = rig.join()
    rig.control.add(.break(isOn: true), nil, of: session)
    line.answer()
    line.sets = .failure(SystemError("ioctl TIOCCBRK", ETIMEDOUT))
    rig.control.add(.break(isOn: false), nil, of: session)
    line.answer()
    #expect(other.news().allSatisfy { $0.contains(#""break":true"#) })
    rig.end(session)
    #expect(line.breaks == [true, false, false])
    rig.end(second)
  }

  @Test("logs what a remote port has refused, and reports the state in force before the answer")
  func refusedOutput() throws {
    let rig = try rig()
    let (client, session) = rig.join()
    line.sets = .failure(SystemError("SET-CONTROL", EPERM))
    rig.control.add(raise, nil, of: session)
    line.outputStates.dtr = false  // as the server has answered
    line.answer()
    let event = #"{"event":"outputs","dtr":false,"rts":null,"break":false}"#
    #expect(client.news() == [event, #"{"reply":null,"ok":false,"error":"Operation not permitted"}"#])
    #expect(rig.refusals == ["Operation not permitted"])
    rig.end(session)
  }

  @Test("returns to the settings of a reload that came while a client's change was carried out")
  func reloadDuringChange() throws {
    let rig = try rig()
    let (_, session) = rig.join()
    rig.control.add(.line(.init(parity: .even)), nil, of: session)
    #expect(line.asked == 1 && line.applied == [])
    line.settings = LineSettings(bitsPerSecond: 115_200)
    rig.control.isSet(to: line.settings)
    while line.asked > 0 { line.answer() }
    #expect(line.settings == LineSettings(bitsPerSecond: 115_200, parity: .even))
    rig.end(session)
    while line.asked > 0 { line.answer() }
    #expect(line.settings == LineSettings(bitsPerSecond: 115_200))
  }

  enum Case: String, CaseIterable {
    case monitor, noWriter, otherWriter, otherHolder, noLine, waiting

    var refusal: String {
      switch self {
      case .monitor: "a monitor may only read"
      case .noWriter: "no client may write on this route"
      case .otherWriter: "another client has the writer role"
      case .otherHolder: "session 1 holds the line settings"
      case .noLine: "not supported by this endpoint"
      case .waiting: "the link is waiting"
      }
    }
  }

  @Test("refuses with the reason, and holds no input for that", arguments: Case.allCases)
  func refuses(_ scenario: Case) throws {
    let rig = try rig(writers: scenario == .otherWriter ? .one : scenario == .noWriter ? .none : .all)
    let (_, first) = rig.join()
    if scenario == .otherHolder {
      rig.control.add(raise, nil, of: first)
      line.answer()
    }
    if scenario == .noLine || scenario == .waiting { rig.control.detach() }
    if scenario == .noLine { _ = rig.control.attach(nil) }
    if scenario == .waiting { rig.control.linkIs(.waiting(.lost(nil))) }
    let (client, second) = rig.join(
      role: scenario == .monitor ? .monitor : .writer,
      mayWrite: ![.monitor, .otherWriter, .noWriter].contains(scenario))
    rig.control.add(fast, nil, of: second)
    #expect(client.news() == [#"{"reply":null,"ok":false,"error":"\#(scenario.refusal)"}"#])
    #expect(rig.holds == 0 && line.asked == 0)
    rig.end(first)
    rig.end(second)
  }

  @Test("keeps a command for a link that is being opened", arguments: [LinkStatus.opening, .closed, .draining])
  func waits(status: LinkStatus) throws {
    let rig = try rig()
    let (client, session) = rig.join()
    rig.control.detach()
    rig.control.linkIs(status)
    rig.control.add(raise, nil, of: session)
    #expect(client.news().allSatisfy { !$0.contains("reply") } && line.asked == 0)
    _ = rig.control.attach(line)
    rig.control.runAll()
    #expect(rig.holds == 1 && line.asked == 1)
    rig.end(session)
  }

  @Test("holds the input until the settings of an ended session are undone", arguments: [true, false])
  func undoes(endsInFlight: Bool) throws {
    let rig = try rig()
    let (_, session) = rig.join()
    let (_, other) = rig.join()
    rig.control.add(fast, nil, of: session)
    if !endsInFlight { while line.asked > 0 { line.answer() } }
    rig.end(session)
    rig.control.add(raise, nil, of: other)
    #expect(rig.holds == 1 && line.outputs.isEmpty)
    while line.asked > 0 { line.answer() }
    #expect(rig.holds == 0 && line.outputs.count == 1)
    #expect(line.applied == [LineSettings(bitsPerSecond: 115_200), LineSettings()])
    rig.end(other)
  }

  @Test("undoes settings of a client that ends while they are made again on the next endpoint")
  func endsWhileMadeAgain() throws {
    let rig = try rig()
    let (_, session) = rig.join()
    rig.control.add(fast, nil, of: session)
    while line.asked > 0 { line.answer() }
    rig.control.detach()
    let next = ScriptedLine()
    #expect(rig.control.attach(next))
    rig.control.begin()
    rig.end(session)
    while next.asked > 0 { next.answer() }
    #expect(next.applied.map(\.bitsPerSecond) == [115_200, 9600] && next.settings == LineSettings())
  }

  @Test("resumes nothing for an endpoint that is gone: the next one starts without holds")
  func gone() throws {
    let rig = try rig()
    let (client, session) = rig.join()
    rig.control.add(raise, nil, of: session)
    rig.control.detach()
    line.answer()
    #expect(rig.holds == 1 && client.news() == [#"{"reply":null,"ok":true}"#])
    rig.end(session)
  }

  @Test("returns the settings to restore on a detached line, only if a client has changed them")
  func settingsToRestore() throws {
    let rig = try rig()
    let (_, session) = rig.join()
    rig.control.detach()
    #expect(rig.control.settingsToRestore(of: line) == nil)
    _ = rig.control.attach(line)
    rig.control.add(fast, nil, of: session)
    rig.control.detach()
    #expect(rig.control.settingsToRestore(of: line) == LineSettings())
    rig.control.isSet(to: LineSettings())
    #expect(rig.control.settingsToRestore(of: line) == nil)
    rig.end(session)
  }
}
