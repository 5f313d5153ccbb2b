// What both directions of a link have in common: the state that Foundation's streams show, events in their order, and
// waits, both of threads and of the task that moves bytes between the buffer and the handle.

import Foundation

class StreamSide: @unchecked Sendable {  // unchecked: all state is behind `lock`
  /// How the direction ended by itself.
  enum End {
    case ended
    case failed(NSError)
  }

  struct State {
    var isOpen = false
    var isClosed = false
    var bytes = ByteQueue()
    var end: End?
    /// How many bytes the program has read or written.
    var moved = 0
    weak var stream: Stream?
    weak var delegate: (any StreamDelegate)?
    var openIsReported = false
    var endIsReported = false
    /// The program has read or written since bytes or space were last reported.
    var mayReport = true
    /// The task that moves the bytes, while it waits for a change.
    var sleeper: CheckedContinuation<Void, Never>?

    var hasEnded: Bool { if case nil = end { false } else { true } }
  }

  static let capacity = 64 * 1024
  private let lock = NSCondition()
  private var state = State()
  private let schedule = RunLoopSchedule()

  // MARK: - What a direction decides

  var readyEvent: Stream.Event { fatalError("abstract") }
  /// There are bytes to read, or there is space.
  func isReady(_ state: State) -> Bool { fatalError("abstract") }
  /// The program has got everything that came before the end.
  func showsEnd(_ state: State) -> Bool { fatalError("abstract") }

  // MARK: - Changes

  /// Changes the state, and wakes everybody who waits for that. Must not release a stream or a delegate: their deinit
  /// may come back here.
  func change<Result>(_ body: (inout State) -> Result) -> Result {
    let (result, sleeper, isDue) = locked { state in
      let result = body(&state)
      return (result, state.sleeper.take(), dueEvent(state) != nil)
    }
    lock.broadcast()
    sleeper?.resume()
    if isDue { schedule.ring() }
    return result
  }

  func locked<Result>(_ body: (inout State) -> Result) -> Result {
    lock.lock()
    defer { lock.unlock() }
    return body(&state)
  }

  /// Blocks the thread until `body` returns something, which it is asked after each change.
  func wait<Result>(for body: (inout State) -> Result?) -> Result {
    lock.lock()
    defer { lock.unlock() }
    while true {
      if let result = body(&state) { return result }
      lock.wait()
    }
  }

  /// The program has read or written `count` bytes; 0 or less if it could not. Returns `count`.
  func moved(_ count: Int) -> Int {
    guard count > 0 else { return count }
    change { state in
      state.moved += count
      state.mayReport = true
    }
    return count
  }

  /// As `wait`, for the task that moves the bytes; the program then sees what `body` has changed.
  func next<Result>(_ body: (inout State) -> Result?) async -> Result {
    while true {
      var result: Result?
      await withCheckedContinuation { continuation in
        result = locked { state in
          let result = body(&state)
          if result == nil { state.sleeper = continuation }
          return result
        }
        if result != nil { continuation.resume() }
      }
      if let result {
        change { _ in }
        return result
      }
    }
  }

  /// The direction has ended; only the first end counts.
  func finish(_ end: End) {
    change { if $0.end == nil { $0.end = end } }
  }

  // MARK: - What a stream shows

  /// The stream that the program has.
  var stream: Stream? {
    get { locked { $0.stream } }
    set { locked { $0.stream = newValue } }
  }

  var delegate: (any StreamDelegate)? {
    get { locked { $0.delegate } }
    set { change { $0.delegate = newValue } }
  }

  var moved: Int { locked { $0.moved } }
  var isReadyNow: Bool { locked { $0.isOpen && !$0.isClosed && isReady($0) } }

  var status: Stream.Status {
    locked { state in
      if state.isClosed { return .closed }
      guard state.isOpen else { return .notOpen }
      guard let end = state.end, showsEnd(state) else { return .open }
      if case .ended = end { return .atEnd }
      return .error
    }
  }

  var error: NSError? {
    locked { state in
      guard case .failed(let error) = state.end, showsEnd(state) else { return nil }
      return error
    }
  }

  // MARK: - Events

  func add(_ runLoop: RunLoop, _ mode: RunLoop.Mode) {
    schedule.add(runLoop, mode) { [weak self] in self?.deliver() }
    if locked({ dueEvent($0) != nil }) { schedule.ring() }
  }

  func remove(_ runLoop: RunLoop, _ mode: RunLoop.Mode) { schedule.remove(runLoop, mode) }
  func removeFromRunLoops() { schedule.removeAll() }

  /// The next event that the delegate must get, if there is one.
  private func dueEvent(_ state: State) -> Stream.Event? {
    guard state.isOpen, !state.isClosed else { return nil }
    if !state.openIsReported { return .openCompleted }
    if state.mayReport, isReady(state) { return readyEvent }
    guard let end = state.end, !state.endIsReported, showsEnd(state) else { return nil }
    if case .ended = end { return .endEncountered }
    return .errorOccurred
  }

  /// A few events a time: each call of the run loop costs a timer, and others of the run loop must get their turn.
  private func deliver() {
    for _ in 0..<8 where !deliverOne() { return }
    if locked({ dueEvent($0) != nil }) { schedule.ring() }
  }

  /// False if there was none to deliver.
  private func deliverOne() -> Bool {
    // Held until the end of this function: the delegate may release them.
    let (stream, delegate) = locked { ($0.stream, $0.delegate) }
    guard let stream, let delegate else { return false }
    let event = locked { state -> Stream.Event? in
      let event = dueEvent(state)
      switch event {
      case .openCompleted?: state.openIsReported = true
      case .endEncountered?, .errorOccurred?: state.endIsReported = true
      case nil: break
      default: state.mayReport = false
      }
      return event
    }
    guard let event else { return false }
    delegate.stream(stream, handle: event)
    return true
  }
}

/// Bytes in order.
struct ByteQueue {
  private var storage: [UInt8] = []
  private var head = 0

  var count: Int { storage.count - head }
  var isEmpty: Bool { count == 0 }

  mutating func append(_ bytes: [UInt8]) {
    if isEmpty { self = ByteQueue(storage: bytes) } else { storage.append(contentsOf: bytes) }
  }

  mutating func append(_ bytes: UnsafeBufferPointer<UInt8>) {
    if isEmpty { removeAll() }
    storage.append(contentsOf: bytes)
  }

  /// Copies bytes out, up to `most`; returns how many.
  mutating func take(into target: UnsafeMutablePointer<UInt8>, most: Int) -> Int {
    let number = min(count, most)
    storage.withUnsafeBufferPointer { all in
      if number > 0 { target.update(from: all.baseAddress! + head, count: number) }
    }
    head += number
    if isEmpty { removeAll() }
    return number
  }

  mutating func takeAll() -> [UInt8] {
    defer { self = ByteQueue() }
    return head == 0 ? storage : Array(storage[head...])
  }

  mutating func removeAll() {
    storage.removeAll(keepingCapacity: true)
    head = 0
  }
}

extension ByteQueue {
  private init(storage: [UInt8]) { self.init(storage: storage, head: 0) }
}
