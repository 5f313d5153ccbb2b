// Recognises a reset recipe (`device.reset`) in the single requests by which a client sets DTR and RTS. A value without
// a clock: requests and times in, what to do at the port out. ResetControl.swift carries that out.
//
// The first step's changes go to the port as they come. In later steps, the line that the recipe names first is held
// back until the second one follows, since the state between them may start the board. The other order passes, because
// it may be another sequence that begins alike: esptool's hard reset is RTS on, 100 ms, RTS off. Either way the whole
// recipe is replayed once the marked step is complete, and that makes up for a wrong state before.

import ByteStreams
import StreamBroker

struct ResetRecognizer {
  typealias Change = ResetRecipe.Change

  enum Step: Equatable {
    /// Make these changes at the port, in order; none: the request is only answered.
    case make([Change])
    /// Carry out the whole recipe.
    case replay
  }

  let recipe: ResetRecipe
  /// What the client has requested, including changes that are held back or were swallowed.
  private var lines: ModemOutputStates
  /// The state at the port after a replay, while the client's rest of the recipe is swallowed.
  private var replayed: ModemOutputStates?
  /// The client's next step of the recipe.
  private var next = 0
  /// When the client has deviated if the next step is not complete. Nil: it may stay where it is, since the lines just
  /// happen to have the state of the first step.
  private var limit: UInt64?
  /// A change that was answered and not made.
  private(set) var held: Change?

  /// How long after its pause a step may be late, over a network.
  static let patience = Duration.seconds(2)
  /// How long after the second line of a step the first one completes it.
  private static let swapped = Duration.seconds(1)

  /// The lines' state at the start; nil = unknown.
  init(_ recipe: ResetRecipe, _ lines: ModemOutputStates = ModemOutputStates()) {
    self.recipe = recipe
    self.lines = lines
    rest()
  }

  /// When `held` must be made at the latest.
  var deadline: UInt64? { held == nil ? nil : limit }

  /// The client requests a change.
  mutating func handle(_ change: Change, at now: UInt64) -> Step {
    let late = limit.map { now >= $0 } == true ? giveUp() : nil
    guard case .make(let changes) = follow(change, at: now) else { return .replay }
    return .make((late.map { [$0] } ?? []) + changes)
  }

  private mutating func follow(_ change: Change, at now: UInt64) -> Step {
    guard lines[change.output] != change.isOn else { return .make(held == nil && replayed == nil ? [change] : []) }
    lines[change.output] = change.isOn
    guard recipe.steps.contains(where: { $0.state(of: change.output) != nil }) else { return .make([change]) }
    guard recipe.steps[next].state(of: change.output) == change.isOn else { return .make(deviates(with: change)) }
    if lines.meets(recipe.steps[next]) { return completes(with: change, at: now) }
    if replayed != nil { return .make([]) }
    guard next > 0 else { return .make([change]) }
    let isFirst = recipe.steps[next].changes.first?.output == change.output
    limit = now &+ (isFirst ? Self.patience : Self.swapped).nanoseconds
    guard isFirst else { return .make([change]) }
    held = change
    return .make([])
  }

  /// The client does something else, or is gone: the sequence is over. Returns the change to make now.
  mutating func interrupt() -> Change? {
    // A client that sends bytes before it has ended its sequence may still end it.
    replayed == nil ? giveUp() : nil
  }

  /// Another client uses the line, or `baudway reset` has used it.
  mutating func startOver(after sequence: ResetRecipe? = nil) -> Change? {
    let late = giveUp()
    for change in sequence?.steps.flatMap(\.changes) ?? [] { lines[change.output] = change.isOn }
    rest()
    return late
  }

  private mutating func completes(with change: Change, at now: UInt64) -> Step {
    let (first, late, isReplayed) = (next, held, replayed != nil)
    held = nil
    repeat { next += 1 } while next < recipe.steps.count && lines.meets(recipe.steps[next])
    let isMarked = !isReplayed && recipe.mark < next
    let pause = recipe.steps[first..<next].reduce(Self.patience) { $0 + $1.pause }
    limit = first == 0 && !isMarked ? nil : now &+ pause.nanoseconds
    if isMarked { replayed = end }
    if next == recipe.steps.count { _ = giveUp() }
    if isMarked { return .replay }
    return .make(isReplayed ? [] : (late.map { [$0] } ?? []) + [change])
  }

  /// The lines after the whole recipe.
  private var end: ModemOutputStates {
    var lines = lines
    for change in recipe.steps.flatMap(\.changes) { lines[change.output] = change.isOn }
    return lines
  }

  private mutating func deviates(with change: Change) -> [Change] {
    var made: [Change] = []
    if let replayed {
      // The port must get what the client has requested and the replay did not leave behind.
      let other: ModemOutput = change.output == .dtr ? .rts : .dtr
      if let isOn = lines[other], replayed[other] != isOn { made.append(Change(other, isOn)) }
      if replayed[change.output] != change.isOn { made.append(change) }
    } else {
      made = (held.map { [$0] } ?? []) + [change]
    }
    held = nil
    replayed = nil
    rest()
    return made
  }

  /// The sequence is over, complete or not. Returns the change that was held back, to be made now.
  private mutating func giveUp() -> Change? {
    let late = held
    held = nil
    if let replayed { lines = replayed }
    replayed = nil
    rest()
    return late
  }

  /// Begins anew; the lines may be in the first step's state already.
  private mutating func rest() {
    next = recipe.steps[..<recipe.mark].prefix { lines.meets($0) }.count
    limit = nil
  }
}

extension ModemOutputStates {
  fileprivate func meets(_ step: ResetRecipe.Step) -> Bool { step.changes.allSatisfy { self[$0.output] == $0.isOn } }
}
