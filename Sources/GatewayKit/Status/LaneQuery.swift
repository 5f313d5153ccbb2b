// Asks objects on other lanes, and gets the answers on its own lane. A lane that does not answer within a second is
// skipped from then on. So a lane that hangs delays a status report once, not once for each of its routes.

import ByteStreams
import Synchronization

/// Lives on `home`.
final class LaneQuery {
  enum Answer<Value: Sendable>: Sendable {
    case reported(Value)
    /// The object no longer exists.
    case gone
    case stuck
  }

  private let home: Lane
  private let poller: Poller
  private var waiting: [UInt64: (Answer<any Sendable>) -> Void] = [:]
  private var lastNumber: UInt64 = 0
  private(set) var stuck: Set<ObjectIdentifier> = []
  static let limit = Duration.seconds(1)

  /// `poller` is that of `home`, on which this must be called.
  init(on home: Lane, _ poller: Poller) {
    self.home = home
    self.poller = poller
  }

  /// Calls `done` with the result of `question`, which runs on the lane of `ref`; at once if that lane is known to
  /// hang.
  func ask<Asked, Value: Sendable>(
    _ ref: LaneRef<Asked>, _ question: @escaping @Sendable (isolated Lane, Asked) -> Value,
    then done: @escaping (Answer<Value>) -> Void
  ) {
    ask(ref, later: { lane, asked, answer in answer(question(lane, asked)) }, then: done)
  }

  /// The same for a question that takes a moment. `question` must call its last argument with the answer, well within
  /// the limit.
  func ask<Asked, Value: Sendable>(
    _ ref: LaneRef<Asked>,
    later question: @escaping @Sendable (isolated Lane, Asked, @escaping (Value) -> Void) -> Void,
    then done: @escaping (Answer<Value>) -> Void
  ) {
    let lane = ref.lane
    guard !stuck.contains(ObjectIdentifier(lane)) else { return done(.stuck) }
    let number = expect(from: lane) { answer in
      switch answer {
      case .reported(let value): done((value as? Value).map { .reported($0) } ?? .gone)
      case .gone: done(.gone)
      case .stuck: done(.stuck)
      }
    }
    let me = LaneRef(self, on: home)
    let isAsked = Flag()
    ref.post { lane, asked in
      isAsked.value.store(true, ordering: .relaxed)
      question(lane, asked) { value in me.post { _, query in query.answered(number, .reported(value)) } }
    }
    // Runs after the question: if that has not run, the object no longer exists.
    lane.post { _ in
      if !isAsked.value.load(ordering: .relaxed) { me.post { _, query in query.answered(number, .gone) } }
    }
  }

  // Written and read only on the lane that is asked.
  private final class Flag: Sendable {
    let value = Atomic(false)
  }

  /// Finds out which of `lanes` hang; takes at most a second for all of them together.
  func knock(at lanes: [Lane], then done: @escaping () -> Void) {
    var left = lanes.count
    let me = LaneRef(self, on: home)
    for lane in lanes {
      let number = expect(from: lane) { _ in
        left -= 1
        if left == 0 { done() }
      }
      lane.post { _ in me.post { _, query in query.answered(number, .gone) } }
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

  /// Only the first answer counts; late ones are ignored.
  private func answered(_ number: UInt64, _ answer: Answer<any Sendable>) {
    waiting.removeValue(forKey: number)?(answer)
  }
}
