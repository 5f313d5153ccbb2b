// The step that follows from a session's state, row by row of the table in ARCHITECTURE.md, "How a session ends": each
// side ended, failed or stalled, with each state of the other side, on a per-client and on a shared link.

import Testing

@testable import GatewayKit

@Suite("The step that follows from a session's state", .timeLimit(.minutes(5)))
struct SettlementTests {
  typealias Facts = Settlement.Facts
  typealias Flag = WritableKeyPath<Facts, Bool>

  struct Row: CustomStringConvertible {
    let description: String
    let step: Settlement.Step
    let facts: Facts
  }

  /// `other` lists the flags that differ from a session whose two sides are open and take everything.
  private static func row(
    _ description: String, _ step: Settlement.Step, shared: Bool, _ other: [Flag] = [],
    client: Settlement.Output? = nil, endpoint: Settlement.Output? = nil, drain: Int = 5, halfClose: Int? = 7
  ) -> Row {
    var facts = Facts(client: client, endpoint: endpoint, isShared: shared, drain: .seconds(drain))
    facts.halfClose = shared ? halfClose.map { .seconds($0) } : nil
    for flag in other { facts[keyPath: flag].toggle() }
    return Row(description: (shared ? "shared: " : "own: ") + description, step: step, facts: facts)
  }

  private static func own(
    _ description: String, _ step: Settlement.Step, _ other: [Flag], client: Settlement.Output? = nil,
    endpoint: Settlement.Output? = nil, drain: Int = 5
  ) -> [Row] {
    [row(description, step, shared: false, other, client: client, endpoint: endpoint, drain: drain)]
  }

  private static func shared(
    _ description: String, _ step: Settlement.Step, _ other: [Flag], drain: Int = 5, halfClose: Int? = 7
  ) -> [Row] {
    [row(description, step, shared: true, other, drain: drain, halfClose: halfClose)]
  }

  private static func both(
    _ description: String, _ step: Settlement.Step, _ other: [Flag], client: Settlement.Output? = nil
  ) -> [Row] {
    [false, true].map { row(description, step, shared: $0, other, client: client) }
  }

  private static func check(
    _ rows: [Row], _ step: (Facts) -> Settlement.Step = Settlement.step,
    sourceLocation: SourceLocation = #_sourceLocation
  ) {
    for row in rows {
      #expect(step(row.facts) == row.step, "\(row)", sourceLocation: sourceLocation)
    }
  }

  @Test("both sides are open; a stalled client is left to the slow-client policy, a stalled device makes all wait")
  func present() {
    Self.check(Self.both("both are there", .nothing, []))
    Self.check(Self.both("the client is stalled", .nothing, [\.hasAllOutput]))
    Self.check(Self.both("the endpoint is stalled", .nothing, [\.keepsInput]))
    Self.check(Self.both("both are stalled", .nothing, [\.hasAllOutput, \.keepsInput]))
    Self.check(Self.both("the endpoint is not open, or lost", .nothing, [\.hasEndpoint]))
    Self.check(Self.both("somebody wants a slot", .nothing, [\.slotIsWanted]))
    Self.check(Self.both("a mistake of ours", .end(.fault), [\.isBroken]))
    Self.check(Self.both("a mistake of ours while it leaves", .end(.fault), [\.isBroken, \.isLeaving]))
  }

  @Test("the client has ended, or its end is unread, on a per-client link")
  func clientEndedOwn() {
    let canEnd = Settlement.Output.isOut(canHalfClose: true), cannotEnd = Settlement.Output.isOut(canHalfClose: false)
    Self.check(Self.own("endpoint stalled", .watch(.seconds(30)), [\.inputHasEnded, \.keepsInput]))
    Self.check(
      Self.own("endpoint stalled, longer drain", .watch(.seconds(60)), [\.inputHasEnded, \.keepsInput], drain: 60))
    Self.check(Self.own("its end is unread", .watch(.seconds(30)), [\.hasSentLastByte, \.keepsInput]))
    Self.check(Self.own("all delivered, a deadline runs", .stopWatching, [\.inputHasEnded, \.isWatched]))
    Self.check(Self.own("all delivered", .askEndpoint, [\.inputHasEnded]))
    Self.check(Self.own("all delivered, client stalled", .askEndpoint, [\.inputHasEnded, \.hasAllOutput]))
    Self.check(Self.own("the endpoint holds a unit", .nothing, [\.inputHasEnded], endpoint: .isPending))
    Self.check(Self.own("the endpoint can be told", .passEndOn, [\.inputHasEnded], endpoint: canEnd))
    Self.check(Self.own("the endpoint can't be told", .leave(.clientLeft), [\.inputHasEnded], endpoint: cannotEnd))
    Self.check(Self.own("the endpoint was told", .nothing, [\.inputHasEnded, \.isEndPassedOn]))
    Self.check(Self.own("the endpoint is not open yet", .nothing, [\.inputHasEnded, \.hasEndpoint]))
  }

  @Test("the client has ended, or its end is unread, on a shared link")
  func clientEndedShared() {
    let half = Settlement.Step.awaitSilence(.seconds(7))
    Self.check(Self.shared("device stalled", .watch(.seconds(5)), [\.inputHasEnded, \.keepsInput]))
    Self.check(
      Self.shared("device stalled, longer drain", .watch(.seconds(60)), [\.inputHasEnded, \.keepsInput], drain: 60))
    Self.check(Self.shared("device away", .watch(.seconds(5)), [\.inputHasEnded, \.keepsInput, \.hasEndpoint]))
    Self.check(
      Self.shared(
        "device stalled, slot wanted", .watch(.seconds(5)), [\.inputHasEnded, \.keepsInput, \.slotIsWanted]))
    Self.check(Self.shared("its end is unread", .watch(.seconds(5)), [\.hasSentLastByte, \.keepsInput]))
    Self.check(Self.shared("its end is unread, nothing kept", .watch(.seconds(5)), [\.hasSentLastByte]))
    Self.check(Self.shared("all delivered", half, [\.inputHasEnded]))
    Self.check(Self.shared("all delivered, client stalled", half, [\.inputHasEnded, \.hasAllOutput]))
    Self.check(Self.shared("all delivered, a deadline runs", half, [\.inputHasEnded, \.isWatched]))
    Self.check(Self.shared("nothing kept, device away", half, [\.inputHasEnded, \.hasEndpoint]))
    Self.check(Self.shared("half-close off", .leave(.clientLeft), [\.inputHasEnded], halfClose: nil))
    Self.check(
      Self.shared(
        "half-close off, client stalled", .leave(.clientLeft), [\.inputHasEnded, \.hasAllOutput], halfClose: nil))
    Self.check(Self.shared("slot wanted", .end(.clientLeft), [\.inputHasEnded, \.slotIsWanted]))
    Self.check(
      Self.shared(
        "slot wanted, half-close off", .end(.clientLeft), [\.inputHasEnded, \.slotIsWanted], halfClose: nil))
  }

  @Test("the client has failed, or takes no more")
  func clientFailed() {
    let failed: [Flag] = [\.inputHasEnded, \.inputHasFailed, \.takesOutput]
    Self.check(Self.both("all delivered", .end(.inputError), failed))
    Self.check(Self.both("endpoint ended", .end(.inputError), failed + [\.endpointHasEnded]))
    Self.check(Self.both("slot wanted", .end(.inputError), failed + [\.slotIsWanted]))
    Self.check(Self.own("endpoint stalled", .watch(.seconds(30)), failed + [\.keepsInput]))
    Self.check(Self.shared("device stalled", .watch(.seconds(5)), failed + [\.keepsInput]))
    Self.check(Self.both("a write failed, its input goes on", .nothing, [\.takesOutput]))
    Self.check(Self.both("it was reset, its input is unread", .nothing, [\.takesOutput, \.inputHasFailed]))
    Self.check(Self.both("a write failed, and it has ended", .end(.clientLeft), [\.takesOutput, \.inputHasEnded]))
  }

  // A shared endpoint that ends is lost: its clients stay, or their sessions end.
  @Test("the endpoint has ended, on a per-client link")
  func endpointEnded() {
    let canEnd = Settlement.Output.isOut(canHalfClose: true), cannotEnd = Settlement.Output.isOut(canHalfClose: false)
    let wait = Settlement.Step.watch(.seconds(30))
    Self.check(Self.own("client stalled", .nothing, [\.endpointHasEnded, \.hasAllOutput]))
    Self.check(
      Self.own("client stalled, its end unread", wait, [\.endpointHasEnded, \.hasAllOutput, \.hasSentLastByte]))
    Self.check(Self.own("the client has all", .askClient, [\.endpointHasEnded]))
    Self.check(Self.own("the client's stream holds a unit", wait, [\.endpointHasEnded], client: .isPending))
    Self.check(Self.own("the client can be told", .endOutput, [\.endpointHasEnded], client: canEnd))
    Self.check(Self.own("the client can't be told", .leave(.firstEnd), [\.endpointHasEnded], client: cannotEnd))
    Self.check(Self.own("the client was told", wait, [\.endpointHasEnded, \.isNotifiedOfEnd]))
    Self.check(Self.own("the client was told, longer drain", wait, [\.endpointHasEnded, \.isNotifiedOfEnd], drain: 60))
    Self.check(
      Self.own(
        "its end unread, longer drain", .watch(.seconds(60)),
        [\.endpointHasEnded, \.isNotifiedOfEnd, \.hasSentLastByte],
        drain: 60))
    Self.check(Self.own("a write to the client failed", wait, [\.endpointHasEnded, \.takesOutput]))
  }

  @Test("both sides have ended, on a per-client link")
  func bothEnded() {
    let out = Settlement.Output.isOut(canHalfClose: true), deaf = Settlement.Output.isOut(canHalfClose: false)
    let ended: [Flag] = [\.endpointHasEnded, \.inputHasEnded]
    Self.check(Self.own("all delivered", .askClient, ended))
    Self.check(Self.own("the client's stream holds a unit", .watch(.seconds(30)), ended, client: .isPending))
    Self.check(Self.own("all is out", .end(.firstEnd), ended, client: out))
    Self.check(Self.own("all is out, the client can't be told", .end(.firstEnd), ended, client: deaf))
    Self.check(Self.own("all is out, the client was told", .end(.firstEnd), ended + [\.isNotifiedOfEnd], client: out))
    Self.check(Self.own("client stalled", .askEndpoint, ended + [\.hasAllOutput]))
    Self.check(Self.own("client stalled, its end passed on", .nothing, ended + [\.hasAllOutput, \.isEndPassedOn]))
    Self.check(Self.own("endpoint stalled", .askClient, ended + [\.keepsInput]))
    Self.check(
      Self.own(
        "endpoint stalled, the client was told", .watch(.seconds(30)), ended + [\.keepsInput, \.isNotifiedOfEnd]))
    Self.check(Self.own("a write to the client failed", .end(.clientLeft), ended + [\.takesOutput]))
  }

  @Test("the session is being ended, on either kind of link")
  func leaving() {
    let ended: [Flag] = [\.isLeaving, \.inputHasEnded]
    let (drain, slow) = (Settlement.Step.watch(.seconds(5)), Settlement.Step.watch(.seconds(30)))
    Self.check(Self.both("it is read on", drain, [\.isLeaving]))
    Self.check(Self.both("nothing came with the last read", .awaitQuiet, [\.isLeaving, \.inputMayBeOver]))
    Self.check(Self.both("it goes on sending", .endInput, [\.isLeaving, \.hasSentTooMuch, \.inputMayBeOver]))
    Self.check(Self.both("all is read", drain, ended + [\.keepsInput, \.hasSentTooMuch, \.inputMayBeOver]))
    Self.check(Self.both("the client is stalled", drain, ended + [\.hasAllOutput]))
    Self.check(Self.both("the client is stalled and may be slow", slow, ended + [\.hasAllOutput, \.mayBeSlow]))
    Self.check(
      Self.both("the endpoint is stalled, the client may be slow", drain, ended + [\.keepsInput, \.mayBeSlow]))
    Self.check(
      Self.both("both are stalled, the client may be slow", slow, ended + [\.keepsInput, \.hasAllOutput, \.mayBeSlow]))
    Self.check(Self.both("all is delivered, both ways", .askClient, ended))
    Self.check(Self.both("its stream holds a unit", drain, ended + [\.mayBeSlow], client: .isPending))
    Self.check(Self.both("all is out", .end(.dismissal), ended, client: .isOut(canHalfClose: false)))
    Self.check(Self.both("a write to it failed", .end(.dismissal), ended + [\.takesOutput]))
    Self.check(Self.both("its client failed", .end(.dismissal), ended + [\.takesOutput, \.inputHasFailed]))
    Self.check(Self.both("the endpoint has ended", .askClient, ended + [\.endpointHasEnded]))
    Self.check(Self.both("its slot is wanted", drain, ended + [\.keepsInput, \.slotIsWanted]))
  }

  @Test("a deadline has passed without progress")
  func withoutProgress() {
    let step = Settlement.stepWithoutProgress
    Self.check(Self.both("sent away", .end(.dismissal), [\.isLeaving, \.keepsInput]), step)
    Self.check(Self.both("the client's end is unread", .end(.firstEnd), [\.hasSentLastByte]), step)
    Self.check(Self.both("the endpoint has ended, the client is silent", .end(.firstEnd), [\.endpointHasEnded]), step)
    Self.check(Self.shared("the device takes no last bytes", .giveUpInput, [\.inputHasEnded, \.keepsInput]), step)
    Self.check(Self.own("the endpoint takes no last bytes", .end(.firstEnd), [\.inputHasEnded, \.keepsInput]), step)
  }

  @Test("input of a session that is being ended is read, kept or dropped")
  func lastInput() {
    func input(_ canReach: Bool, _ isFlushed: Bool, _ mayWrite: Bool) -> Settlement.LastInput {
      Settlement.lastInput(canReachEndpoint: canReach, isFlushed: isFlushed, mayWrite: mayWrite)
    }
    #expect(input(true, false, true) == .isRead)
    #expect(input(true, false, false) == .isKept)
    for mayWrite in [true, false] {
      #expect(input(false, false, mayWrite) == .isDropped)
      #expect(input(true, true, mayWrite) == .isDropped)
      #expect(input(false, true, mayWrite) == .isDropped)
    }
  }

  /// What the hub does for a step, as far as the facts show it.
  private func follow(_ step: Settlement.Step, _ facts: inout Facts, _ answer: Settlement.Output) -> Bool {
    switch step {
    case .askClient: facts.client = answer
    case .askEndpoint: facts.endpoint = answer
    case .endInput: facts.inputHasEnded = true
    case .awaitQuiet: facts.inputMayBeOver = false
    case .endOutput: facts.isNotifiedOfEnd = true
    case .passEndOn: facts.isEndPassedOn = true
    case .stopWatching: facts.isWatched = false
    case .giveUpInput, .watch, .awaitSilence, .leave, .end, .nothing: return false
    }
    if step != .askClient && step != .askEndpoint { (facts.client, facts.endpoint) = (nil, nil) }
    return true
  }

  @Test("reaches a last step from every state, and asks no stream twice for the same")
  func comesToAnEnd() {
    let flags: [Flag] = [
      \.isLeaving, \.inputHasEnded, \.keepsInput, \.hasSentLastByte, \.inputHasFailed, \.hasSentTooMuch,
      \.inputMayBeOver,
      \.isEndPassedOn, \.takesOutput, \.hasAllOutput, \.isNotifiedOfEnd, \.isShared, \.hasEndpoint, \.endpointHasEnded,
      \.isWatched,
    ]
    var longest = 0
    for bits in 0..<1 << flags.count {
      for answer in [Settlement.Output.isPending, .isOut(canHalfClose: true), .isOut(canHalfClose: false)] {
        var facts = Facts()
        for (index, flag) in flags.enumerated() { facts[keyPath: flag] = bits >> index & 1 == 1 }
        var steps = 0
        while steps < 10, follow(Settlement.step(facts), &facts, answer) { steps += 1 }
        longest = max(longest, steps)
      }
    }
    #expect(longest == 3, "stopWatching, askEndpoint, passEndOn")
  }
}
