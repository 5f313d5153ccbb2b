// The state machine of a link, row by row, with the events that come too late or twice; and its pauses.

import StreamTestKit
import Testing

@testable import GatewayKit

@Suite("A device", .timeLimit(.minutes(1)))
struct DeviceTests {
  private static let retry = Duration.milliseconds(250) ... .seconds(30)
  private static let first = Duration.milliseconds(250)

  struct Row: Sendable, CustomStringConvertible {
    let before: [Device.Event]
    let event: Device.Event
    let step: Device.Step
    let state: Device.State
    var description: String { "\(before) then \(event)" }
  }

  private static let opening: [Device.Event] = [.wanted]
  private static let open: [Device.Event] = [.wanted, .opened]
  private static let waiting: [Device.Event] = [.wanted, .failed]

  static let rows: [Row] = [
    Row(before: [], event: .wanted, step: .open, state: .opening),
    Row(before: [], event: .unwanted, step: .nothing, state: .closed),
    Row(before: [], event: .opened, step: .nothing, state: .closed),
    Row(before: [], event: .failed, step: .nothing, state: .closed),
    Row(before: [], event: .lost, step: .nothing, state: .closed),
    Row(before: [], event: .retryIsDue, step: .nothing, state: .closed),
    Row(before: [], event: .nodeAppeared, step: .nothing, state: .closed),
    Row(before: opening, event: .wanted, step: .nothing, state: .opening),
    Row(before: opening, event: .unwanted, step: .cancelOpening, state: .closed),
    Row(before: opening, event: .opened, step: .nothing, state: .open),
    Row(before: opening, event: .failed, step: .wait(first), state: .waiting),
    Row(before: opening, event: .lost, step: .nothing, state: .opening),
    Row(before: opening, event: .retryIsDue, step: .nothing, state: .opening),
    Row(before: opening, event: .nodeAppeared, step: .nothing, state: .opening),
    Row(before: open, event: .wanted, step: .nothing, state: .open),
    Row(before: open, event: .unwanted, step: .close, state: .closed),
    Row(before: open, event: .opened, step: .nothing, state: .open),
    Row(before: open, event: .failed, step: .nothing, state: .open),
    Row(before: open, event: .lost, step: .wait(first), state: .waiting),
    Row(before: open, event: .retryIsDue, step: .nothing, state: .open),
    Row(before: open, event: .nodeAppeared, step: .nothing, state: .open),
    Row(before: waiting, event: .wanted, step: .nothing, state: .waiting),
    Row(before: waiting, event: .unwanted, step: .stopWaiting, state: .closed),
    Row(before: waiting, event: .opened, step: .nothing, state: .waiting),
    Row(before: waiting, event: .failed, step: .nothing, state: .waiting),
    Row(before: waiting, event: .lost, step: .nothing, state: .waiting),
    Row(before: waiting, event: .retryIsDue, step: .open, state: .opening),
    Row(before: waiting, event: .nodeAppeared, step: .open, state: .opening),
    // Told while opening was under way: the next try comes soon, however many failed before.
    Row(
      before: waiting + [.retryIsDue, .failed, .retryIsDue, .nodeAppeared], event: .failed, step: .wait(first),
      state: .waiting),
    // A node that appeared begins the count anew.
    Row(before: waiting + [.nodeAppeared], event: .failed, step: .wait(first), state: .waiting),
    Row(before: waiting + [.retryIsDue], event: .failed, step: .wait(first * 2), state: .waiting),
    // So does one who was not needed for a while.
    Row(before: waiting + [.unwanted, .wanted], event: .failed, step: .wait(first), state: .waiting),
  ]

  @Test("answers each event in each state", arguments: rows)
  func table(row: Row) {
    var device = Device(retry: Self.retry)
    for event in row.before { _ = device.handle(event, jitter: 0) }
    let step = device.handle(row.event, jitter: 0)
    #expect(step == row.step && device.state == row.state)
  }

  @Test("is tried once without a retry, and may be wanted again", arguments: [Device.Event.failed, .lost])
  func once(end: Device.Event) {
    var device = Device(retry: nil)
    for _ in 0..<2 {
      var steps = [device.handle(.wanted)]
      if end == .lost { steps.append(device.handle(.opened)) }
      steps.append(device.handle(end))
      #expect(steps.first == .open && steps.last == .giveUp && device.state == .closed)
    }
  }

  @Test("pauses twice as long after each failure, at most as long as it is told to")
  func backOff() {
    var device = Device(retry: Self.retry)
    _ = device.handle(.wanted)
    var pauses: [Duration] = []
    for _ in 0..<100 {
      if case .wait(let pause) = device.handle(.failed, jitter: 0) { pauses.append(pause) }
      _ = device.handle(.retryIsDue)
    }
    #expect(
      pauses.prefix(8) == [
        .milliseconds(250), .milliseconds(500), .seconds(1), .seconds(2), .seconds(4), .seconds(8), .seconds(16),
        .seconds(30),
      ])
    #expect(pauses.count == 100 && pauses.last == .seconds(30))
  }

  @Test("takes a quarter of the pause off at most, and adds nothing", arguments: [0.0, 0.3, 1.0])
  func jitter(jitter: Double) {
    var device = Device(retry: .seconds(4) ... .seconds(4))
    _ = device.handle(.wanted)
    guard case .wait(let pause) = device.handle(.failed, jitter: jitter) else {
      Issue.record("no pause")
      return
    }
    #expect(Duration.seconds(3) ... .seconds(4) ~= pause)
    #expect(abs((pause - .seconds(4) * (1 - jitter / 4)) / .seconds(1)) < 0.001)
  }

  @Test("keeps pausing longer for a link that breaks soon after it opened, not for one that held")
  func flapping() {
    for (held, expected) in [(Duration.seconds(1), Duration.seconds(1)), (.seconds(5), .milliseconds(250))] {
      var device = Device(retry: Self.retry)
      _ = device.handle(.wanted)
      var step = Device.Step.nothing
      for _ in 0..<3 {
        _ = device.handle(.opened)
        step = device.handle(.lost, jitter: 0, heldFor: held)
        _ = device.handle(.retryIsDue)
      }
      #expect(step == .wait(expected))
    }
  }

  @Test("comes through any order of events without a step that doesn't fit its state")
  func anyOrder() {
    var random = SeededRandom()
    let events: [Device.Event] = [.wanted, .unwanted, .opened, .failed, .lost, .retryIsDue, .nodeAppeared]
    var device = Device(retry: Self.retry)
    for _ in 0..<100_000 {
      let before = device.state
      let event = events.randomElement(using: &random)!
      switch device.handle(event, jitter: .random(in: 0...1, using: &random)) {
      case .open: #expect(device.state == .opening && before != .opening && before != .open, "\(random)")
      case .cancelOpening: #expect(before == .opening && device.state == .closed, "\(random)")
      case .close: #expect(before == .open && device.state == .closed, "\(random)")
      case .stopWaiting: #expect(before == .waiting && device.state == .closed, "\(random)")
      case .wait(let pause):
        #expect(device.state == .waiting && pause >= .milliseconds(187) && pause <= .seconds(30), "\(random)")
      case .giveUp: Issue.record("there is a retry")
      case .nothing: break
      }
    }
  }
}
