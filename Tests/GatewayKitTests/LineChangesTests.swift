// `LineChanges` and `LineRights` by themselves, with the test as their LineControl.

import StreamBroker
import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("What clients have changed on a line")
struct LineChangesTests {
  private final class Owner: LinePartOwner {
    private(set) var holds = 0
    private(set) var runs = 0
    func hold() { holds += 1 }
    func resume() { holds -= 1 }
    func report(_ event: ControlChannelEvent) {}
    func runAll() { runs += 1 }
    func reportOutputs(except session: UInt64?) {}
    func lineWasReset(by recipe: ResetRecipe, for session: UInt64?, _ result: Result<Void, SystemError>) {}
  }

  private let rig: HubRig
  private let owner = Owner()
  private let changes: LineChanges
  private let line = ScriptedLine()
  private let fast = LineSettings(bitsPerSecond: 115_200)

  init() throws {
    rig = try HubRig()
    changes = LineChanges(on: rig.poller)
    changes.owner = owner
    changes.attach(line)
  }

  private func carryOut(_ request: ControlChannelRequest, by session: UInt64) {
    changes.begin(request, by: session)
    if case .line(let change) = request { line.settings = change.applied(to: line.settings) }
    changes.carriedOut(request, by: session, isOver: false)
  }

  @Test("is made again on the next line, and commands wait for that", arguments: [true, false])
  func again(isForgotten: Bool) {
    carryOut(.line(.init(bitsPerSecond: 115_200)), by: 1)
    if isForgotten { changes.forget(1) }
    changes.detach()
    let next = ScriptedLine()
    changes.attach(next)
    #expect(changes.mustMakeAgain() == !isForgotten && changes.isRestoring == !isForgotten)
    if !isForgotten { owner.hold() }  // as LineControl's caller does
    changes.makeAgain()
    while next.asked > 0 { next.answer() }
    #expect(next.applied == (isForgotten ? [] : [fast]))
    #expect(!changes.isRestoring && owner.holds == 0 && owner.runs == 1)
  }

  @Test("is undone when the session that changed it is over, and no other, once all bytes are sent")
  func undone() {
    carryOut(.line(.init(bitsPerSecond: 115_200)), by: 1)
    changes.restore(after: 2)
    #expect(line.asked == 0 && changes.lastingSettings { $0 == 1 } == fast)
    #expect(changes.lastingSettings { _ in false } == LineSettings())
    changes.restore(after: 1)
    #expect(owner.holds == 1 && changes.isRestoring && line.applied.isEmpty && line.asked == 1)
    while line.asked > 0 { line.answer() }
    #expect(line.applied == [LineSettings()] && owner.holds == 0 && owner.runs == 1)
  }

  @Test("is undone on a detached line, too, if it was being made again, and its session was over meanwhile")
  func leftUnderWay() {
    carryOut(.line(.init(bitsPerSecond: 115_200)), by: 1)
    changes.detach()
    let next = ScriptedLine()
    changes.attach(next)
    #expect(changes.mustMakeAgain())
    owner.hold()
    changes.makeAgain()
    changes.restore(after: 1)
    changes.detach()
    #expect(next.asked == 1 && next.settings == LineSettings(), "the port has not answered")
    #expect(changes.settingsToRestore(of: next) == LineSettings())
    line.settings = LineSettings()
    changes.attach(line)
    changes.detach()
    #expect(changes.settingsToRestore(of: line) == nil)
  }

  @Test("ends a break with its session, and no other")
  func breaks() {
    carryOut(.break(isOn: true), by: 1)
    changes.endBreak(of: 2)
    #expect(line.breaks.isEmpty)
    changes.endBreak(of: 1)
    changes.endBreak(of: 1)
    #expect(line.breaks == [false])
  }

  @Test("gives the line to one session at a time, if all may write")
  func rights() {
    var rights = LineRights(.all)
    #expect(rights.hold(by: 1) == nil && rights.hold(by: 1) == nil)
    rights.release(by: 2)
    #expect(rights.hold(by: 2) == "session 1 holds the line settings")
    rights.release(by: 1)
    #expect(rights.hold(by: 2) == nil && rights.holder == 2)
    rights.update(.one)
    #expect(rights.holder == nil && rights.hold(by: 3) == nil && rights.holder == nil)
  }
}
