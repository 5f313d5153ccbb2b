// A line's reset recipe at work: passes a client's requests to ResetRecognizer, and makes changes that were held back.
// LineControl owns it and replays the recipe.

import ByteStreams
import StreamBroker

final class ResetControl {
  enum Answer {
    /// The request is carried out as any other.
    case carryOut
    /// The request is answered with success, and nothing is done now.
    case answer
    /// The same, and the recipe is replayed.
    case replay(ResetRecipe)
  }

  private let poller: Poller
  /// Nil: no recipe.
  private var recognizer: ResetRecognizer?
  /// The session whose requests it follows.
  private var session: UInt64?
  private var timer: Timers.Token?
  /// The port has no such lines.
  private var isRefused = false
  /// Sequences under way at the port.
  var running = 0

  init(_ recipe: ResetRecipe?, on poller: Poller) {
    self.poller = poller
    recognizer = recipe.map { ResetRecognizer($0) }
  }

  var recipe: ResetRecipe? { recognizer?.recipe }

  /// A change of this session was answered and is held back.
  func isHolding(for number: UInt64) -> Bool { session == number && recognizer?.held != nil }

  /// Whether the request may be taken now. While a sequence runs, only requests that need nothing from the port may.
  func mayTake(_ request: ControlChannelRequest?, of number: UInt64) -> Bool {
    guard running > 0 else { return true }
    guard session == number, case .output(let output, let isOn)? = request, var copy = recognizer else { return false }
    return copy.handle(.init(output, isOn), at: poller.timers.now) == .make([])
  }

  /// Decides about the session's request. Changes that must come before it are given to `make`.
  /// `expired` is called when a change was held back for too long.
  func take(
    _ request: ControlChannelRequest, of number: UInt64, _ line: any SerialLine,
    make: (ResetRecipe.Change) -> Void, expired: @escaping () -> Void
  ) -> Answer {
    guard recognizer != nil, line.keepsTime, !isRefused else { return .carryOut }
    if session != number, let change = recognizer?.startOver() { make(change) }
    session = number
    defer { setTimer(expired) }
    guard case .output(let output, let isOn) = request else {
      if let change = recognizer?.interrupt() { make(change) }
      return .carryOut
    }
    let change = ResetRecipe.Change(output, isOn)
    guard case .make(let changes)? = recognizer?.handle(change, at: poller.timers.now) else {
      return recipe.map { .replay($0) } ?? .carryOut
    }
    for other in changes where other != change { make(other) }
    return changes.isEmpty ? .answer : .carryOut
  }

  /// The change that was held back, once it is time for it or the client does something else.
  func release() -> ResetRecipe.Change? {
    poller.timers.cancel(timer)
    return recognizer?.interrupt()
  }

  /// Before `recipe` runs by a command: returns the change that was held back.
  func startOver(after recipe: ResetRecipe) -> ResetRecipe.Change? {
    poller.timers.cancel(timer)
    return recognizer?.startOver(after: recipe)
  }

  /// Another endpoint, or another recipe after a reload: nothing is known about the lines.
  func reset(to recipe: ResetRecipe?) {
    poller.timers.cancel(timer)
    recognizer = recipe.map { ResetRecognizer($0) }
    session = nil
    isRefused = false
  }

  /// The port refused a change: no further one may be answered without it.
  func portRefuses() { isRefused = true }

  private func setTimer(_ expired: @escaping () -> Void) {
    poller.timers.cancel(timer)
    guard let deadline = recognizer?.deadline else { return timer = nil }
    let now = poller.timers.now
    timer = poller.timers.after(.nanoseconds(Int64(clamping: deadline &- min(now, deadline))), expired)
  }
}
