// Decides when a link is opened, closed and tried again. A value: events in, steps out; the link acts. It sees no
// socket and no clock.

/// ```
/// closed → opening → open → opening …          a step is what the owner does next
///            ↓  ↑      ↓
///           waiting ←──┘ (failed, lost)
/// ```
struct Device {
  enum Event: Equatable {
    /// Somebody needs the link: a client came, or it is to be open always.
    case wanted
    /// Nobody needs it any more, and what was sent to it is out.
    case unwanted
    case opened, failed, lost
    case retryIsDue
    /// Its node is there, or has changed: waiting longer is pointless.
    case nodeAppeared
  }

  enum Step: Equatable {
    case open
    case cancelOpening
    case close
    /// Try again after so long; an alarm that is set already is replaced.
    case wait(Duration)
    case stopWaiting
    /// It will not be tried again: for links of one client.
    case giveUp
    case nothing
  }

  enum State: Equatable { case closed, opening, open, waiting }

  private(set) var state = State.closed
  /// The shortest and the longest pause between two tries; nil = a single try.
  let retry: ClosedRange<Duration>?
  private var failures = 0
  // Told while opening was under way, so that attempt may have come too early.
  private var nodeHasAppeared = false
  // A link that opens and breaks at once must not be tried in a circle: only one that held for this long counts as good.
  static let goodAfter = Duration.seconds(5)

  init(retry: ClosedRange<Duration>?) { self.retry = retry }

  /// `jitter` from 0 to 1 spreads the tries of many links; `heldFor` is how long a link that is lost was open.
  mutating func handle(_ event: Event, jitter: Double = 0.5, heldFor: Duration = .zero) -> Step {
    switch (state, event) {
    case (.closed, .wanted), (.waiting, .retryIsDue):
      state = .opening
      nodeHasAppeared = false
      return .open
    case (.waiting, .nodeAppeared):
      state = .opening
      nodeHasAppeared = false
      failures = 0
      return .open
    case (.opening, .nodeAppeared):
      nodeHasAppeared = true
      return .nothing
    case (.opening, .opened):
      state = .open
      return .nothing
    case (.opening, .failed):
      return pause(jitter)
    case (.open, .lost):
      if heldFor >= Self.goodAfter { failures = 0 }
      return pause(jitter)
    case (.opening, .unwanted):
      state = .closed
      failures = 0
      return .cancelOpening
    case (.waiting, .unwanted):
      state = .closed
      failures = 0
      return .stopWaiting
    case (.open, .unwanted):
      state = .closed
      failures = 0
      return .close
    default:
      return .nothing  // late news about a step that is behind us
    }
  }

  private mutating func pause(_ jitter: Double) -> Step {
    guard let retry else {
      state = .closed
      return .giveUp
    }
    state = .waiting
    var pause = retry.lowerBound
    if nodeHasAppeared {
      failures = 0
    } else {
      for _ in 0..<min(failures, 32) where pause < retry.upperBound { pause *= 2 }
    }
    nodeHasAppeared = false
    failures += 1
    // A quarter off at most, so that many links that fell together do not come back together.
    return .wait(min(pause, retry.upperBound) * (1 - jitter / 4))
  }
}
