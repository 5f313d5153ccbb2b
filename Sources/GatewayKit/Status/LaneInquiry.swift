// Asks what lives on other lanes, and has the answers come back to its own. A lane that does not answer within a second is
// passed over from then on, so that one that hangs holds up a picture once, not once for each of its routes.

import ByteStreams
import Synchronization

/// Lives on `home`.
final class LaneInquiry {
  enum Answer<Value: Sendable>: Sendable {
    case told(Value)
    /// What was asked has gone meanwhile.
    case gone
    case stuck
  }

  private let home: Lane
  private let poller: Poller
  private var waiting: [UInt64: (Answer<any Sendable>) -> Void] = [:]
  private var lastNumber: UInt64 = 0
  private(set) var stuck: Set<ObjectIdentifier> = []
  static let limit = Duration.seconds(1)

  /// `poller` is that of `home`, on which this is called.
  init(on home: Lane, _ poller: Poller) {
    self.home = home
    self.poller = poller
  }

  /// Calls `done` with what `question` answers on the lane of `resident`; at once if that lane is known to hang.
  func ask<Asked, Value: Sendable>(
    _ resident: Resident<Asked>, _ question: @escaping @Sendable (isolated Lane, Asked) -> Value,
    then done: @escaping (Answer<Value>) -> Void
  ) {
    ask(resident, later: { lane, asked, answer in answer(question(lane, asked)) }, then: done)
  }

  /// The same for a question whose answer may take a moment: `question` is given whom to tell it, which it must do well within the limit.
  func ask<Asked, Value: Sendable>(
    _ resident: Resident<Asked>,
    later question: @escaping @Sendable (isolated Lane, Asked, @escaping (Value) -> Void) -> Void,
    then done: @escaping (Answer<Value>) -> Void
  ) {
    let lane = resident.lane
    guard !stuck.contains(ObjectIdentifier(lane)) else { return done(.stuck) }
    let number = expect(from: lane) { answer in
      switch answer {
      case .told(let value): done((value as? Value).map { .told($0) } ?? .gone)
      case .gone: done(.gone)
      case .stuck: done(.stuck)
      }
    }
    let me = Resident(self, on: home)
    let isAsked = Flag()
    resident.post { lane, asked in
      isAsked.value.store(true, ordering: .relaxed)
      question(lane, asked) { value in me.post { _, inquiry in inquiry.answered(number, .told(value)) } }
    }
    // Behind it, for the case that there was nobody to ask.
    lane.post { _ in
      if !isAsked.value.load(ordering: .relaxed) { me.post { _, inquiry in inquiry.answered(number, .gone) } }
    }
  }

  // Written and read on the lane that is asked.
  private final class Flag: Sendable {
    let value = Atomic(false)
  }

  /// Finds out which of `lanes` hang: a second at most for all of them together.
  func knock(at lanes: [Lane], then done: @escaping () -> Void) {
    var left = lanes.count
    let me = Resident(self, on: home)
    for lane in lanes {
      let number = expect(from: lane) { _ in
        left -= 1
        if left == 0 { done() }
      }
      lane.post { _ in me.post { _, inquiry in inquiry.answered(number, .gone) } }
    }
  }

  private func expect(from lane: Lane, _ done: @escaping (Answer<any Sendable>) -> Void) -> UInt64 {
    lastNumber += 1
    let number = lastNumber
    let timer = poller.timers.after(Self.limit) { [self] in
      stuck.insert(ObjectIdentifier(lane))
      answered(number, .stuck)
    }
    waiting[number] = { [poller] answer in
      poller.timers.cancel(timer)
      done(answer)
    }
    return number
  }

  /// The first answer counts; a late one finds nobody waiting.
  private func answered(_ number: UInt64, _ answer: Answer<any Sendable>) {
    waiting.removeValue(forKey: number)?(answer)
  }
}
