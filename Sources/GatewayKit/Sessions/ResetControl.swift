// A line's reset recipe at work: passes a client's requests to ResetRecognizer, holds changes back, makes them later, and
// replays recipes, also for `baudway reset`. LineControl owns it.

import ByteStreams
import StreamBroker

final class ResetControl {
  enum Answer {
    /// The request is carried out as any other.
    case carryOut
    /// The request is answered with success, and nothing is done now.
    case answer
    /// The same, and the recipe is replayed.
    case replay
  }

  unowned var owner: (any LinePartOwner)!  // set once
  private let poller: Poller
  private var line: (any SerialLine)?
  /// Counts attached and detached lines, to recognise and ignore a late result of one that is gone.
  private var attachment = 0
  /// Nil: no recipe.
  private var recognizer: ResetRecognizer?
  /// The session whose requests it follows.
  private var session: UInt64?
  private var timer: Timers.Token?
  /// The port has no such lines.
  private var isRefused = false
  /// The sequences under way at the port, by number, and what gets the result of each.
  private var running: [Int: (Result<Void, LinkRefusal>) -> Void] = [:]
  private var lastNumber = 0

  init(_ recipe: ResetRecipe?, on poller: Poller) {
    self.poller = poller
    recognizer = recipe.map { ResetRecognizer($0) }
  }

  // MARK: - The endpoint

  /// Another endpoint: nothing is known about its lines.
  func attach(_ line: (any SerialLine)?) {
    attachment += 1
    self.line = line
    reset(to: recognizer?.recipe)
  }

  func detach() {
    attach(nil)
    let waiting = running.values
    running = [:]
    for answer in waiting { answer(.failure(LinkRefusal("the link has closed"))) }
  }

  /// A reload.
  func update(_ recipe: ResetRecipe?) {
    guard recipe != recognizer?.recipe else { return }
    release()
    reset(to: recipe)
  }

  private func reset(to recipe: ResetRecipe?) {
    poller.timers.cancel(timer)
    recognizer = recipe.map { ResetRecognizer($0) }
    session = nil
    isRefused = false
  }

  /// The port refused a change: no further one may be answered without it.
  func portRefuses() { isRefused = true }

  // MARK: - A client's requests

  /// A change of this session was answered and is held back.
  func isHolding(for number: UInt64) -> Bool { session == number && recognizer?.held != nil }

  /// Whether the request may be taken now. While a sequence runs, only requests that need nothing from the port may.
  func mayTake(_ request: ControlChannelRequest?, of number: UInt64) -> Bool {
    guard !running.isEmpty else { return true }
    guard session == number, case .output(let output, let isOn)? = request, var copy = recognizer else { return false }
    return copy.handle(.init(output, isOn), at: poller.timers.now) == .make([])
  }

  /// Decides about the session's request. Makes changes that must come before it, or replays the recipe that it
  /// completes.
  func take(_ request: ControlChannelRequest, of number: UInt64) -> Answer {
    guard let line, recognizer != nil, line.keepsTime, !isRefused else { return .carryOut }
    let answer = decide(request, of: number)
    setTimer()
    if case .replay = answer, let recipe = recognizer?.recipe { replay(recipe, for: number, on: line) { _ in } }
    return answer
  }

  private func decide(_ request: ControlChannelRequest, of number: UInt64) -> Answer {
    if session != number, let change = recognizer?.startOver() { make(change) }
    session = number
    guard case .output(let output, let isOn) = request else {
      if let change = recognizer?.interrupt() { make(change) }
      return .carryOut
    }
    let change = ResetRecipe.Change(output, isOn)
    guard case .make(let changes)? = recognizer?.handle(change, at: poller.timers.now) else { return .replay }
    for other in changes where other != change { make(other) }
    return changes.isEmpty ? .answer : .carryOut
  }

  private func setTimer() {
    poller.timers.cancel(timer)
    guard let deadline = recognizer?.deadline else { return timer = nil }
    let now = poller.timers.now
    timer = poller.timers.after(.nanoseconds(Int64(clamping: deadline &- min(now, deadline)))) { [weak self] in
      self?.release()
    }
  }

  /// Makes the change that was held back, once it is time for it or the client does something else.
  func release() {
    guard line != nil else { return }
    poller.timers.cancel(timer)
    if let change = recognizer?.interrupt() { make(change) }
  }

  /// The request was answered before. Bytes wait for the port.
  private func make(_ change: ResetRecipe.Change) {
    guard let line else { return }
    owner.hold()
    line.set(change.output, change.isOn) { [weak self, attachment, session] _ in
      guard let self, attachment == self.attachment else { return }
      owner.reportOutputs(except: session)
      owner.resume()
    }
  }

  // MARK: - Replayed

  /// Carries out the recipe for `baudway reset`.
  func run(_ recipe: ResetRecipe, then done: @escaping (Result<Void, LinkRefusal>) -> Void) {
    guard let line else { return done(.failure(.noLine)) }
    guard line.keepsTime else { return done(.failure(.elsewhere)) }
    poller.timers.cancel(timer)
    if let change = recognizer?.startOver(after: recipe) { line.set(change.output, change.isOn) { _ in } }
    replay(recipe, for: nil, on: line, then: done)
  }

  /// Other commands, and all input of clients, wait until it is done.
  private func replay(
    _ recipe: ResetRecipe, for session: UInt64?, on line: any SerialLine,
    then done: @escaping (Result<Void, LinkRefusal>) -> Void
  ) {
    lastNumber += 1
    let number = lastNumber
    running[number] = done
    owner.hold()
    line.perform(recipe.lineSteps) { [weak self] result in
      // Without an answer, the line is gone.
      guard let self, let answer = running.removeValue(forKey: number), let owner else { return }
      owner.lineWasReset(by: recipe, for: session, result)
      owner.reportOutputs(except: session)
      answer(result.mapError { LinkRefusal($0) })
      owner.resume()
      owner.runAll()
    }
  }
}
