// A lane's inotify(7) instance: one for everything on the lane that watches files. The kernel gives all programs of a
// user 128 instances together, so an instance for each watched file would leave none to the others. Where the kernel
// refuses an instance or a watch, the users of this type look at their files at an interval.

import CLinux
import Dispatch
import Glibc
import Synchronization

/// Something on the lane that watches files. The instance keeps it from `join` until `leave`.
package protocol InotifyUser: AnyObject {
  /// An event of a watch that this user has added: its number, its IN_* flags, and the name in the directory. With
  /// IN_Q_OVERFLOW, and then without a number, events were lost. Only notes the event, since this may be called in the
  /// middle of other code: returns whether `filesChanged` is to follow.
  func note(_ watch: Int32, _ mask: UInt32, _ name: UnsafePointer<CChar>?) -> Bool
  /// Called after all events so far were noted, from the lane's round.
  func filesChanged()
  /// Called at each interval while this user polls.
  func poll()
}

/// Lives on the lane of its poller. Opens its descriptor when the first user joins, and keeps it until the lane stops.
package final class Inotify: PollHandler {
  /// How often files are looked at that the kernel does not watch.
  package static let pollInterval = Duration.seconds(1)
  /// How long everything must have been watched before a new refusal is reported again.
  private static let quiet = Duration.seconds(60)

  /// Called on the lane when the kernel refuses to watch, once until `watchesAgain`.
  package var refuses: (InotifyRefusal) -> Void = { _ in }
  /// Called on the lane when everything has been watched for a minute.
  package var watchesAgain: () -> Void = {}
  /// For tests: inotify_init1(2) and inotify_add_watch(2).
  package var calls = InotifyCalls()

  private unowned let poller: Poller
  private var watches: InotifyWatches?
  private var refusal: InotifyRefusal?
  private var users: [Int: any InotifyUser] = [:]
  private var lastUser = 0
  private var due: Set<Int> = []
  private var isInNextRound = false
  private var polling: Set<Int> = []
  private var timer: Timers.Token?
  private var isReported = false
  private var quietTimer: Timers.Token?

  init(on poller: Poller) { self.poller = poller }

  // MARK: - Users

  /// Keeps `user` until `leave` with the number that is returned.
  package func join(_ user: any InotifyUser) -> Int {
    lastUser += 1
    users[lastUser] = user
    watches?.join(lastUser)
    open()
    return lastUser
  }

  /// `user` gets no more calls, and its watches end. Safe to call twice.
  package func leave(_ user: Int) {
    users[user] = nil
    due.remove(user)
    stopPolling(user)
    guard let watches else { return }
    // A look-up that is under way on another queue may hold the lock for a moment.
    Self.queue.async { watches.leave(user) }
  }

  /// Where `user` adds its watches, on a queue, since looking up a path may block. Fails while the kernel refuses an
  /// instance.
  package func adding(for user: Int) -> Result<InotifyAdding, InotifyRefusal> {
    // While something polls, the timer tries to open it, once for all users.
    if watches == nil, let refusal, !polling.isEmpty { return .failure(refusal) }
    return open().map { InotifyAdding(watches: $0, user: user) }
  }

  /// Opens the instance, unless it is open.
  @discardableResult
  private func open() -> Result<InotifyWatches, InotifyRefusal> {
    if let watches { return .success(watches) }
    let raw = calls.open()
    guard raw >= 0 else {
      let refusal = InotifyRefusal(opening: SystemError("inotify_init1"))
      self.refusal = refusal
      return .failure(refusal)
    }
    let new = InotifyWatches(Descriptor(owning: raw), calls)
    do throws(SystemError) {
      try poller.add(raw, handler: self, for: .readable)
    } catch {
      return .failure(InotifyRefusal(error: error, limit: nil))
    }
    watches = new
    for user in users.keys { new.join(user) }
    return .success(new)
  }

  fileprivate static let queue = DispatchQueue(label: "baudway.inotify")

  // MARK: - Events

  package func ready(_ events: PollEvents) {
    isInNextRound = false
    readNow()
    let due = due
    self.due = []
    for user in due { users[user]?.filesChanged() }
  }

  /// Reads what has happened so far, so that each user has noted it when this returns. Their `filesChanged` follows in
  /// the lane's next round.
  package func readNow() {
    guard let watches else { return }
    watches.read { user, watch, mask, name in
      if users[user]?.note(watch, mask, name) == true { due.insert(user) }
    }
    guard !due.isEmpty, !isInNextRound else { return }
    isInNextRound = true
    poller.nextRound(self)
  }

  // MARK: - Polling

  /// Calls `user`'s `poll` at each interval, because the kernel does not watch for it. `refusal` is reported, if it is
  /// one of the kernel's limits.
  package func startPolling(_ user: Int, _ refusal: InotifyRefusal) {
    guard users[user] != nil else { return }
    polling.insert(user)
    if refusal.limit != nil {
      poller.timers.cancel(quietTimer)
      quietTimer = nil
      if !isReported { refuses(refusal) }
      isReported = true
    }
    if timer == nil { setTimer() }
  }

  /// Everything is watched for `user`.
  package func stopPolling(_ user: Int) {
    guard polling.remove(user) != nil, polling.isEmpty else { return }
    poller.timers.cancel(timer)
    timer = nil
    guard isReported else { return }
    quietTimer = poller.timers.after(Self.quiet) { [unowned self] in
      isReported = false
      watchesAgain()
    }
  }

  private func setTimer() {
    timer = poller.timers.after(Self.pollInterval) { [unowned self] in
      timer = nil
      open()
      for user in polling { users[user]?.poll() }
      if !polling.isEmpty && timer == nil { setTimer() }
    }
  }

  func forgetAll() {
    users = [:]
    due = []
    polling = []
    // What they report to may keep the lane.
    refuses = { _ in }
    watchesAgain = {}
  }
}

/// Why files are not watched.
package struct InotifyRefusal: Error, Hashable, Sendable {
  /// A limit that the kernel sets for all programs of a user.
  package enum Limit: String, Sendable {
    case instances = "fs.inotify.max_user_instances"
    case watches = "fs.inotify.max_user_watches"
  }

  package let error: SystemError
  /// Nil if it is another reason, such as a missing permission.
  package let limit: Limit?

  package init(error: SystemError, limit: Limit?) {
    self.error = error
    self.limit = limit
  }

  /// inotify_init1(2) failed. EMFILE is its error for two limits: if any other descriptor opens, the limit is not that
  /// of open files.
  init(opening error: SystemError) {
    var isInstances = error.errno == EMFILE
    if isInstances {
      let other = eventfd(0, Int32(EFD_CLOEXEC))
      if other >= 0 { close(other) } else { isInstances = false }
    }
    self.init(error: error, limit: isInstances ? .instances : nil)
  }

  /// Whether a call of inotify(7) failed because of one of the kernel's limits.
  package static func isLimit(_ error: SystemError) -> Bool {
    error.call == "inotify_init1" ? error.errno == EMFILE : error.call == "inotify_add_watch" && error.errno == ENOSPC
  }

  /// inotify_add_watch(2) failed.
  package init(adding error: SystemError) {
    self.init(error: error, limit: error.errno == ENOSPC ? .watches : nil)
  }
}

/// The system calls; tests have their own.
package struct InotifyCalls: Sendable {
  package var open: @Sendable () -> Int32 = { inotify_init1(Int32(IN_NONBLOCK | IN_CLOEXEC)) }
  package var add: @Sendable (Int32, String, UInt32) -> Int32 = { inotify_add_watch($0, $1, $2) }

  package init() {}
}

/// Adds watches for one user of a lane's instance, on any thread.
package struct InotifyAdding: Sendable {
  fileprivate let watches: InotifyWatches
  fileprivate let user: Int

  /// Watches `path` for events of `mask`. May block. Returns the number of the watch, which other users may have, too,
  /// and whether it had events during the call: those are not noted.
  package func add(_ path: String, _ mask: UInt32) throws(SystemError) -> (watch: Int32, hadEvents: Bool) {
    try watches.add(path, mask, for: user)
  }

  /// Ends a watch of this user. Does nothing if it has ended.
  package func remove(_ watch: Int32) { watches.remove(watch, of: user) }
}

/// Which user has which watch. The kernel has one watch for an inode, whatever number of users it has.
private final class InotifyWatches: Sendable {
  private struct Table {
    /// By watch: the users and their masks.
    var users: [Int32: [Int: UInt32]] = [:]
    /// By user: its watches. Only users that have not left.
    var watches: [Int: Set<Int32>] = [:]
    /// The calls of inotify_add_watch(2) in progress, and the watches that had events meanwhile.
    var underWay: [Int: Set<Int32>] = [:]
    var lastCall = 0
    /// Watches without a user. They end when no call is in progress: such a call may be about to return one of them.
    var unused: Set<Int32> = []
  }

  private let table = Mutex(Table())
  private let parcel: DescriptorParcel
  private let raw: Int32
  private let calls: InotifyCalls
  private static let lost: Int32 = -1  // the watch of IN_Q_OVERFLOW

  init(_ descriptor: consuming Descriptor, _ calls: InotifyCalls) {
    raw = descriptor.raw
    parcel = DescriptorParcel(descriptor)
    self.calls = calls
  }

  // The kernel may take a while to close it.
  deinit { Inotify.queue.async { [parcel] in _ = parcel.take() } }

  func join(_ user: Int) { table.withLock { $0.watches[user] = [] } }

  func add(_ path: String, _ mask: UInt32, for user: Int) throws(SystemError) -> (Int32, Bool) {
    let call = table.withLock { table in
      table.lastCall += 1
      table.underWay[table.lastCall] = []
      return table.lastCall
    }
    // IN_MASK_ADD: another user may have this watch for other events.
    let watch = calls.add(raw, path, mask | UInt32(IN_MASK_ADD))
    let error = watch < 0 ? SystemError("inotify_add_watch") : nil
    let hadEvents = table.withLock { table in
      let seen = table.underWay.removeValue(forKey: call) ?? []
      if watch >= 0 {
        if table.watches[user]?.insert(watch) != nil {
          table.users[watch, default: [:]][user, default: 0] |= mask
          table.unused.remove(watch)
        } else if table.users[watch] == nil {
          table.unused.insert(watch)
        }
      }
      end(&table)
      return seen.contains(watch) || seen.contains(Self.lost)
    }
    if let error { throw error }
    return (watch, hadEvents)
  }

  func remove(_ watch: Int32, of user: Int) {
    table.withLock { table in
      guard table.watches[user]?.remove(watch) != nil else { return }
      drop(watch, of: user, &table)
      end(&table)
    }
  }

  func leave(_ user: Int) {
    table.withLock { table in
      for watch in table.watches.removeValue(forKey: user) ?? [] { drop(watch, of: user, &table) }
      end(&table)
    }
  }

  private func drop(_ watch: Int32, of user: Int, _ table: inout Table) {
    guard table.users[watch]?.removeValue(forKey: user) != nil, table.users[watch]?.isEmpty == true else { return }
    table.users[watch] = nil
    table.unused.insert(watch)
  }

  /// Ends the watches without a user.
  private func end(_ table: inout Table) {
    guard table.underWay.isEmpty else { return }
    for watch in table.unused { inotify_rm_watch(raw, watch) }
    table.unused = []
  }

  /// Reads until there are no more events, and at most as many as the kernel keeps.
  func read(_ note: (_ user: Int, Int32, UInt32, UnsafePointer<CChar>?) -> Void) {
    withUnsafeTemporaryAllocation(byteCount: 16384, alignment: MemoryLayout<inotify_event>.alignment) { buffer in
      for _ in 0..<64 {
        let count = Glibc.read(raw, buffer.baseAddress!, buffer.count)
        guard count > 0 else { return }
        var offset = 0
        while offset < count {
          let event = buffer.load(fromByteOffset: offset, as: inotify_event.self)
          let start = buffer.baseAddress! + offset + MemoryLayout<inotify_event>.size
          let name = event.len > 0 ? UnsafePointer(start.assumingMemoryBound(to: CChar.self)) : nil
          for user in users(of: event) { note(user, event.wd, event.mask, name) }
          offset += MemoryLayout<inotify_event>.size + Int(event.len)
        }
      }
    }
  }

  private func users(of event: inotify_event) -> [Int] {
    table.withLock { table in
      for call in table.underWay.keys { table.underWay[call]!.insert(event.wd) }
      if event.mask & UInt32(IN_Q_OVERFLOW) != 0 { return Array(table.watches.keys) }
      if event.mask & UInt32(IN_IGNORED) != 0 {
        // The watch has ended; another event reported why.
        for user in table.users.removeValue(forKey: event.wd)?.keys.map(\.self) ?? [] {
          table.watches[user]?.remove(event.wd)
        }
        table.unused.remove(event.wd)
        return []
      }
      guard let users = table.users[event.wd] else { return [] }
      return users.compactMap { event.mask & ($0.value | UInt32(IN_UNMOUNT)) != 0 ? $0.key : nil }
    }
  }
}
