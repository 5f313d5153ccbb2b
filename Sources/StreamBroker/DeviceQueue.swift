// Where the blocking calls on one device run: a serial queue that all who name the device share, so that one hung driver
// stops nobody else, and so that what opens a device queues behind what closes it.

import ByteStreams
import Dispatch
import Glibc
import Synchronization

public final class DeviceQueue: Sendable {
  public var queue: DispatchQueue { core.queue }
  private let name: String
  private let core: Core

  /// What lives until all that was asked for on the queue is done, whoever has let go of it by then.
  private final class Core: Sendable {
    let queue: DispatchQueue
    let attempts = Mutex(0)
    /// Those who have it, and those who have let go of it whose last call is not done yet.
    let users = Atomic<Int>(0)

    init(_ name: String) { queue = DispatchQueue(label: name) }
  }

  private struct Entry {
    let core: Core
    weak var user: DeviceQueue?
  }
  private static let queues = Mutex<[String: Entry]>([:])

  /// The queue of that name. One for all connectors of a device, so that what a new configuration opens queues behind what
  /// the old one closes, and does not find its own port in use: also when that takes long, and nobody else has the old one any more.
  /// Whoever may ask for more later, such as a stream for its close, has to keep it until then.
  public static func of(_ name: String) -> DeviceQueue {
    queues.withLock { queues in
      let entry = queues[name]
      if let user = entry?.user { return user }
      let queue = DeviceQueue(name, entry?.core ?? Core(name))
      queues[name] = Entry(core: queue.core, user: queue)
      return queue
    }
  }

  /// One that nobody else finds.
  convenience init(_ name: String) { self.init(name, Core(name)) }

  private init(_ name: String, _ core: Core) {
    self.name = name
    self.core = core
    core.users.add(1, ordering: .relaxed)
  }

  // Behind all that was asked for.
  deinit { core.queue.async { [name, core] in Self.forget(name, core) } }

  private static func forget(_ name: String, _ core: Core) {
    queues.withLock { queues in
      guard core.users.subtract(1, ordering: .relaxed).newValue == 0, queues[name]?.core === core else { return }
      queues[name] = nil
    }
  }

  /// Whether something is known by that name: for tests.
  static func isKnown(_ name: String) -> Bool { queues.withLock { $0[name] != nil } }

  // MARK: - Opening

  /// Runs `attempt`, which may block, on this queue, and `done` with what came of it on the lane of `poller`: never at once,
  /// unless more than `most` attempts hang here already. When it is cancelled in between, `undo` gets what was opened, on
  /// this queue again. `what` stands in the errors.
  /// For a driver that hangs, two are enough: one that was given up long ago, and one behind it. More would only pile up.
  public func open<Opened: Sendable>(
    _ what: String, most: Int = 2, on poller: Poller,
    _ attempt: @escaping @Sendable () -> Result<Opened, OpenFailure>,
    undo: @escaping @Sendable (Opened) -> Void, _ done: @escaping (Result<Opened, OpenFailure>) -> Void
  ) -> any Opening {
    guard admit(most) else {
      done(.failure(OpenFailure("open \(what)", nil, advice: "earlier attempts still hang; no other before they end")))
      return DoneAtOnce()
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

/// An attempt. What it opened stays here until the lane takes it: a lane that stops takes nothing any more, and what is
/// left to be undone, such as a link in the file system, would stay.
private final class QueuedOpening<Opened: Sendable>: Opening, Sendable {
  private enum State: Sendable {
    case underWay
    case over(Result<Opened, OpenFailure>)
    case taken
    case cancelled(Closings.Token)
  }
  private let state = Mutex(State.underWay)
  private let device: DeviceQueue
  private let closings: Closings
  private let undo: @Sendable (Opened) -> Void

  init(on device: DeviceQueue, closings: Closings, undo: @escaping @Sendable (Opened) -> Void) {
    self.device = device
    self.closings = closings
    self.undo = undo
  }

  /// On the queue. One that was given up while it waited behind another leaves the device in peace.
  func run(_ attempt: () -> Result<Opened, OpenFailure>) {
    if let token = cancellation { return closings.end(token) }
    let result = attempt()
    let cancellation = state.withLock { state -> Closings.Token? in
      if case .cancelled(let token) = state { return token }
      state = .over(result)
      return nil
    }
    if let cancellation { end(result, cancellation) }
  }

  private var cancellation: Closings.Token? {
    state.withLock { if case .cancelled(let token) = $0 { token } else { nil } }
  }

  /// Nil when it was cancelled.
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

  private func end(_ result: Result<Opened, OpenFailure>, _ token: Closings.Token) {
    if case .success(let opened) = result { undo(opened) }
    closings.end(token)
  }
}
