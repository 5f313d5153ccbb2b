// Where a handle's lane puts input and tasks take it. The lane reads ahead, a bounded number of bytes; a task that
// finds enough takes it without a change of thread, and otherwise waits.

import ByteStreams
import Synchronization

final class HandleInput: Sendable {
  /// Bytes that the lane reads ahead. While they are kept, the lane does not read, and the other side has to wait.
  static let capacity = 64 * 1024

  enum Outcome: Sendable {
    case bytes([UInt8])
    case ended
    case failed(any Error)
    case timedOut
    case cancelled
  }

  private struct Waiter {
    var want: InputBuffer.Want
    let deadline: UInt64?
    let continuation: CheckedContinuation<(Outcome, InputBuffer.Want), Never>
  }

  private struct State {
    var buffer = InputBuffer()
    /// No more bytes arrive.
    var end: Outcome?
    /// At most one: readers take turns.
    var waiter: Waiter?
    /// The lane does not read because there is no room.
    var isPaused = false
    /// The lane looks at the waiter's deadline at this time; nil if it has no timer.
    var alarm: UInt64?
    /// Whether the reader of this turn was cancelled before it waited.
    var isCancelled = false
  }
  private let state = Mutex(State())

  /// What the lane has to do after a task took bytes or began to wait.
  struct Chore: OptionSet {
    let rawValue: Int
    static let readOn = Chore(rawValue: 1)
    static let setAlarm = Chore(rawValue: 2)
  }

  // MARK: - Tasks

  /// Takes what `want` asks for if it is there, or the end.
  func take(_ want: inout InputBuffer.Want) -> (Outcome, Chore)? {
    state.withLock { state in Self.take(&want, &state).map { ($0, Self.chore(&state)) } }
  }

  private static func take(_ want: inout InputBuffer.Want, _ state: inout State) -> Outcome? {
    if let bytes = state.buffer.take(&want, at: monotonicNanoseconds(), isLast: state.end != nil) {
      return .bytes(bytes)
    }
    return state.end
  }

  private static func chore(_ state: inout State) -> Chore {
    guard state.isPaused, state.buffer.count <= capacity / 2, state.end == nil else { return [] }
    state.isPaused = false
    return .readOn
  }

  /// Waits for `want`, until `deadline` on the lanes' clock. Returns how far `want` was looked for. `order` is called
  /// with what the lane has to do.
  func wait(
    for want: InputBuffer.Want, until deadline: UInt64?, _ order: (Chore) -> Void
  ) async -> (Outcome, InputBuffer.Want) {
    await withTaskCancellationHandler {
      await withCheckedContinuation { continuation in
        var want = want
        var chore: Chore = []
        let outcome = state.withLock { state -> Outcome? in
          if state.isCancelled {
            state.isCancelled = false
            return .cancelled
          }
          if let outcome = Self.take(&want, &state) {
            chore = Self.chore(&state)
            return outcome
          }
          state.waiter = Waiter(want: want, deadline: deadline, continuation: continuation)
          if Self.setAlarm(&state) != nil { chore.insert(.setAlarm) }
          return nil
        }
        if let outcome { continuation.resume(returning: (outcome, want)) }
        if !chore.isEmpty { order(chore) }
      }
    } onCancel: {
      let waiter = state.withLock { state in
        if state.waiter == nil { state.isCancelled = true }
        return state.waiter.take()
      }
      waiter?.continuation.resume(returning: (.cancelled, want))
    }
  }

  /// What the lane has to do now that bytes were taken.
  func chore() -> Chore { state.withLock { state in Self.chore(&state) } }

  /// The turn of a reader is over.
  func endTurn() { state.withLock { $0.isCancelled = false } }

  /// From now on packets end by `rule`.
  func cut(by rule: PacketRule) { state.withLock { $0.buffer.cut(by: rule) } }

  // MARK: - The lane

  /// How many bytes may be appended; a unit of the stream may be longer. With 0 the lane does not read until it gets
  /// `.readOn`.
  func room(for largestUnit: Int) -> Int {
    state.withLock { state in
      let room = Self.capacity - state.buffer.count
      // Tasks wait with half of the capacity kept: room for larger units must not be required.
      if room >= min(largestUnit, Self.capacity / 2) { return room }
      state.isPaused = true
      return 0
    }
  }

  /// The waiter gets them by `serve`.
  func append(_ run: UnsafeRawBufferPointer, at now: UInt64) { state.withLock { $0.buffer.append(run, at: now) } }

  /// Gives the waiter what it waits for, if that has arrived. Returns when the alarm is due, if that has changed.
  func serve() -> UInt64? { serve { _ in } }

  var count: Int { state.withLock { $0.buffer.count } }

  func markBreak() { _ = serve { $0.buffer.markBreak() } }

  /// Only the first end counts.
  func end(_ outcome: Outcome, discarding: Bool = false) {
    _ = serve { state in
      if discarding { state.buffer.removeAll() }
      if state.end == nil { state.end = outcome }
    }
  }

  /// Changes the state, then gives the waiter what it waits for.
  private func serve(_ change: (inout State) -> Void) -> UInt64? {
    let (served, alarm) = state.withLock { state -> ((Waiter, Outcome)?, UInt64?) in
      change(&state)
      guard var waiter = state.waiter else { return (nil, nil) }
      if let outcome = Self.take(&waiter.want, &state) {
        state.waiter = nil
        return ((waiter, outcome), nil)
      }
      state.waiter = waiter
      return (nil, Self.setAlarm(&state))
    }
    if let (waiter, outcome) = served { waiter.continuation.resume(returning: (outcome, waiter.want)) }
    return alarm
  }

  /// Sets the alarm for what only the clock shows: the waiter's deadline, and a silence that ends its packet. Nil if it
  /// is set early enough.
  private static func setAlarm(_ state: inout State) -> UInt64? {
    guard let waiter = state.waiter else { return nil }
    let silence = waiter.want.isPacket ? state.buffer.idleEnd : nil
    let limit = min(waiter.deadline ?? .max, silence ?? .max)
    guard limit < state.alarm ?? .max else { return nil }
    state.alarm = limit
    return limit
  }

  /// The alarm went off. Returns when the next is due.
  func alarm(at now: UInt64) -> UInt64? {
    let (over, next) = state.withLock { state -> ((Waiter, Outcome)?, UInt64?) in
      state.alarm = nil
      guard var waiter = state.waiter else { return (nil, nil) }
      var outcome = Self.take(&waiter.want, &state)  // a packet may have ended by a silence
      if outcome == nil, let deadline = waiter.deadline, deadline <= now { outcome = .timedOut }
      state.waiter = outcome == nil ? waiter : nil
      guard let outcome else { return (nil, Self.setAlarm(&state)) }
      return ((waiter, outcome), nil)
    }
    if let (waiter, outcome) = over { waiter.continuation.resume(returning: (outcome, waiter.want)) }
    return next
  }

  /// When the alarm is due.
  var alarmTime: UInt64? { state.withLock { $0.alarm } }
}
