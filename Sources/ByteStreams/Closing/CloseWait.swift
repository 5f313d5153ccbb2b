// How long to wait for a stream that closes in order. A value: facts in, the next pause out. `OrderlyClose` acts on it.

package struct CloseWait: Equatable, Sendable {
  /// What the close waits for.
  package enum Aim: Equatable, Sendable {
    /// The other side's end. Bytes that it sends before that are discarded.
    case otherSidesEnd
    /// Only the unit that the stream holds.
    case pendingOutput
    /// The other side's reads: `close()` would destroy bytes that it has not read.
    case reads
    /// The acknowledgement of output on its way: a reset would destroy that output.
    case acknowledgement
  }

  package var aim: Aim
  /// The other side has sent something since the last look.
  package var hasReceived = false
  /// The time until the next look.
  package private(set) var pause: Duration
  /// Bytes that had not reached the other side at the last look.
  private var left: Int
  /// How long `left` has not decreased.
  private var stalledFor = Duration.zero
  private var looksInVain = 0

  /// The stream closes when it received nothing for this long and none of our output is on its way.
  private static let longestSilence = Duration.seconds(2)
  /// It also closes when our last output made no progress for this long, even if input arrives. A slow reader
  /// acknowledges in large steps, seconds apart. A peer that answers while it reads would take an early reset for a
  /// refusal of its answer.
  private static let longestStall = Duration.seconds(30)
  // The shortest and the longest pause before a look. A look is needed because no event reports that the other side has
  // read or acknowledged something.
  private static let shortestPause = Duration.milliseconds(20)
  private static let longestPause = Duration.milliseconds(320)
  /// If the stream cannot count unread bytes, the reader gets this many looks, some 600 ms in all.
  private static let mostInVain = 5

  package init(for aim: Aim, _ undelivered: UndeliveredOutput) {
    self.aim = aim
    switch aim {
    case .otherSidesEnd, .pendingOutput:
      left = undelivered.onItsWay
      pause = Self.longestSilence
    case .acknowledgement:
      left = undelivered.onItsWay
      pause = Self.shortestPause
    case .reads:
      // A first 0 may be wrong.
      if case .lostAtClose(let unread?) = undelivered { left = max(1, unread) } else { left = 1 }
      pause = Self.shortestPause
    }
  }

  /// Input is read and discarded; with the other aims nothing is read.
  package var readsOn: Bool { aim == .otherSidesEnd || aim == .reads }

  /// Call it when `pause` is over. Returns the next pause, or nil when the wait is over.
  package mutating func look(_ undelivered: UndeliveredOutput, hasPendingOutput: Bool) -> Duration? {
    let before = left
    left = count(undelivered)
    stalledFor = left < before ? .zero : stalledFor + pause
    let wasHeard = hasReceived
    hasReceived = false
    guard stalledFor < Self.longestStall else { return nil }
    switch aim {
    case .otherSidesEnd, .pendingOutput: guard left > 0 || wasHeard else { return nil }
    case .acknowledgement:
      guard left > 0 || hasPendingOutput else { return nil }
      pause = min(pause * 2, Self.longestPause)
    case .reads:
      // Only a second 0 is certain: at the first, bytes may be between two buffers of the kernel.
      guard left > 0 || before > 0 else { return nil }
      pause = left == 0 ? Self.shortestPause : min(pause * 2, Self.longestPause)
    }
    return pause
  }

  private mutating func count(_ undelivered: UndeliveredOutput) -> Int {
    guard aim == .reads else { return undelivered.onItsWay }
    switch undelivered {
    case .onItsWay: return 0
    case .lostAtClose(let unread?): return unread
    case .lostAtClose(nil):
      looksInVain += 1
      return looksInVain < Self.mostInVain ? 1 : 0
    }
  }
}
