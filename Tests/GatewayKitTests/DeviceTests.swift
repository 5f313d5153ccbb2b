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
  private static let draining: [Device.Event] = [.wanted, .opened, .unwanted]

  static let rows: [Row] = [
    Row(before: [], event: .wanted, step: .open, state: .opening),
    Row(before: [], event: .unwanted, step: .nothing, state: .closed),
    Row(before: [], event: .opened, step: .nothing, state: .closed),
    Row(before: [], event: .failed, step: .nothing, state: .closed),
    Row(before: [], event: .lost, step: .nothing, state: .closed),
    Row(before: [], event: .retryIsDue, step: .nothing, state: .closed),
    Row(before: [], event: .nodeAppeared, step: .nothing, state: .closed),
    Row(before: [], event: .changed, step: .nothing, state: .closed),
    Row(before: [], event: .drained, step: .nothing, state: .closed),
    Row(before: opening, event: .wanted, step: .nothing, state: .opening),
    Row(before: opening, event: .unwanted, step: .cancelOpening, state: .closed),
    Row(before: opening, event: .dismissed, step: .cancelOpening, state: .closed),
    Row(before: opening, event: .changed, step: .open, state: .opening),
    Row(before: opening, event: .opened, step: .nothing, state: .open),
    Row(before: opening, event: .failed, step: .wait(first), state: .waiting),
    Row(before: opening, event: .lost, step: .nothing, state: .opening),
    Row(before: opening, event: .retryIsDue, step: .nothing, state: .opening),
    Row(before: opening, event: .nodeAppeared, step: .nothing, state: .opening),
    Row(before: open, event: .wanted, step: .nothing, state: .open),
    Row(before: open, event: .unwanted, step: .drain, state: .draining),
    Row(before: open, event: .dismissed, step: .drain, state: .draining),
    Row(before: open, event: .changed, step: .drain, state: .draining),
    Row(before: open, event: .drained, step: .nothing, state: .open),
    Row(before: open, event: .lingerIsOver, step: .nothing, state: .open),
    Row(before: open, event: .opened, step: .nothing, state: .open),
    Row(before: open, event: .failed, step: .nothing, state: .open),
    Row(before: open, event: .lost, step: .wait(first), state: .waiting),
    Row(before: open, event: .retryIsDue, step: .nothing, state: .open),
    Row(before: open, event: .nodeAppeared, step: .nothing, state: .open),
    Row(before: waiting, event: .wanted, step: .nothing, state: .waiting),
    Row(before: waiting, event: .unwanted, step: .stopWaiting, state: .closed),
    Row(before: waiting, event: .dismissed, step: .stopWaiting, state: .closed),
    Row(before: waiting, event: .changed, step: .open, state: .opening),
    Row(before: waiting, event: .opened, step: .nothing, state: .waiting),
    Row(before: waiting, event: .failed, step: .nothing, state: .waiting),
    Row(before: waiting, event: .lost, step: .nothing, state: .waiting),
    Row(before: waiting, event: .retryIsDue, step: .open, state: .opening),
    Row(before: waiting, event: .nodeAppeared, step: .open, state: .opening),
    Row(before: draining, event: .wanted, step: .nothing, state: .draining),
    Row(before: draining, event: .unwanted, step: .nothing, state: .draining),
    Row(before: draining, event: .lost, step: .nothing, state: .draining),
    Row(before: draining, event: .nodeAppeared, step: .nothing, state: .draining),
    Row(before: draining, event: .drained, step: .close, state: .closed),
    // Who comes meanwhile gets it opened behind the last words, if he is there still.
    Row(before: draining + [.wanted], event: .drained, step: .open, state: .opening),
    Row(before: draining + [.wanted, .unwanted], event: .drained, step: .close, state: .closed),
    Row(before: draining + [.wanted, .dismissed], event: .drained, step: .close, state: .closed),
    Row(before: open + [.changed], event: .drained, step: .open, state: .opening),
    Row(before: open + [.changed, .unwanted], event: .drained, step: .close, state: .closed),
    // Told while opening was under way: the next try comes at once, however many failed before.
    Row(
      before: waiting + [.retryIsDue, .failed, .retryIsDue, .nodeAppeared], event: .failed, step: .wait(.zero),
      state: .waiting),
    Row(
      before: waiting + [.retryIsDue, .failed, .retryIsDue, .nodeAppeared, .failed, .retryIsDue], event: .failed,
      step: .wait(first), state: .waiting),
    Row(before: [], event: .freed, step: .nothing, state: .closed),
    Row(before: opening, event: .freed, step: .nothing, state: .opening),
    Row(before: open, event: .freed, step: .nothing, state: .open),
    Row(before: waiting, event: .freed, step: .open, state: .opening),
    Row(before: draining, event: .freed, step: .nothing, state: .draining),
    // What one was told of is forgotten by the time another comes.
    Row(before: opening + [.freed, .unwanted, .wanted], event: .failed, step: .wait(first), state: .waiting),
    Row(before: opening + [.freed, .opened], event: .lost, step: .wait(first), state: .waiting),
    // A node that appeared begins the count anew.
    Row(before: waiting + [.nodeAppeared], event: .failed, step: .wait(first), state: .waiting),
    Row(before: waiting + [.retryIsDue], event: .failed, step: .wait(first * 2), state: .waiting),
    // So does one who was not needed for a while.
    Row(before: waiting + [.unwanted, .wanted], event: .failed, step: .wait(first), state: .waiting),
  ]

  @Test("answers each event in each state", arguments: rows)
  func table(row: Row) {
    var device = Device(Device.Policy(retry: Self.retry))
    for event in row.before { _ = device.handle(event, jitter: 0) }
    let step = device.handle(row.event, jitter: 0)
    #expect(step == row.step && device.state == row.state)
  }

  @Test("that has come while it was being opened is tried again at once, however long pauses are to be")
  func came() {
    var device = Device(Device.Policy(retry: .seconds(90) ... .seconds(90)))
    #expect(device.handle(.wanted) == .open)
    #expect(device.handle(.nodeAppeared) == .nothing)
    #expect(device.handle(.failed, jitter: 0) == .wait(.zero))
    #expect(device.handle(.retryIsDue) == .open)
    #expect(device.handle(.failed, jitter: 0) == .wait(.seconds(90)))
  }

  @Test("that another program lets go of is tried after 0, 20, 100 and 500 ms, and then as before")
  func freed() {
    var device = Device(Device.Policy(retry: .seconds(90) ... .seconds(90)))
    _ = device.handle(.wanted)
    #expect(device.handle(.failed, jitter: 0) == .wait(.seconds(90)))
    for round in UInt64(1)...3 {
      let now = round * 10_000_000_000
      #expect(device.handle(.freed, now: now) == .open)
      for pause in [20, 80, 400] {
        #expect(device.handle(.failed, jitter: 0, now: now) == .wait(.milliseconds(pause)))
        #expect(device.handle(.retryIsDue, now: now) == .open)
      }
      #expect(device.handle(.failed, jitter: 0, now: now) == .wait(.seconds(90)))
    }
    // Told during a try: that one may have come too early.
    #expect(device.handle(.retryIsDue, now: 40_000_000_000) == .open && device.handle(.freed) == .nothing)
    #expect(device.handle(.failed, jitter: 0, now: 40_000_000_000) == .wait(.zero))
  }

  @Test(
    "is tried at most five times a second for all that others do with it",
    arguments: [Device.Event.freed, .nodeAppeared])
  func eagerly(news: Device.Event) {
    var device = Device(Device.Policy(retry: .seconds(90) ... .seconds(90)))
    var tries: [UInt64] = []
    var alarm = UInt64.max
    func follow(_ step: Device.Step, at now: UInt64) {
      switch step {
      case .open: tries.append(now)
      case .wait(let pause): alarm = now + UInt64(pause / .nanoseconds(1))
      default: break
      }
    }
    follow(device.handle(.wanted), at: 0)
    for millisecond in UInt64(0)..<5000 {
      let now = millisecond * 1_000_000
      if device.state == .opening { follow(device.handle(.failed, jitter: 0, now: now), at: now) }
      follow(device.handle(news, now: now), at: now)
      if alarm <= now {
        alarm = .max
        follow(device.handle(.retryIsDue, now: now), at: now)
      }
    }
    for (index, time) in tries.enumerated().dropFirst(5) { #expect(time - tries[index - 5] >= 1_000_000_000) }
    #expect((20...26).contains(tries.count), "\(tries)")
  }

  @Test("that works is tried at once whenever its node comes back, however often that is")
  func replugged() {
    var device = Device(Device.Policy(retry: .seconds(90) ... .seconds(90)))
    _ = device.handle(.wanted)
    for _ in 1...20 {
      _ = device.handle(.opened)
      #expect(device.handle(.lost, jitter: 0, hasCarried: true) == .wait(.seconds(90)))
      #expect(device.handle(.nodeAppeared) == .open)
    }
  }

  @Test("that has carried bytes begins with the shortest pause again, however soon it was lost")
  func carried() {
    var device = Device(Device.Policy(retry: Self.retry))
    _ = device.handle(.wanted)
    for _ in 0..<20 {
      _ = device.handle(.failed)
      _ = device.handle(.retryIsDue)
    }
    _ = device.handle(.opened)
    let held = Duration.milliseconds(200)
    #expect(device.handle(.lost, jitter: 0, heldFor: held, hasCarried: true) == .wait(Self.first))
    #expect(device.handle(.retryIsDue) == .open && device.handle(.opened) == .nothing)
    #expect(device.handle(.lost, jitter: 0, heldFor: held, hasCarried: false) == .wait(Self.first * 2))
  }

  static let lingeringRows: [Row] = [
    Row(before: open, event: .unwanted, step: .linger(.seconds(7)), state: .lingering),
    Row(before: open, event: .dismissed, step: .drain, state: .draining),
    Row(before: draining, event: .wanted, step: .stopLingering, state: .open),
    Row(before: draining, event: .unwanted, step: .nothing, state: .lingering),
    Row(before: draining, event: .lingerIsOver, step: .drain, state: .draining),
    Row(before: draining, event: .dismissed, step: .drain, state: .draining),
    Row(before: draining, event: .changed, step: .drain, state: .draining),
    Row(before: draining + [.changed], event: .drained, step: .close, state: .closed),
    Row(before: draining, event: .lost, step: .wait(first), state: .waiting),
    Row(before: draining + [.wanted], event: .lingerIsOver, step: .nothing, state: .open),
    Row(before: waiting, event: .unwanted, step: .stopWaiting, state: .closed),
  ]

  @Test("that lingers stays open for a while after it was needed", arguments: lingeringRows)
  func lingering(row: Row) {
    var device = Device(Device.Policy(retry: Self.retry, linger: .seconds(7)))
    for event in row.before { _ = device.handle(event, jitter: 0) }
    #expect(device.handle(row.event, jitter: 0) == row.step && device.state == row.state)
  }

  @Test("that sends its clients away is tried for each newcomer, though not more often than its shortest pause")
  func newcomers() {
    var device = Device(Device.Policy(retry: Self.retry, endsClients: true))
    #expect(device.handle(.wanted, restedFor: .zero) == .open)
    #expect(device.handle(.failed, jitter: 0) == .wait(Self.first))
    // Open always: the alarm is set.
    #expect(device.handle(.wanted, restedFor: .milliseconds(50)) == .wait(.milliseconds(200)))
    #expect(device.handle(.wanted, restedFor: .milliseconds(250)) == .open)
    #expect(device.handle(.failed, jitter: 0) == .wait(Self.first * 2))
    // On demand: nobody was left.
    #expect(device.handle(.unwanted) == .stopWaiting)
    #expect(device.handle(.wanted, restedFor: .milliseconds(100)) == .wait(.milliseconds(150)))
    #expect(device.handle(.retryIsDue) == .open && device.handle(.opened) == .nothing)
    // It is there: who comes after a good end need not wait.
    #expect(device.handle(.unwanted) == .drain && device.handle(.drained) == .close)
    #expect(device.handle(.wanted, restedFor: .zero) == .open)
  }

  @Test("makes no newcomer wait for more than a second, however long its pauses are")
  func longPauses() {
    var device = Device(Device.Policy(retry: .seconds(60) ... .seconds(60), endsClients: true))
    _ = device.handle(.wanted)
    _ = device.handle(.failed)
    #expect(device.handle(.wanted, restedFor: .milliseconds(400)) == .wait(.milliseconds(600)))
  }

  @Test("is tried once without a retry, and may be wanted again", arguments: [Device.Event.failed, .lost])
  func once(end: Device.Event) {
    var device = Device(Device.Policy(retry: nil))
    for _ in 0..<2 {
      var steps = [device.handle(.wanted)]
      if end == .lost { steps.append(device.handle(.opened)) }
      steps.append(device.handle(end))
      #expect(steps.first == .open && steps.last == .giveUp && device.state == .closed)
    }
  }

  @Test("pauses twice as long after each failure, at most as long as it is told to")
  func backOff() {
    var device = Device(Device.Policy(retry: Self.retry))
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
    var device = Device(Device.Policy(retry: .seconds(4) ... .seconds(4)))
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
      var device = Device(Device.Policy(retry: Self.retry))
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

  @Test("comes through any order of events without a step that doesn't fit its state", arguments: [true, false])
  func anyOrder(endsClients: Bool) {
    var random = SeededRandom()
    let events: [Device.Event] = [
      .wanted, .unwanted, .dismissed, .lingerIsOver, .drained, .opened, .failed, .lost, .changed, .retryIsDue,
      .nodeAppeared, .freed,
    ]
    var device = Device(Device.Policy(retry: Self.retry, linger: .seconds(1), endsClients: endsClients))
    for _ in 0..<100_000 {
      let before = device.state
      let event = events.randomElement(using: &random)!
      let rested = Duration.milliseconds(Int.random(in: 0...300, using: &random))
      let step = device.handle(event, jitter: .random(in: 0...1, using: &random), restedFor: rested)
      #expect(isSound(step, from: before, to: device.state), "\(event) in \(before) gave \(step): \(random)")
    }
  }

  private func isSound(_ step: Device.Step, from before: Device.State, to after: Device.State) -> Bool {
    switch step {
    case .open: after == .opening && ![.open, .lingering].contains(before)
    case .cancelOpening: before == .opening && after == .closed
    case .linger: before == .open && after == .lingering
    case .stopLingering: before == .lingering && after == .open
    case .drain: [.open, .lingering].contains(before) && after == .draining
    case .close: before == .draining && after == .closed
    case .stopWaiting: before == .waiting && after == .closed
    case .wait(let pause): after == .waiting && pause >= .zero && pause <= .seconds(30)
    case .giveUp: false  // there is a retry
    case .nothing: before == after || (before == .opening && after == .open)
    }
  }
}
