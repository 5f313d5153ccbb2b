// Decides when a link is opened, closed and tried again. A value: events in, steps out; the link acts. It sees no
// socket and no clock.

/// ```
/// closed → opening → open ⇄ lingering        a step is what the owner does next
///   ↑        ↓  ↑     ↓  ↘    ↓
///   │       waiting ←─┘   draining           (failed, lost)   (unwanted)
///   └───────────┴─────────────┘
/// ```
struct Device {
  struct Policy: Equatable {
    /// The shortest and the longest pause between two tries; nil = a single try.
    var retry: ClosedRange<Duration>?
    /// How long it stays open when nobody needs it any more.
    var linger = Duration.zero
    /// Who waits is sent away when it can't be opened, so each who comes gets a try of his own.
    var endsClients = false
  }

  enum Event: Equatable {
    /// Somebody needs the link: a client came, or it is to be open always.
    case wanted
    /// Nobody needs it any more, and what was sent to it is taken.
    case unwanted
    /// The same, and nobody will come back for it.
    case dismissed
    case lingerIsOver
    /// The last words are out.
    case drained
    case opened, failed, lost
    /// The configuration names another endpoint, or the open one does not take its new settings.
    case changed
    case retryIsDue
    /// Its node is there, or has changed: waiting longer is pointless.
    case nodeAppeared
    /// Another program has closed it, or removed its lock file. It may be in use for a moment still.
    case freed
  }

  enum Step: Equatable {
    case open
    case cancelOpening
    /// Close it unless somebody needs it within so long.
    case linger(Duration)
    case stopLingering
    /// Say the last words, and tell when they are out.
    case drain
    case close
    /// Try again after so long; an alarm that is set already is replaced.
    case wait(Duration)
    case stopWaiting
    /// It will not be tried again: for links of one client.
    case giveUp
    case nothing
  }

  enum State: Equatable { case closed, opening, open, lingering, draining, waiting }

  private(set) var state = State.closed
  var policy: Policy
  private var failures = 0
  // The node appeared while opening was under way, so that attempt may have come too early.
  private var nodeHasAppeared = false
  // Pauses before the tries that an event `freed` still calls for.
  private var eagerPauses: ArraySlice<Duration> = []
  // When it was tried since a link was last good, the newest last.
  private var tries: [UInt64] = []
  // Somebody needs it behind the last words of the old one.
  private var opensAgain = false
  // A link that opens and breaks at once must not be tried in a circle: only one that has carried bytes, or held for this long,
  // counts as good.
  static let goodAfter = Duration.seconds(5)
  // A program is about to have closed it when the first event comes: tries follow 0, 20, 100 and 500 ms after that.
  private static let pausesWhenFreed: [Duration] = [
    .zero, .milliseconds(20), .milliseconds(80), .milliseconds(400),
  ]
  // News ask for so many tries a second at most: a program that opens and closes the device all the time would else set the pace.
  private static let mostEagerTries = 5
  // Between tries that newcomers ask for, at most: they would else make the pace.
  static let longestRest = Duration.seconds(1)

  init(_ policy: Policy) { self.policy = policy }

  /// `jitter` from 0 to 1 spreads the tries of many links; `heldFor` is how long a link that is lost was open, `hasCarried` whether
  /// bytes went over it, and `restedFor` how long ago the last try failed. `now` is in nanoseconds, on any clock.
  mutating func handle(
    _ event: Event, jitter: Double = 0.5, heldFor: Duration = .zero, hasCarried: Bool = false,
    restedFor: Duration = longestRest, now: UInt64 = 0
  ) -> Step {
    let step = decide(event, jitter, heldFor, hasCarried, restedFor, now)
    if step == .open { tries = tries.suffix(Self.mostEagerTries - 1) + [now] }
    return step
  }

  private mutating func decide(
    _ event: Event, _ jitter: Double, _ heldFor: Duration, _ hasCarried: Bool, _ restedFor: Duration, _ now: UInt64
  ) -> Step {
    switch (state, event) {
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
      nodeHasAppeared = false
      return .nothing
    case (.opening, .failed): return pause(jitter, now)
    case (.open, .lost), (.lingering, .lost):
      if hasCarried || heldFor >= Self.goodAfter {
        failures = 0
        tries = []
      }
      return pause(jitter, now)
    case (.opening, .unwanted), (.opening, .dismissed): return close(.cancelOpening)
    case (.waiting, .unwanted), (.waiting, .dismissed): return close(.stopWaiting)
    default: return handleParting(event)
    }
  }

  /// What happens around the end of a link that is open.
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
      return drain(thenOpen: false)
    case (.open, .changed): return drain(thenOpen: true)
    case (.draining, .wanted):
      opensAgain = true
      return .nothing
    case (.draining, .unwanted), (.draining, .dismissed):
      opensAgain = false
      return .nothing
    case (.draining, .drained):
      failures = 0
      return opensAgain ? open() : close(.close)
    default: return .nothing  // late news about a step that is behind us
    }
  }

  private mutating func open() -> Step {
    state = .opening
    nodeHasAppeared = false
    return .open
  }

  private mutating func drain(thenOpen: Bool) -> Step {
    state = .draining
    opensAgain = thenOpen
    return .drain
  }

  private mutating func close(_ step: Step) -> Step {
    state = .closed
    eagerPauses = []
    // Where newcomers ask for tries, one who came and went must not make the next one forget how long ago the last was.
    if !policy.endsClients || step == .close { failures = 0 }
    return step
  }

  /// Nobody is sent away without a try; but not more tries than pauses of the shortest kind allow.
  private mutating func tryForNewcomer(_ rested: Duration) -> Step {
    let rest = min(policy.retry?.lowerBound ?? .zero, Self.longestRest)
    guard policy.endsClients, failures > 0, rested < rest else { return open() }
    state = .waiting
    return .wait(rest - rested)
  }

  /// At once, unless there were too many tries in the last second.
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
    if nodeHasAppeared {
      nodeHasAppeared = false
      failures = 0
      return .wait(restBeforeNews(now))
    }
    if let pause = eagerPauses.popFirst() { return .wait(max(pause, restBeforeNews(now))) }
    var pause = retry.lowerBound
    for _ in 0..<min(failures, 32) where pause < retry.upperBound { pause *= 2 }
    failures += 1
    // A quarter off at most, so that many links that fell together do not come back together.
    return .wait(min(pause, retry.upperBound) * (1 - jitter / 4))
  }
}
