// The state machine of a link, row by row, with late and repeated events, and its retry pauses.

import StreamTestKit
import Testing

@testable import StreamBrokerCore

@Suite("A link's state machine", .timeLimit(.minutes(5)))
struct LinkStateMachineTests {
  private static let retry = Duration.milliseconds(250) ... .seconds(30)
  private static let first = Duration.milliseconds(250)

  struct Row: Sendable, CustomStringConvertible {
    let before: [LinkStateMachine.Event]
    let event: LinkStateMachine.Event
    let step: LinkStateMachine.Step
    let state: LinkStateMachine.State
    var description: String { "\(before) then \(event)" }
  }

  private static let opening: [LinkStateMachine.Event] = [.wanted]
  private static let open: [LinkStateMachine.Event] = [.wanted, .opened]
  private static let waiting: [LinkStateMachine.Event] = [.wanted, .failed]
  private static let draining: [LinkStateMachine.Event] = [.wanted, .opened, .unwanted]
  private static let released: [LinkStateMachine.Event] = [.released]

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
    // For a client that comes meanwhile, the link reopens after draining, if that client is still there.
    Row(before: draining + [.wanted], event: .drained, step: .open, state: .opening),
    Row(before: draining + [.wanted, .unwanted], event: .drained, step: .close, state: .closed),
    Row(before: draining + [.wanted, .dismissed], event: .drained, step: .close, state: .closed),
    Row(before: open + [.changed], event: .drained, step: .open, state: .opening),
    Row(before: open + [.changed, .unwanted], event: .drained, step: .close, state: .closed),
    // The node appeared during an opening: the next try follows at once, however many tries failed before.
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
    // An event for one client's try is forgotten when the next client comes.
    Row(before: opening + [.freed, .unwanted, .wanted], event: .failed, step: .wait(first), state: .waiting),
    Row(before: opening + [.freed, .opened], event: .lost, step: .wait(first), state: .waiting),
    // A node that appeared starts the count of failures anew.
    Row(before: waiting + [.nodeAppeared], event: .failed, step: .wait(first), state: .waiting),
    Row(before: waiting + [.retryIsDue], event: .failed, step: .wait(first * 2), state: .waiting),
    // A port that was given up is closed in order, and stays closed until it is opened again by hand.
    Row(before: [], event: .released, step: .close, state: .released),
    Row(before: opening, event: .released, step: .cancelOpening, state: .released),
    Row(before: waiting, event: .released, step: .stopWaiting, state: .released),
    Row(before: open, event: .released, step: .drain, state: .draining),
    Row(before: open + [.released], event: .drained, step: .close, state: .released),
    Row(before: open + [.released, .wanted], event: .drained, step: .close, state: .released),
    Row(before: open + [.released, .unwanted], event: .drained, step: .close, state: .released),
    Row(before: open + [.released, .dismissed], event: .drained, step: .close, state: .closed),
    Row(before: open + [.released, .reopened], event: .drained, step: .close, state: .closed),
    Row(before: open + [.released, .reopened, .wanted], event: .drained, step: .open, state: .opening),
    Row(before: draining + [.wanted, .released], event: .drained, step: .close, state: .released),
    Row(before: released, event: .wanted, step: .nothing, state: .released),
    Row(before: released, event: .unwanted, step: .nothing, state: .released),
    Row(before: released, event: .changed, step: .nothing, state: .released),
    Row(before: released, event: .retryIsDue, step: .nothing, state: .released),
    Row(before: released, event: .nodeAppeared, step: .nothing, state: .released),
    Row(before: released, event: .opened, step: .nothing, state: .released),
    Row(before: released, event: .released, step: .nothing, state: .released),
    Row(before: released, event: .dismissed, step: .close, state: .closed),
    Row(before: released, event: .reopened, step: .nothing, state: .closed),
    Row(before: released + [.reopened], event: .wanted, step: .open, state: .opening),
    Row(before: [], event: .reopened, step: .nothing, state: .closed),
    Row(before: open, event: .reopened, step: .nothing, state: .open),
    // So does a device that was not needed for a while.
    Row(before: waiting + [.unwanted, .wanted], event: .failed, step: .wait(first * 2), state: .waiting),
  ]

  @Test("gives the right step for each event in each state", arguments: rows)
  func table(row: Row) {
    var machine = LinkStateMachine(LinkStateMachine.Policy(retry: Self.retry))
    for event in row.before { _ = machine.handle(event, jitter: 0) }
    let step = machine.handle(row.event, jitter: 0)
    #expect(step == row.step && machine.state == row.state)
  }

  @Test("that appears while it is being opened is retried at once, however long the pauses are")
  func came() {
    var machine = LinkStateMachine(LinkStateMachine.Policy(retry: .seconds(90) ... .seconds(90)))
    #expect(machine.handle(.wanted) == .open)
    #expect(machine.handle(.nodeAppeared) == .nothing)
    #expect(machine.handle(.failed, jitter: 0) == .wait(.zero))
    #expect(machine.handle(.retryIsDue) == .open)
    #expect(machine.handle(.failed, jitter: 0) == .wait(.seconds(90)))
  }

  @Test("that another program releases is tried after 0, 20, 100 and 500 ms, and then as before")
  func freed() {
    var machine = LinkStateMachine(LinkStateMachine.Policy(retry: .seconds(90) ... .seconds(90)))
    _ = machine.handle(.wanted)
    #expect(machine.handle(.failed, jitter: 0) == .wait(.seconds(90)))
    for round in UInt64(1)...3 {
      let now = round * 10_000_000_000
      #expect(machine.handle(.freed, now: now) == .open)
      for pause in [20, 80, 400] {
        #expect(machine.handle(.failed, jitter: 0, now: now) == .wait(.milliseconds(pause)))
        #expect(machine.handle(.retryIsDue, now: now) == .open)
      }
      #expect(machine.handle(.failed, jitter: 0, now: now) == .wait(.seconds(90)))
    }
    // Reported during a try: that try may have come too early.
    #expect(machine.handle(.retryIsDue, now: 40_000_000_000) == .open && machine.handle(.freed) == .nothing)
    #expect(machine.handle(.failed, jitter: 0, now: 40_000_000_000) == .wait(.zero))
  }

  @Test(
    "is tried at most five times a second because of other programs",
    arguments: [LinkStateMachine.Event.freed, .nodeAppeared])
  func eagerly(news: LinkStateMachine.Event) {
    var machine = LinkStateMachine(LinkStateMachine.Policy(retry: .seconds(90) ... .seconds(90)))
    var tries: [UInt64] = []
    var alarm = UInt64.max
    func follow(_ step: LinkStateMachine.Step, at now: UInt64) {
      switch step {
      case .open: tries.append(now)
      case .wait(let pause): alarm = now + UInt64(pause / .nanoseconds(1))
      default: break
      }
    }
    follow(machine.handle(.wanted), at: 0)
    for millisecond in UInt64(0)..<5000 {
      let now = millisecond * 1_000_000
      if machine.state == .opening { follow(machine.handle(.failed, jitter: 0, now: now), at: now) }
      follow(machine.handle(news, now: now), at: now)
      if alarm <= now {
        alarm = .max
        follow(machine.handle(.retryIsDue, now: now), at: now)
      }
    }
    for (index, time) in tries.enumerated().dropFirst(5) { #expect(time - tries[index - 5] >= 1_000_000_000) }
    #expect((20...26).contains(tries.count), "\(tries)")
  }

  @Test("that opens is tried at once whenever its node comes back, however often and soon")
  func replugged() {
    var machine = LinkStateMachine(LinkStateMachine.Policy(retry: .seconds(90) ... .seconds(90)))
    _ = machine.handle(.wanted)
    for _ in 1...20 {
      _ = machine.handle(.opened)
      let isWait = if case .wait = machine.handle(.lost, jitter: 0) { true } else { false }
      #expect(isWait && machine.handle(.nodeAppeared) == .open)
    }
  }

  @Test(
    "starts with the shortest pause again after it was open longer than the longest pause, or 10 s after it took bytes",
    arguments: [
      (Duration.seconds(30), Duration.zero, false), (.seconds(30) + .milliseconds(1), .zero, true),
      (.milliseconds(200), .milliseconds(200), false), (.seconds(29), .milliseconds(9999), false),
      (.seconds(11), .seconds(10), true),
    ])
  func worked(openFor: Duration, tookFirst: Duration, starts: Bool) {
    for isClosed in [false, true] {
      var machine = LinkStateMachine(LinkStateMachine.Policy(retry: Self.retry))
      _ = machine.handle(.wanted)
      for _ in 0..<20 {
        _ = machine.handle(.failed)
        _ = machine.handle(.retryIsDue)
      }
      _ = machine.handle(.opened)
      let use = LinkStateMachine.Use(openFor: openFor, tookFirst: tookFirst)
      var step = LinkStateMachine.Step.nothing
      if isClosed {
        // No client was left, and the next one finds the endpoint away.
        _ = machine.handle(.unwanted)
        #expect(machine.handle(.drained, use: use) == .close && machine.handle(.wanted, restedFor: .zero) == .open)
        step = machine.handle(.failed, jitter: 0)
      } else {
        step = machine.handle(.lost, jitter: 0, use: use)
      }
      #expect(step == .wait(starts ? Self.first : .seconds(30)))
    }
  }

  @Test("keeps the pause that its failures have reached while clients come and go, and forgets it after a long rest")
  func comeAndGo() {
    var machine = LinkStateMachine(LinkStateMachine.Policy(retry: Self.retry))
    for pause in [Duration.milliseconds(250), .milliseconds(500), .seconds(1)] {
      #expect(machine.handle(.wanted, restedFor: .milliseconds(300)) == .open)
      _ = machine.handle(.opened)
      #expect(machine.handle(.lost, jitter: 0) == .wait(pause) && machine.handle(.unwanted) == .stopWaiting)
    }
    #expect(machine.handle(.wanted, restedFor: .seconds(31)) == .open)
    #expect(machine.handle(.failed, jitter: 0) == .wait(Self.first))
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

  @Test("that lingers stays open for a while after its last use", arguments: lingeringRows)
  func lingering(row: Row) {
    var machine = LinkStateMachine(LinkStateMachine.Policy(retry: Self.retry, linger: .seconds(7)))
    for event in row.before { _ = machine.handle(event, jitter: 0) }
    #expect(machine.handle(row.event, jitter: 0) == row.step && machine.state == row.state)
  }

  @Test("whose absence ends clients is tried for each new client, but not more often than its shortest pause")
  func newcomers() {
    var machine = LinkStateMachine(LinkStateMachine.Policy(retry: Self.retry, endsClients: true))
    #expect(machine.handle(.wanted, restedFor: .zero) == .open)
    #expect(machine.handle(.failed, jitter: 0) == .wait(Self.first))
    // Open always: the retry timer is set.
    #expect(machine.handle(.wanted, restedFor: .milliseconds(50)) == .wait(.milliseconds(200)))
    #expect(machine.handle(.wanted, restedFor: .milliseconds(250)) == .open)
    #expect(machine.handle(.failed, jitter: 0) == .wait(Self.first * 2))
    // On demand: no client was left.
    #expect(machine.handle(.unwanted) == .stopWaiting)
    #expect(machine.handle(.wanted, restedFor: .milliseconds(100)) == .wait(.milliseconds(150)))
    #expect(machine.handle(.retryIsDue) == .open && machine.handle(.opened) == .nothing)
    // The device is there: a client that comes after an orderly close need not wait.
    #expect(machine.handle(.unwanted) == .drain && machine.handle(.drained) == .close)
    #expect(machine.handle(.wanted, restedFor: .zero) == .open)
  }

  @Test("delays no new client for more than a second, however long its pauses are")
  func longPauses() {
    var machine = LinkStateMachine(LinkStateMachine.Policy(retry: .seconds(60) ... .seconds(60), endsClients: true))
    _ = machine.handle(.wanted)
    _ = machine.handle(.failed)
    #expect(machine.handle(.wanted, restedFor: .milliseconds(400)) == .wait(.milliseconds(600)))
  }

  @Test(
    "is tried once without a retry, and may be opened again later", arguments: [LinkStateMachine.Event.failed, .lost])
  func once(end: LinkStateMachine.Event) {
    var machine = LinkStateMachine(LinkStateMachine.Policy(retry: nil))
    for _ in 0..<2 {
      var steps = [machine.handle(.wanted)]
      if end == .lost { steps.append(machine.handle(.opened)) }
      steps.append(machine.handle(end))
      #expect(steps.first == .open && steps.last == .giveUp && machine.state == .closed)
    }
  }

  @Test("has retry pauses that double after each failure, up to the configured maximum")
  func backOff() {
    var machine = LinkStateMachine(LinkStateMachine.Policy(retry: Self.retry))
    _ = machine.handle(.wanted)
    var pauses: [Duration] = []
    for _ in 0..<100 {
      if case .wait(let pause) = machine.handle(.failed, jitter: 0) { pauses.append(pause) }
      _ = machine.handle(.retryIsDue)
    }
    #expect(
      pauses.prefix(8) == [
        .milliseconds(250), .milliseconds(500), .seconds(1), .seconds(2), .seconds(4), .seconds(8), .seconds(16),
        .seconds(30),
      ])
    #expect(pauses.count == 100 && pauses.last == .seconds(30))
  }

  @Test("has a jitter that shortens a pause by a quarter at most, and never lengthens it", arguments: [0.0, 0.3, 1.0])
  func jitter(jitter: Double) {
    var machine = LinkStateMachine(LinkStateMachine.Policy(retry: .seconds(4) ... .seconds(4)))
    _ = machine.handle(.wanted)
    guard case .wait(let pause) = machine.handle(.failed, jitter: jitter) else {
      Issue.record("no pause")
      return
    }
    #expect(Duration.seconds(3) ... .seconds(4) ~= pause)
    #expect(abs((pause - .seconds(4) * (1 - jitter / 4)) / .seconds(1)) < 0.001)
  }

  @Test("has growing pauses when its link fails soon after opening, not when it stayed open")
  func flapping() {
    for (held, expected) in [(Duration.seconds(29), Duration.seconds(1)), (.seconds(31), .milliseconds(250))] {
      var machine = LinkStateMachine(LinkStateMachine.Policy(retry: Self.retry))
      _ = machine.handle(.wanted)
      var step = LinkStateMachine.Step.nothing
      for _ in 0..<3 {
        _ = machine.handle(.opened)
        step = machine.handle(.lost, jitter: 0, use: LinkStateMachine.Use(openFor: held))
        _ = machine.handle(.retryIsDue)
      }
      #expect(step == .wait(expected))
    }
  }

  @Test("handles any order of events without a step that doesn't fit its state", arguments: [true, false])
  func anyOrder(endsClients: Bool) {
    var random = SeededRandom()
    let events: [LinkStateMachine.Event] = [
      .wanted, .unwanted, .dismissed, .lingerIsOver, .drained, .opened, .failed, .lost, .changed, .retryIsDue,
      .nodeAppeared, .freed,
    ]
    var machine = LinkStateMachine(
      LinkStateMachine.Policy(retry: Self.retry, linger: .seconds(1), endsClients: endsClients))
    for _ in 0..<100_000 {
      let before = machine.state
      let event = events.randomElement(using: &random)!
      let rested = Duration.milliseconds(Int.random(in: 0...300, using: &random))
      let step = machine.handle(event, jitter: .random(in: 0...1, using: &random), restedFor: rested)
      #expect(isSound(step, from: before, to: machine.state), "\(event) in \(before) gave \(step): \(random)")
    }
  }

  private func isSound(
    _ step: LinkStateMachine.Step, from before: LinkStateMachine.State, to after: LinkStateMachine.State
  ) -> Bool {
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
