// Decides when a link is opened, closed and tried again. A value: events in, steps out; the link acts. It uses no
// socket and no clock. What happens to clients while the device is away: Link+Absence.swift.

/// ```
/// closed → opening → open ⇄ lingering        a step is what the owner does next
///   ↑        ↓  ↑     ↓  ↘    ↓
///   │       waiting ←─┘   draining           (failed, lost)   (unwanted)
///   └───────────┴─────────────┘
/// ```
/// From each of them it gets to `released`, if need be through `draining`, and only `reopened` leads back to `closed`.
package struct LinkStateMachine {
  /// An object: many links have the same.
  package final class Policy: Sendable {
    /// The shortest and the longest pause between two tries; nil = a single try.
    let retry: ClosedRange<Duration>?
    /// How long it stays open when it is no longer needed.
    let linger: Duration
    /// Clients are disconnected when opening fails, so each new client causes a try of its own.
    let endsClients: Bool

    package init(retry: ClosedRange<Duration>? = nil, linger: Duration = .zero, endsClients: Bool = false) {
      self.retry = retry
      self.linger = linger
      self.endsClients = endsClients
    }
  }

  package enum Event: Equatable {
    /// The link is needed: a client came, or it is always open.
    case wanted
    /// The link is no longer needed, and its input is taken.
    case unwanted
    /// The same, for good.
    case dismissed
    case lingerIsOver
    /// The last output is sent.
    case drained
    case opened, failed, lost
    /// The configuration names another endpoint, or the open one does not take its new settings.
    case changed
    /// The port is given up: nothing is opened until `reopened`.
    case released
    case reopened
    case retryIsDue
    /// The device node appeared or changed: waiting longer is pointless.
    case nodeAppeared
    /// Another program has closed the device, or removed its lock file. The device may still be in use for a moment.
    case freed
  }

  package enum Step: Equatable {
    case open
    case cancelOpening
    /// Close it unless it is needed within this time.
    case linger(Duration)
    case stopLingering
    /// Send the last output, and report `.drained` after that.
    case drain
    case close
    /// Try again after this time; replaces an earlier timer.
    case wait(Duration)
    case stopWaiting
    /// No more tries: for per-client links.
    case giveUp
    case nothing
  }

  package enum State: Equatable { case closed, opening, open, lingering, draining, waiting, released }

  package private(set) var state = State.closed
  package var policy: Policy
  private var failures = 0
  // The last opening failed, or its link was lost.
  private var hasFailed = false
  // The node appeared while opening was in progress, so that attempt may have been too early.
  private var nodeHasAppeared = false
  // Pauses before the remaining tries after `freed`.
  private var eagerPauses: ArraySlice<Duration> = []
  // Times of the latest tries since the link last opened, the newest last.
  private var tries: [UInt64] = []
  private enum Next { case closed, open, released }
  // While draining: what follows once the last output is sent.
  private var next = Next.closed
  // A link has worked if it stayed open this long after it took a client's first bytes, or longer than the longest
  // pause. Bytes alone prove nothing: a server that is in use says so and hangs up, and would be called for ever after
  // the shortest pause.
  package static let worksAfter = Duration.seconds(10)
  // At the first event the other program may not have closed the device yet. So tries follow 0, 20, 100 and 500 ms
  // after the event.
  private static let pausesWhenFreed: [Duration] = [
    .zero, .milliseconds(20), .milliseconds(80), .milliseconds(400),
  ]
  // The most failed tries a second that `nodeAppeared` and `freed` cause. Otherwise a program that opens and closes the
  // device all the time would set the pace.
  private static let mostEagerTries = 5
  // The longest pause between tries that new clients cause. Without a pause they would set the pace.
  package static let longestRest = Duration.seconds(1)

  package init(_ policy: Policy) { self.policy = policy }

  /// How long a link that is lost or closed was open, and how long ago it took the first bytes for the endpoint; zero
  /// if it took none.
  package struct Use {
    package var openFor: Duration
    package var tookFirst: Duration

    package init(openFor: Duration = .zero, tookFirst: Duration = .zero) {
      self.openFor = openFor
      self.tookFirst = tookFirst
    }
  }

  /// `jitter` from 0 to 1 spreads the tries of many links. `use` comes with `lost` and `drained`; `restedFor` is how
  /// long ago the last try failed. `now` is in nanoseconds, on any clock.
  package mutating func handle(
    _ event: Event, jitter: Double = 0.5, use: Use = Use(), restedFor: Duration = longestRest, now: UInt64 = 0
  ) -> Step {
    if event == .lost || event == .drained, hasWorked(use) { failures = 0 }
    let step = decide(event, jitter, restedFor, now)
    if step == .open { tries = tries.suffix(Self.mostEagerTries - 1) + [now] }
    return step
  }

  private mutating func decide(
    _ event: Event, _ jitter: Double, _ restedFor: Duration, _ now: UInt64
  ) -> Step {
    switch (state, event) {
    case (.closed, .released): return close(.close, released: true)
    case (.opening, .released): return close(.cancelOpening, released: true)
    case (.waiting, .released): return close(.stopWaiting, released: true)
    case (.released, .dismissed): return close(.close)
    case (.released, .reopened):
      (failures, hasFailed) = (0, false)
      return close(.nothing)
    case (.closed, .wanted): return tryForNewcomer(restedFor)
    case (.waiting, .wanted): return policy.endsClients ? tryForNewcomer(restedFor) : .nothing
    case (.waiting, .retryIsDue): return open()
    case (.waiting, .changed), (.opening, .changed):
      failures = 0
      return open()
    case (.waiting, .nodeAppeared):
      failures = 0
      return tryForNews(now)
    case (.waiting, .freed):
      eagerPauses = Self.pausesWhenFreed.dropFirst()
      return tryForNews(now)
    case (.opening, .nodeAppeared):
      nodeHasAppeared = true
      return .nothing
    case (.opening, .freed):
      eagerPauses = Self.pausesWhenFreed[...]
      return .nothing
    case (.opening, .opened):
      state = .open
      eagerPauses = []
      tries = []
      nodeHasAppeared = false
      hasFailed = false
      return .nothing
    case (.opening, .failed): return pause(jitter, now)
    case (.open, .lost), (.lingering, .lost): return pause(jitter, now)
    case (.opening, .unwanted), (.opening, .dismissed): return close(.cancelOpening)
    case (.waiting, .unwanted), (.waiting, .dismissed): return close(.stopWaiting)
    default: return handleParting(event)
    }
  }

  /// Events around the end of an open link.
  private mutating func handleParting(_ event: Event) -> Step {
    switch (state, event) {
    case (.open, .unwanted) where policy.linger > .zero:
      state = .lingering
      return .linger(policy.linger)
    case (.lingering, .wanted):
      state = .open
      return .stopLingering
    case (.open, .unwanted), (.open, .dismissed), (.lingering, .dismissed), (.lingering, .lingerIsOver),
      (.lingering, .changed):
      return drain(then: .closed)
    case (.open, .changed):
      failures = 0
      return drain(then: .open)
    case (.open, .released), (.lingering, .released): return drain(then: .released)
    case (.draining, .released): next = .released
    case (.draining, .reopened): next = .closed
    case (.draining, .wanted) where next != .released: next = .open
    case (.draining, .unwanted) where next != .released: next = .closed
    case (.draining, .dismissed): next = .closed
    case (.draining, .drained): return next == .open ? open() : close(.close, released: next == .released)
    default: break  // a late event about an earlier step
    }
    return .nothing
  }

  private mutating func open() -> Step {
    state = .opening
    nodeHasAppeared = false
    return .open
  }

  private mutating func drain(then next: Next) -> Step {
    state = .draining
    self.next = next
    return .drain
  }

  private mutating func close(_ step: Step, released: Bool = false) -> Step {
    state = released ? .released : .closed
    eagerPauses = []
    return step
  }

  private func hasWorked(_ use: Use) -> Bool {
    use.tookFirst >= Self.worksAfter || use.openFor > policy.retry?.upperBound ?? .zero
  }

  /// Opens for a new client. After a failure it waits first, as long as the shortest pause between tries.
  private mutating func tryForNewcomer(_ rested: Duration) -> Step {
    // Failures from before a long time without clients say nothing about now.
    if rested > policy.retry?.upperBound ?? .zero { failures = 0 }
    let rest = min(policy.retry?.lowerBound ?? .zero, Self.longestRest)
    guard policy.endsClients, hasFailed, rested < rest else { return open() }
    state = .waiting
    return .wait(rest - rested)
  }

  /// Opens at once, unless there were too many tries in the last second.
  private mutating func tryForNews(_ now: UInt64) -> Step {
    let rest = restBeforeNews(now)
    return rest > .zero ? .wait(rest) : open()
  }

  private func restBeforeNews(_ now: UInt64) -> Duration {
    guard tries.count == Self.mostEagerTries, let oldest = tries.first else { return .zero }
    return max(.zero, .seconds(1) - .nanoseconds(Int64(clamping: now &- oldest)))
  }

  private mutating func pause(_ jitter: Double, _ now: UInt64) -> Step {
    guard let retry = policy.retry else {
      state = .closed
      return .giveUp
    }
    state = .waiting
    hasFailed = true
    if nodeHasAppeared {
      nodeHasAppeared = false
      failures = 0
      return .wait(restBeforeNews(now))
    }
    if let pause = eagerPauses.popFirst() { return .wait(max(pause, restBeforeNews(now))) }
    var pause = retry.lowerBound
    for _ in 0..<min(failures, 32) where pause < retry.upperBound { pause *= 2 }
    failures += 1
    // Shortened by a quarter at most, so that many links lost together do not come back together.
    return .wait(min(pause, retry.upperBound) * (1 - jitter / 4))
  }
}
