// A lane's epoll set: who waits for what. Held by the lane and by everything that lives on it; never leaves the lane.
// Carries the lane's other belongings too (timers, rings, work done elsewhere), since who waits needs them.

import CLinux
import Dispatch
import Glibc

/// Called on the lane when its descriptor is ready.
public protocol PollHandler: AnyObject {
  func ready(_ events: PollEvents)
}

/// What epoll_wait(2) said of a descriptor.
public struct PollEvents: OptionSet, Sendable {
  public let rawValue: UInt32
  public init(rawValue: UInt32) { self.rawValue = rawValue }

  public static let readable = PollEvents(rawValue: EPOLLIN.rawValue)
  public static let writable = PollEvents(rawValue: EPOLLOUT.rawValue)
  /// EPOLLHUP or EPOLLERR. It does not mean that everything was read.
  public static let hangUp = PollEvents(rawValue: EPOLLHUP.rawValue | EPOLLERR.rawValue)
  /// EPOLLRDHUP: the other side sends no more, though what it sent may be unread.
  public static let lastByte = PollEvents(rawValue: EPOLLRDHUP.rawValue)
}

public final class Poller {
  public let timers: Timers
  public let rings = RingPool()
  public let peers: PeerWatch
  /// What was closed and is not over yet: on queues beside the lane; and programs with what they have started.
  public let closings = Closings()
  public let programs = Closings()

  private let epoll: Descriptor
  private let queue: DispatchQueue?  // nil for tests that play the lane themselves
  private let post: @Sendable (@escaping @Sendable (isolated Lane) -> Void) -> Void

  private struct Entry {
    var handler: (any PollHandler)?
    var generation: UInt32 = 0
    var mask: UInt32 = 0  // what it shall be waited for
    var applied: UInt32 = 0  // what the kernel was told
    var isInSet = false
    var isChanged = false
    var isEdgeTriggered = false
    var spent: PollEvents = []  // of its last event: what the kernel has none of any more; where edges are told only
  }
  // By descriptor number. The generation tells an event that was fetched for a closed descriptor from one for its
  // successor under the same number.
  private var entries: [Entry] = []
  private var lastGeneration: UInt32 = 0
  private let fetched = UnsafeMutablePointer<epoll_event>.allocate(capacity: Poller.mostFetched)
  private static let mostFetched = 64
  // Descriptors whose interest was changed since the last wait. The kernel is told just before the next one: what
  // changed to and fro within a round, or closed, costs no call.
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

  /// Puts an open descriptor into the set. The caller still owns it, and takes it out with `remove` before it closes.
  /// Whoever says by `note(_:spent:)` that he has read or filled all spares the kernel a look at it before the next wait, with
  /// `notesSpent`.
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

  /// Changes what a descriptor of the set is waited for. With `noticesEnd` also that the other side sends no more, for one
  /// whom nobody reads now; that is told in each turn, so take it back once it was told.
  public func change(_ descriptor: Int32, to interest: Readiness, noticesEnd: Bool = false) {
    assert(isOnLane)
    let index = Int(descriptor)
    guard index < entries.count else { return }  // taken out, and given up by `shrink`
    entries[index].mask = mask(of: interest, index) | (noticesEnd ? EPOLLRDHUP.rawValue : 0)
    if entries[index].mask != entries[index].applied || !entries[index].isInSet { willTell(index) }
  }

  /// The kernel had nothing more for who reads this descriptor (`.readable`), or no more room for who writes to it (`.writable`). Not for
  /// a call that was short for another reason.
  public func note(_ descriptor: Int32, spent: PollEvents) {
    let index = Int(descriptor)
    if index < entries.count { entries[index].spent.insert(spent) }  // who has not waited yet may not be in the set
  }

  private func willTell(_ index: Int) {
    guard !entries[index].isChanged else { return }
    entries[index].isChanged = true
    changed.append(index)
  }

  /// Takes a descriptor out. When it is closed right after, and by no other process shared, `isClosing` saves the call:
  /// the kernel takes it out itself (epoll(7)).
  public func remove(_ descriptor: Int32, isClosing: Bool = false) {
    let index = Int(descriptor)
    guard index < entries.count else { return }
    if entries[index].isInSet && !isClosing { _ = control(EPOLL_CTL_DEL, index) }
    entries[index].handler = nil
    entries[index].isInSet = false
  }

  // A wrong thread is a crash in tests, not a rumour; the check costs too much for a release.
  private var isOnLane: Bool {
    if let queue { dispatchPrecondition(condition: .onQueue(queue)) }
    return true
  }

  private func tellChanges() {
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
    // The kernel is out of memory: tried again before each wait.
    for index in failed {
      entries[index].isChanged = true
      changed.append(index)
    }
  }

  /// For tests: how many descriptors it can have without taking memory.
  var room: Int { entries.capacity }

  /// Gives up the room of descriptors that were many once. From the lane's inbox, never from inside a turn.
  public func shrink() {
    assert(isOnLane)
    let isInUse = { (entry: Entry) in entry.handler != nil || entry.isChanged }
    let count = entries.lastIndex(where: isInUse).map { $0 + 1 } ?? 0
    if entries.capacity >= 2 * max(count, Self.mostFetched) { entries = Array(entries[..<count]) }
    if changed.isEmpty { changed = [] }
    if again.isEmpty { again = [] }
  }

  /// Puts a descriptor into the set for edges only; nobody is told. It just ends a wait.
  func addBell(_ descriptor: Int32) throws(SystemError) {
    var event = epoll_event()
    event.events = EPOLLIN.rawValue | EPOLLET.rawValue
    event.data.u64 = .max
    guard epoll_ctl(epoll.raw, EPOLL_CTL_ADD, descriptor, &event) == 0 else { throw SystemError("epoll_ctl") }
  }

  private func mask(of interest: Readiness, _ index: Int) -> UInt32 {
    // An end that came with the last bytes is no edge of its own.
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

  /// Calls `stream`'s delegate with `.hasBytesAvailable` in the lane's next round: for bytes that epoll is silent about,
  /// because the stream holds them or a budget was spent.
  public func again(_ stream: any ByteStream) {
    assert(isOnLane)
    again.append(stream)
  }

  /// Calls `handler` with no events in the lane's next round: for streams without a descriptor, which are their own kernel.
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
    if !changed.isEmpty { tellChanges() }
    let fetched = fetched
    let count = Int(epoll_wait(epoll.raw, fetched, Int32(Self.mostFetched), milliseconds))
    guard count > 0 else { return false }  // nothing, or EINTR
    for place in 0..<count {
      let data = fetched[place].data.u64
      if data == .max { continue }
      deliver(fetched[place].events, to: Int(data & 0xFFFF_FFFF), generation: UInt32(data >> 32))
    }
    return true
  }

  private func deliver(_ events: UInt32, to index: Int, generation: UInt32) {
    guard index < entries.count, entries[index].generation == generation, let handler = entries[index].handler else {
      return
    }
    let events = PollEvents(rawValue: events)
    if !events.isDisjoint(with: .hangUp), entries[index].mask & ~EPOLLRDHUP.rawValue == 0 {
      // epoll tells a hang-up even to those who want nothing, again and again: out of the set until somebody does.
      if entries[index].isInSet { _ = control(EPOLL_CTL_DEL, index) }
      entries[index].isInSet = false
    }
    guard entries[index].isEdgeTriggered else { return handler.ready(events) }
    entries[index].spent = []
    handler.ready(events)
    if events.isSubset(of: entries[index].spent) { return }
    // Of an edge the kernel tells once. Changing what it is waited for makes it look: so the handler hears again, as all others do, of
    // what he has left.
    guard entries[index].generation == generation, entries[index].isInSet else { return }
    entries[index].applied = .max
    willTell(index)
  }

  /// Handles what is ready now without waiting. Only from the lane's inbox, never from inside a turn.
  public func sweep() {
    // The set hands out the longest ready first, so in so many turns each had his; more would let one who is always
    // ready keep the lane.
    for _ in 0...entries.count / Self.mostFetched where !turn(waiting: 0) { return }
  }

  /// Forgets everybody, when the lane stops. Whoever is kept here keeps the poller in turn, so none would ever go.
  func forgetAll() {
    again = []
    next = []
    away = [:]
    peers.forgetAll()
    timers.forgetAll()
    for index in entries.indices { entries[index].handler = nil }
  }

  // MARK: - Work elsewhere

  /// Runs `work`, which may block, on `queue`, and `done` with its result back on this lane. For whatever must not
  /// hold up a lane: opening and closing ttys, ioctls, name look-up, files.
  public func offload<Result: Sendable>(
    to queue: DispatchQueue, _ work: @escaping @Sendable () -> Result, then done: @escaping (Result) -> Void
  ) {
    let answer = expect(done)
    queue.async { answer(work()) }
  }

  /// Keeps `done` here and gives out a way to call it on this lane, from anywhere; to be used exactly once.
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
