// Where the blocking calls on one device run: a serial queue that all who name the device share, so that one hung driver
// stops nobody else, and so that what opens a device queues behind what closes it.

import ByteStreams
import Dispatch
import Glibc
import Synchronization

public final class DeviceQueue: Sendable {
  public let queue: DispatchQueue
  private let name: String
  private let attempts = Mutex(0)

  private struct Entry {
    weak var queue: DeviceQueue?
  }
  private static let queues = Mutex<[String: Entry]>([:])

  /// The queue of that name. One for all connectors of a device, so that what a new configuration opens queues behind what
  /// the old one closes, and does not find its own port in use.
  public static func of(_ name: String) -> DeviceQueue {
    queues.withLock { queues in
      if let queue = queues[name]?.queue { return queue }
      let queue = DeviceQueue(name)
      queues[name] = Entry(queue: queue)
      return queue
    }
  }

  /// One that nobody else finds.
  init(_ name: String) {
    self.name = name
    queue = DispatchQueue(label: name)
  }

  deinit {
    // To look at a successor is to own it for a moment, perhaps as the last one, and its end takes this lock, too: it is let
    // go of outside.
    let successor = Self.queues.withLock { queues in
      let successor = queues[name]?.queue
      if successor == nil { queues[name] = nil }
      return successor
    }
    withExtendedLifetime(successor) {}
  }

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
    let opening = QueuedOpening(on: queue, closings: poller.closings, undo: undo)
    poller.offload(to: queue) { [self] in
      defer { leave() }
      opening.run(attempt)
    } then: {
      if let result = opening.take() { done(result) }
    }
    return opening
  }

  private func admit(_ most: Int) -> Bool {
    attempts.withLock { count in
      guard count < most else { return false }
      count += 1
      return true
    }
  }

  private func leave() { attempts.withLock { $0 -= 1 } }
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
  private let queue: DispatchQueue
  private let closings: Closings
  private let undo: @Sendable (Opened) -> Void

  init(on queue: DispatchQueue, closings: Closings, undo: @escaping @Sendable (Opened) -> Void) {
    self.queue = queue
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
    case .over(let result): queue.async { [self] in end(result, token) }
    case .taken, .cancelled: closings.end(token)
    }
  }

  private func end(_ result: Result<Opened, OpenFailure>, _ token: Closings.Token) {
    if case .success(let opened) = result { undo(opened) }
    closings.end(token)
  }
}
