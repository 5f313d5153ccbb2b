// A call of a task that a handle's core carries out, and the write among them: one is under way at a time. They live on
// the lane, except for the ticket.

import ByteStreams
import Glibc
import Synchronization

/// Identifies a call of a task. The task may be cancelled before the call arrives on the lane.
final class CallTicket: Sendable {
  private let state = Atomic(false)

  var isCancelled: Bool { state.load(ordering: .acquiring) }
  func cancel() { state.store(true, ordering: .releasing) }
}

/// A call of a task that waits on the lane. `done` is called once.
final class HandleCall {
  let ticket: CallTicket
  private var done: (((any Error)?) -> Void)?
  private let poller: Poller
  private var deadline: Timers.Token?

  init(_ ticket: CallTicket, on poller: Poller, _ done: @escaping ((any Error)?) -> Void) {
    self.ticket = ticket
    self.poller = poller
    self.done = done
  }

  /// Calls `late` at `time`, on the lane's clock, unless the call is finished before.
  func setDeadline(_ time: UInt64?, _ late: @escaping () -> Void) {
    guard let time, deadline == nil, done != nil else { return }
    deadline = poller.timers.at(time, late)
  }

  func finish(_ error: (any Error)? = nil) {
    guard let done = done.take() else { return }
    poller.timers.cancel(deadline)
    done(error)
  }
}

/// A write under way.
struct HandleWrite {
  let bytes: [UInt8]
  var taken = 0
  let call: HandleCall

  var isSent: Bool { taken == bytes.count }
}
