// A serial queue that is an actor's executor. A link and all its clients run on one lane from start to end, so the byte
// path has no lock and no change of thread. Each lane has one dispatch source, on its epoll set.

import CLinux
import Dispatch
import Glibc
import Synchronization

/// A serial executor with an epoll set: an actor for streams. A stream and everything that handles its bytes live on
/// one lane, so they need no lock. A function gets onto a lane as `on lane: isolated Lane`, or by `post`.
/// ```swift
/// let lane = try Lane("devices")
/// lane.post { lane in print("on", lane.label) }
/// lane.stop()
/// ```
/// A lane costs three descriptors, and a thread while it works. One lane can carry thousands of streams; work on it
/// must not block.
public actor Lane {
  /// The name, for debuggers and error messages.
  public nonisolated let label: String
  nonisolated let executor: LaneExecutor
  /// Runs the lane's jobs in order, on one dispatch queue.
  public nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }

  /// The epoll set that everything on this lane waits with.
  public let poller: Poller
  /// The poller's cleanups, for code outside the lane.
  package nonisolated let closings: PendingCleanups
  package nonisolated let programs: PendingCleanups
  package nonisolated let abandonedConnects: PendingCleanups
  private var source: (any DispatchSourceRead)?
  // Checked in each round. To check `source` instead would copy an existential.
  private var isStopped = false

  // After work the lane waits this many milliseconds in epoll_wait before it returns to Dispatch: coming back costs two
  // thread hand-overs, and bytes come in bursts. 20 ms reaches a plain epoll loop's CPU and latency; 1 ms costs half as
  // much CPU again into a pty; no wait costs twice as much.
  private static let linger: Int32 = 20

  /// Throws when the process is out of descriptors. Keeps itself alive until `stop()`. All deadlines of the lane follow
  /// `clock`.
  public init(_ label: String, clock: LaneClock = .monotonic) throws(SystemError) {
    self.label = label
    let executor = try LaneExecutor(label)
    self.executor = executor
    poller = try Poller(queue: executor.queue, clock: clock) { body in executor.post(.call(body)) }
    closings = poller.closings
    programs = poller.programs
    abandonedConnects = poller.abandonedConnects
    try poller.addBell(executor.bell.raw)
    executor.queue.async { self.assumeIsolated { $0.start() } }
  }

  private func start() {
    let source = DispatchSource.makeReadSource(fileDescriptor: poller.descriptor, queue: executor.queue)
    // Strong references: the source keeps the lane until it is cancelled, and the epoll set may close only after that.
    source.setEventHandler { self.wake() }
    source.setCancelHandler { _ = self }
    source.activate()
    self.source = source
  }

  /// Runs `body` on the lane, after everything posted before. Can be called on any thread, and returns at once. After
  /// `stop()`, `body` is released and does not run.
  public nonisolated func post(_ body: @escaping @Sendable (isolated Lane) -> Void) {
    executor.post(.call(body))
  }

  /// Releases the lane once everything posted before has run. Close the streams of the lane first. Can be called on any
  /// thread, and twice.
  public nonisolated func stop() {
    post { lane in
      lane.isStopped = true
      lane.source?.cancel()
      lane.source = nil
      lane.poller.forgetAll()
      lane.executor.close()
    }
  }

  /// Runs rounds of inbox, again-list and events, until nothing came for `linger`.
  private func wake() {
    while !isStopped {
      if executor.beAwake() { executor.runInbox(on: self) }
      poller.runAgain()
      // A post from here on rings the bell, which is in the epoll set: the wait ends at once.
      let mayWait = !poller.hasAgain && executor.mayWait()
      let hadEvents = poller.turn(waiting: mayWait ? Self.linger : 0)
      if !hadEvents && mayWait { return }
    }
  }
}

/// Runs a lane's jobs and posts in order, from an inbox that the lane empties between turns. So a post waits neither
/// for `linger` nor for a busy epoll set.
final class LaneExecutor: SerialExecutor {
  enum Item {
    case job(UnownedJob)
    case call(@Sendable (isolated Lane) -> Void)
  }

  let queue: DispatchQueue
  let bell: Descriptor
  /// Nil once the lane has stopped: nothing runs any more, and new posts are released at once.
  private let inbox = Mutex<[Item]?>([])
  // Saves the lane two locks a round: posts are far rarer than bytes.
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
    eventfd_write(bell.raw, 1)  // edge-triggered in the set, so it is never read back
  }

  /// Marks the lane as awake: posts ring no bell from now on. Returns whether something is in the inbox.
  func beAwake() -> Bool { state.exchange(.isAwake, ordering: .sequentiallyConsistent) == .hasInbox }

  /// Whether the lane may wait: nothing was posted since `beAwake`. From now on posts ring the bell.
  func mayWait() -> Bool {
    state.compareExchange(expected: .isAwake, desired: .waits, ordering: .sequentiallyConsistent).exchanged
  }

  var isClosed: Bool { inbox.withLock { $0 == nil } }

  /// The lane has stopped: releases the items that will not run.
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
