// A serial queue that is an actor's executor. What lives together, a link and all its clients, runs on one lane from
// birth to end, so the path of a byte has no lock and no change of thread. One dispatch source per lane, on its epoll set.

import CLinux
import Dispatch
import Glibc
import Synchronization

public actor Lane {
  public nonisolated let label: String
  nonisolated let executor: LaneExecutor
  public nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }

  /// What everything on this lane waits with.
  public let poller: Poller
  /// The poller's, for those elsewhere.
  public nonisolated let closings: Closings
  public nonisolated let programs: Closings
  private var source: (any DispatchSourceRead)?
  // Looked at in each round; to look at an existential is to copy it.
  private var isStopped = false

  // After work the lane waits so long in epoll_wait before it goes back to Dispatch: coming back costs two thread
  // hand-overs, and bytes come in bursts. 20 ms reaches a plain epoll loop's CPU and latency; 1 ms costs half as much
  // CPU again into a pty; none twice as much.
  private static let linger: Int32 = 20

  /// Throws when the process is out of descriptors. Keeps itself until `stop()`.
  public init(_ label: String) throws(SystemError) {
    self.label = label
    let executor = try LaneExecutor(label)
    self.executor = executor
    poller = try Poller(queue: executor.queue) { body in executor.post(.call(body)) }
    closings = poller.closings
    programs = poller.programs
    try poller.addBell(executor.bell.raw)
    executor.queue.async { self.assumeIsolated { $0.start() } }
  }

  private func start() {
    let source = DispatchSource.makeReadSource(fileDescriptor: poller.descriptor, queue: executor.queue)
    // Strong: the source keeps the lane until it is cancelled, and the epoll set may only close after that.
    source.setEventHandler { self.wake() }
    source.setCancelHandler { _ = self }
    source.activate()
    self.source = source
  }

  /// Runs `body` on the lane, after what was posted before. From anywhere.
  public nonisolated func post(_ body: @escaping @Sendable (isolated Lane) -> Void) {
    executor.post(.call(body))
  }

  /// Lets go of the lane once what was posted has run. What still lives on it must have been closed.
  public nonisolated func stop() {
    post { lane in
      lane.isStopped = true
      lane.source?.cancel()
      lane.source = nil
      lane.poller.forgetAll()
      lane.executor.close()
    }
  }

  /// One stretch of work: rounds of inbox, again-list and events, until nothing came for `linger`.
  private func wake() {
    while !isStopped {
      if executor.beAwake() { executor.runInbox(on: self) }
      poller.runAgain()
      let isBusy = poller.hasAgain
      // Whoever posts from here on rings the bell, which is in the set: the wait ends at once.
      if !isBusy && !executor.mayWait() { continue }
      let hadEvents = poller.turn(waiting: isBusy ? 0 : Self.linger)
      if !hadEvents && !isBusy { return }
    }
  }
}

/// Runs a lane's jobs and posts in order, through an inbox that the lane empties between turns: nothing waits for the
/// linger or behind a busy set.
final class LaneExecutor: SerialExecutor {
  enum Item {
    case job(UnownedJob)
    case call(@Sendable (isolated Lane) -> Void)
  }

  let queue: DispatchQueue
  let bell: Descriptor
  /// Nil once the lane has stopped: nothing runs any more, and what is posted is let go of at once.
  private let inbox = Mutex<[Item]?>([])
  // Spares the lane two locks a round: somebody posts far less often than bytes come.
  private enum State: UInt8, AtomicRepresentable { case waits, isAwake, hasInbox }
  private let state = Atomic(State.waits)

  init(_ label: String) throws(SystemError) {
    queue = DispatchQueue(label: label)
    let raw = eventfd(0, Int32(EFD_NONBLOCK | EFD_CLOEXEC))
    guard raw >= 0 else { throw SystemError("eventfd") }
    bell = Descriptor(owning: raw)
  }

  func enqueue(_ job: consuming ExecutorJob) { post(.job(UnownedJob(job))) }

  func checkIsolated() { dispatchPrecondition(condition: .onQueue(queue)) }

  func post(_ item: sending Item) {
    inbox.withLock { $0?.append(item) }
    guard state.exchange(.hasInbox, ordering: .sequentiallyConsistent) == .waits else { return }
    eventfd_write(bell.raw, 1)  // edge-triggered in the set, so nobody has to read it back
  }

  /// Who posts from now on needs no bell. Returns whether something is in the inbox.
  func beAwake() -> Bool { state.exchange(.isAwake, ordering: .sequentiallyConsistent) == .hasInbox }

  /// Whether the lane may wait: nobody has posted since it was awake.
  func mayWait() -> Bool {
    state.compareExchange(expected: .isAwake, desired: .waits, ordering: .sequentiallyConsistent).exchanged
  }

  var isClosed: Bool { inbox.withLock { $0 == nil } }

  /// The lane has stopped. What nobody will run any more goes with this call.
  func close() {
    let left = inbox.withLock { inbox in
      defer { inbox = nil }
      return inbox
    }
    withExtendedLifetime(left) {}
  }

  func runInbox(on lane: isolated Lane) {
    let items = inbox.withLock { inbox in
      defer { if inbox != nil { inbox = [] } }
      return inbox
    }
    for item in items ?? [] {
      switch item {
      case .job(let job): job.runSynchronously(on: asUnownedSerialExecutor())
      case .call(let body): body(lane)
      }
    }
  }
}
