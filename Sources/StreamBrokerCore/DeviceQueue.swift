// Runs the blocking calls on one device: a serial queue shared by all users of that device. So a hung driver blocks no
// other device, and an opening runs after the close before it.

import ByteStreams
import Dispatch
import Glibc
import Synchronization

/// A serial queue for the blocking calls on one device, shared by all its users. So a driver that hangs delays no other
/// device and no lane, and an opening runs after the close before it. Can be used on any thread.
public final class DeviceQueue: Sendable {
  /// For `Poller.offload(to:_:then:)`.
  public var queue: DispatchQueue { core.queue }
  private let name: String
  private let core: Core

  /// Lives until all calls on the queue have finished, even if every `DeviceQueue` that used it is released.
  private final class Core: Sendable {
    let queue: DispatchQueue
    let attempts = Mutex(0)
    /// Number of `DeviceQueue`s that use it, including released ones whose last call has not finished.
    let users = Atomic<Int>(0)

    init(_ name: String) { queue = DispatchQueue(label: name) }
  }

  private struct Entry {
    let core: Core
    weak var user: DeviceQueue?
  }
  private static let queues = Mutex<[String: Entry]>([:])

  /// The queue with that name, one for all connectors of a device. So an opening by a new configuration runs after the
  /// old configuration's close, and does not find its own port in use. This holds even if the close is slow and the old
  /// `DeviceQueue` was released. An object that may use the queue later, such as a stream in `close()`, must keep it
  /// until then.
  public static func of(_ name: String) -> DeviceQueue {
    queues.withLock { queues in
      let entry = queues[name]
      if let user = entry?.user { return user }
      let queue = DeviceQueue(name, entry?.core ?? Core(name))
      queues[name] = Entry(core: queue.core, user: queue)
      return queue
    }
  }

  /// A queue that `of` does not find.
  convenience init(_ name: String) { self.init(name, Core(name)) }

  private init(_ name: String, _ core: Core) {
    self.name = name
    self.core = core
    core.users.add(1, ordering: .relaxed)
  }

  // Forget the queue only after all calls that were queued before.
  deinit { core.queue.async { [name, core] in Self.forget(name, core) } }

  private static func forget(_ name: String, _ core: Core) {
    queues.withLock { queues in
      guard core.users.subtract(1, ordering: .relaxed).newValue == 0, queues[name]?.core === core else { return }
      queues[name] = nil
    }
  }

  /// Whether a queue with that name exists; for tests.
  static func isKnown(_ name: String) -> Bool { queues.withLock { $0[name] != nil } }

  // MARK: - Opening

  /// Runs `attempt`, which may block, on this queue, then calls `done` with the result on the lane of `poller`. If
  /// `most` attempts are already unfinished, `done` is called at once with an error. If the opening is cancelled
  /// meanwhile, `undo` gets what was opened, on this queue. `what` is for the errors. The default of 2 suits a driver
  /// that hangs: one attempt that was given up, and one waiting after it. More would only pile up.
  public func open<Opened: Sendable>(
    _ what: String, most: Int = 2, on poller: Poller,
    _ attempt: @escaping @Sendable () -> Result<Opened, OpenFailure>,
    undo: @escaping @Sendable (Opened) -> Void, _ done: @escaping (Result<Opened, OpenFailure>) -> Void
  ) -> any Opening {
    guard admit(most) else {
      done(
        .failure(
          OpenFailure("open \(what)", nil, advice: "earlier attempts still hang; the next one starts when they end")))
      return CompletedOpening()
    }
    let opening = QueuedOpening(on: self, closings: poller.closings, undo: undo)
    poller.offload(to: queue) { [self] in
      defer { leave() }
      opening.run(attempt)
    } then: {
      if let result = opening.take() { done(result) }
    }
    return opening
  }

  private func admit(_ most: Int) -> Bool {
    core.attempts.withLock { count in
      guard count < most else { return false }
      count += 1
      return true
    }
  }

  private func leave() { core.attempts.withLock { $0 -= 1 } }
}

/// An attempt. It keeps what was opened until the lane takes it. A stopped lane takes nothing, and without this a
/// result that must be undone, such as a symbolic link, would remain.
private final class QueuedOpening<Opened: Sendable>: Opening, Sendable {
  private enum State: Sendable {
    case underWay
    case over(Result<Opened, OpenFailure>)
    case taken
    case cancelled(PendingCleanups.Token)
  }
  private let state = Mutex(State.underWay)
  private let device: DeviceQueue
  private let closings: PendingCleanups
  private let undo: @Sendable (Opened) -> Void

  init(on device: DeviceQueue, closings: PendingCleanups, undo: @escaping @Sendable (Opened) -> Void) {
    self.device = device
    self.closings = closings
    self.undo = undo
  }

  /// Runs on the queue. An attempt that was cancelled while it waited does not touch the device.
  func run(_ attempt: () -> Result<Opened, OpenFailure>) {
    if let token = cancellation { return closings.end(token) }
    let result = attempt()
    let cancellation = state.withLock { state -> PendingCleanups.Token? in
      if case .cancelled(let token) = state { return token }
      state = .over(result)
      return nil
    }
    if let cancellation { end(result, cancellation) }
  }

  private var cancellation: PendingCleanups.Token? {
    state.withLock { if case .cancelled(let token) = $0 { token } else { nil } }
  }

  /// Nil if it was cancelled.
  func take() -> Result<Opened, OpenFailure>? {
    state.withLock { state in
      guard case .over(let result) = state else { return nil }
      state = .taken
      return result
    }
  }

  func cancel() {
    let token = closings.begin {}
    let before = state.withLock { state in
      let before = state
      switch state {
      case .underWay, .over: state = .cancelled(token)
      case .taken, .cancelled: break
      }
      return before
    }
    switch before {
    case .underWay: break  // run(_:) ends it
    case .over(let result): device.queue.async { [self] in end(result, token) }
    case .taken, .cancelled: closings.end(token)
    }
  }

  private func end(_ result: Result<Opened, OpenFailure>, _ token: PendingCleanups.Token) {
    if case .success(let opened) = result { undo(opened) }
    closings.end(token)
  }
}
