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
    let opening = QueuedOpening()
    guard admit(most) else {
      done(.failure(OpenFailure("open \(what)", nil, advice: "earlier attempts still hang; no other before they end")))
      return opening
    }
    poller.offload(to: queue) { [self] () -> Result<Opened, OpenFailure> in
      defer { leave() }
      // Given up while it waited behind another: the device is left in peace.
      if opening.isCancelled { return .failure(OpenFailure("open \(what)", SystemError("open", ECANCELED))) }
      return attempt()
    } then: { [self] result in
      guard opening.isCancelled else { return done(result) }
      if case .success(let opened) = result { queue.async { undo(opened) } }
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

/// An attempt. Asked from the queue as well, whether it still matters.
private final class QueuedOpening: Opening, Sendable {
  private let wasCancelled = Atomic<Bool>(false)

  var isCancelled: Bool { wasCancelled.load(ordering: .relaxed) }

  func cancel() { wasCancelled.store(true, ordering: .relaxed) }
}
