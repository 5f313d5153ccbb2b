// A lane's epoll set: which handler waits for what. The lane and everything on it hold it; it never moves to another
// lane. It also carries the lane's timers, rings and work done elsewhere, since waiting code needs them.

import CLinux
import Dispatch
import Glibc

/// Called on the lane when its descriptor is ready.
public protocol PollHandler: AnyObject {
  /// The events that the descriptor was added for, or a hang-up. Called on the lane; must not block.
  func ready(_ events: PollEvents)
}

/// What epoll_wait(2) reported for a descriptor.
public struct PollEvents: OptionSet, Sendable {
  /// EPOLL* flags of epoll_ctl(2).
  public let rawValue: UInt32
  /// From EPOLL* flags.
  public init(rawValue: UInt32) { self.rawValue = rawValue }

  /// EPOLLIN: a read does not block.
  public static let readable = PollEvents(rawValue: EPOLLIN.rawValue)
  /// EPOLLOUT: a write does not block.
  public static let writable = PollEvents(rawValue: EPOLLOUT.rawValue)
  /// EPOLLHUP or EPOLLERR. Unread bytes may be left.
  public static let hangUp = PollEvents(rawValue: EPOLLHUP.rawValue | EPOLLERR.rawValue)
  /// EPOLLRDHUP: the other side sends no more; what it sent before may be unread.
  public static let lastByte = PollEvents(rawValue: EPOLLRDHUP.rawValue)
}

/// The epoll set of a lane, with its timers and rings. A lane makes it; get it as `lane.poller`. Lives on the lane:
/// only the closures that `expect` returns may be called elsewhere.
public final class Poller {
  /// The deadlines of this lane.
  public let timers: Timers
  /// Spare rings for the pumps of this lane.
  public let rings = RingPool()
  package let peers: PeerWatch
  /// What watches files on this lane.
  package private(set) lazy var inotify = Inotify(on: self)
  /// Cleanups that are not finished: `closings` of what was closed, on queues beside the lane; `programs` of programs
  /// and the processes that they started; `abandonedConnects` of sockets that were given up while they connected, and
  /// must not be closed yet.
  package let closings = PendingCleanups()
  package let programs = PendingCleanups()
  package let abandonedConnects = PendingCleanups()

  private let epoll: Descriptor
  private let queue: DispatchQueue?  // nil in tests, which act as the lane
  private let post: @Sendable (@escaping @Sendable (isolated Lane) -> Void) -> Void

  private struct Entry {
    var handler: (any PollHandler)?
    var generation: UInt32 = 0
    var mask: UInt32 = 0  // the events to wait for
    var applied: UInt32 = 0  // the events that the kernel knows of
    var isInSet = false
    var isChanged = false
    var isEdgeTriggered = false
    var spent: PollEvents = []  // edge-triggered only: what the handler has used up since its last event
  }
  // Indexed by descriptor number. The generation distinguishes an event of a closed descriptor from one of its
  // successor with the same number.
  private var entries: [Entry] = []
  private var lastGeneration: UInt32 = 0
  private let fetched = UnsafeMutablePointer<epoll_event>.allocate(capacity: Poller.mostFetched)
  private static let mostFetched = 64
  // Descriptors whose interest has changed since the last wait. epoll_ctl(2) is called just before the next wait, so an
  // interest that changes back, or a descriptor that closes, costs no call.
  private var changed: [Int] = []

  private var again: [any ByteStream] = []
  private var next: [any PollHandler] = []
  private var away: [Int: (any Sendable) -> Void] = [:]
  private var lastAway = 0

  init(
    queue: DispatchQueue? = nil, clock: LaneClock = .monotonic,
    post: @escaping @Sendable (@escaping @Sendable (isolated Lane) -> Void) -> Void
  ) throws(SystemError) {
    let raw = epoll_create1(Int32(EPOLL_CLOEXEC))
    guard raw >= 0 else { throw SystemError("epoll_create1") }
    epoll = Descriptor(owning: raw)
    timers = try Timers(clock: clock)
    self.queue = queue
    self.post = post
    peers = PeerWatch(timers: timers)
    try add(timers.descriptor, handler: timers, for: .readable)
  }

  deinit { fetched.deallocate() }

  // MARK: - Descriptors

  /// Adds an open descriptor to the set. The caller still owns it, and calls `remove` before it closes it. With
  /// `notesSpent` the handler reports by `note(_:spent:)` that it has read or filled everything. The kernel then need
  /// not check the descriptor before the next wait.
  public func add(
    _ descriptor: Int32, handler: any PollHandler, for interest: Readiness, notesSpent: Bool = false
  ) throws(SystemError) {
    let index = Int(descriptor)
    while entries.count <= index { entries.append(Entry()) }
    guard entries[index].handler == nil else { throw SystemError("epoll_ctl", EEXIST) }  // a descriptor has one handler
    lastGeneration &+= 1
    entries[index].generation = lastGeneration
    entries[index].isEdgeTriggered = notesSpent
    entries[index].mask = mask(of: interest, index)
    guard control(EPOLL_CTL_ADD, index) else { throw SystemError("epoll_ctl") }
    entries[index].handler = handler
    entries[index].isInSet = true
  }

  /// Changes what a descriptor of the set waits for. With `noticesEnd` it also waits for the other side's end, for a
  /// descriptor that nobody reads now. epoll reports that end in each turn, so clear `noticesEnd` after the first
  /// report.
  public func change(_ descriptor: Int32, to interest: Readiness, noticesEnd: Bool = false) {
    assert(isOnLane)
    let index = Int(descriptor)
    guard index < entries.count else { return }  // removed, and its entry freed by `shrink`
    entries[index].mask = mask(of: interest, index) | (noticesEnd ? EPOLLRDHUP.rawValue : 0)
    if entries[index].mask != entries[index].applied || !entries[index].isInSet { noteChange(index) }
  }

  /// The kernel had no more bytes for the reader of this descriptor (`.readable`), or no more room for its writer
  /// (`.writable`). Not for a call that was short for another reason.
  public func note(_ descriptor: Int32, spent: PollEvents) {
    let index = Int(descriptor)
    if index < entries.count { entries[index].spent.insert(spent) }  // it may have no entry before its first wait
  }

  private func noteChange(_ index: Int) {
    guard !entries[index].isChanged else { return }
    entries[index].isChanged = true
    changed.append(index)
  }

  /// Removes a descriptor from the set. `isClosing` saves the call, for a descriptor that is closed right after and
  /// that no other process shares: the kernel then removes it itself (epoll(7)).
  public func remove(_ descriptor: Int32, isClosing: Bool = false) {
    let index = Int(descriptor)
    guard index < entries.count else { return }
    if entries[index].isInSet && !isClosing { _ = control(EPOLL_CTL_DEL, index) }
    entries[index].handler = nil
    entries[index].isInSet = false
  }

  // A call from a wrong thread crashes in tests; the check costs too much for a release.
  private var isOnLane: Bool {
    if let queue { dispatchPrecondition(condition: .onQueue(queue)) }
    return true
  }

  private func applyChanges() {
    var failed: [Int] = []
    for index in changed {
      entries[index].isChanged = false
      let entry = entries[index]
      guard entry.handler != nil else { continue }
      if entry.isInSet {
        guard entry.mask == entry.applied || control(EPOLL_CTL_MOD, index) else {
          failed.append(index)
          continue
        }
      } else if entry.mask != 0 {
        entries[index].isInSet = control(EPOLL_CTL_ADD, index)
        if !entries[index].isInSet { failed.append(index) }
      }
    }
    changed.removeAll(keepingCapacity: true)
    // The kernel is out of memory: try again before each wait.
    for index in failed {
      entries[index].isChanged = true
      changed.append(index)
    }
  }

  /// For tests: how many descriptors fit without an allocation.
  var room: Int { entries.capacity }

  /// Frees memory that a former, larger number of descriptors needed. Call it from the lane's inbox, never from inside
  /// a turn.
  package func shrink() {
    assert(isOnLane)
    let isInUse = { (entry: Entry) in entry.handler != nil || entry.isChanged }
    let count = entries.lastIndex(where: isInUse).map { $0 + 1 } ?? 0
    if entries.capacity >= 2 * max(count, Self.mostFetched) { entries = Array(entries[..<count]) }
    if changed.isEmpty { changed = [] }
    if again.isEmpty { again = [] }
  }

  /// Adds a descriptor, edge-triggered and without a handler: it only ends a wait.
  func addBell(_ descriptor: Int32) throws(SystemError) {
    var event = epoll_event()
    event.events = EPOLLIN.rawValue | EPOLLET.rawValue
    event.data.u64 = .max
    guard epoll_ctl(epoll.raw, EPOLL_CTL_ADD, descriptor, &event) == 0 else { throw SystemError("epoll_ctl") }
  }

  private func mask(of interest: Readiness, _ index: Int) -> UInt32 {
    // If the other side's end arrives with the last bytes, there is only one event for both. EPOLLRDHUP in it shows the
    // end.
    let reading = EPOLLIN.rawValue | (entries[index].isEdgeTriggered ? EPOLLRDHUP.rawValue : 0)
    return (interest.contains(.readable) ? reading : 0) | (interest.contains(.writable) ? EPOLLOUT.rawValue : 0)
  }

  private func control(_ operation: Int32, _ index: Int) -> Bool {
    var event = epoll_event()
    event.events = entries[index].mask | (entries[index].isEdgeTriggered ? EPOLLET.rawValue : 0)
    event.data.u64 = UInt64(entries[index].generation) << 32 | UInt64(index)
    guard epoll_ctl(epoll.raw, operation, Int32(index), &event) == 0 else { return false }
    entries[index].applied = entries[index].mask
    return true
  }

  // MARK: - Turns

  /// Calls `stream`'s delegate with `.hasBytesAvailable` in the lane's next round: for bytes that epoll does not
  /// report, because the stream holds them or a budget was spent.
  public func again(_ stream: any ByteStream) {
    assert(isOnLane)
    again.append(stream)
  }

  /// Calls `handler` with no events in the lane's next round: for streams without a descriptor, which epoll cannot
  /// wake.
  public func nextRound(_ handler: any PollHandler) { next.append(handler) }

  var hasAgain: Bool { !again.isEmpty || !next.isEmpty }
  var descriptor: Int32 { epoll.raw }

  func runAgain() {
    guard hasAgain else { return }
    let streams = again
    let handlers = next
    again.removeAll(keepingCapacity: true)
    next.removeAll(keepingCapacity: true)
    for stream in streams { stream.delegate?.stream(stream, handle: .hasBytesAvailable) }
    for handler in handlers { handler.ready([]) }
  }

  /// Waits for events, at most `milliseconds`, and handles them. Returns whether there were any.
  func turn(waiting milliseconds: Int32) -> Bool {
    if !changed.isEmpty { applyChanges() }
    let fetched = fetched
    let count = Int(epoll_wait(epoll.raw, fetched, Int32(Self.mostFetched), milliseconds))
    guard count > 0 else { return false }  // nothing, or EINTR
    for index in 0..<count {
      let data = fetched[index].data.u64
      if data == .max { continue }
      deliver(fetched[index].events, to: Int(data & 0xFFFF_FFFF), generation: UInt32(data >> 32))
    }
    return true
  }

  private func deliver(_ events: UInt32, to index: Int, generation: UInt32) {
    guard index < entries.count, entries[index].generation == generation, let handler = entries[index].handler else {
      return
    }
    let events = PollEvents(rawValue: events)
    if !events.isDisjoint(with: .hangUp), entries[index].mask & ~EPOLLRDHUP.rawValue == 0 {
      // epoll reports a hang-up again and again, even for an empty interest: remove the descriptor until something
      // waits for it.
      if entries[index].isInSet { _ = control(EPOLL_CTL_DEL, index) }
      entries[index].isInSet = false
    }
    guard entries[index].isEdgeTriggered else { return handler.ready(events) }
    entries[index].spent = []
    handler.ready(events)
    if events.isSubset(of: entries[index].spent) { return }
    // The kernel reports an edge once. A changed interest makes it check again, so that the handler gets an event for
    // unread bytes, as with level-triggering.
    guard entries[index].generation == generation, entries[index].isInSet else { return }
    entries[index].applied = .max
    noteChange(index)
  }

  /// Handles what is ready now, without waiting. Call it from the lane's inbox, never from inside a turn.
  package func sweep() {
    // epoll reports the descriptor that has been ready longest first, so this many turns reach each of them. With more
    // turns, a descriptor that is always ready could occupy the lane.
    for _ in 0...entries.count / Self.mostFetched where !turn(waiting: 0) { return }
  }

  /// Drops all handlers and callbacks when the lane stops. They keep the poller in turn, so otherwise none would be
  /// freed.
  func forgetAll() {
    again = []
    next = []
    away = [:]
    peers.forgetAll()
    inotify.forgetAll()
    timers.forgetAll()
    for index in entries.indices { entries[index].handler = nil }
  }

  // MARK: - Work elsewhere

  /// Runs `work`, which may block, on `queue`, then calls `done` with its result on this lane. For work that must not
  /// delay a lane: opening and closing ttys, ioctls, name look-up, files.
  public func offload<Result: Sendable>(
    to queue: DispatchQueue, _ work: @escaping @Sendable () -> Result, then done: @escaping (Result) -> Void
  ) {
    let answer = expect(done)
    queue.async { answer(work()) }
  }

  /// Keeps `done` and returns a closure that calls it on this lane. Call the closure exactly once, on any thread.
  public func expect<Result: Sendable>(_ done: @escaping (Result) -> Void) -> @Sendable (Result) -> Void {
    lastAway += 1
    let number = lastAway
    away[number] = { result in if let result = result as? Result { done(result) } }
    let post = post
    return { result in post { lane in lane.poller.comeBack(number, result) } }
  }

  private func comeBack(_ number: Int, _ result: any Sendable) {
    away.removeValue(forKey: number)?(result)
  }
}
