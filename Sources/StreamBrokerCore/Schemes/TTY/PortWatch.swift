// Waits for a serial port that can't be opened: for its node, and while another program has it open, also for that
// program's close and the removal of its lock file. inotify does not report which process caused an event, so the owner
// announces our own attempts by `attemptBegins` and `attemptFailed`.

import ByteStreams
import CLinux
import Glibc

/// Lives on the lane of its poller, which keeps it until `cancel()`.
final class PortWatch: InotifyUser, DeviceWatch {
  private let nodes: NodeWatch?
  private let poller: Poller
  private let signs: @Sendable () -> ReleaseSigns?
  private let changed: (DeviceNews) -> Void
  // Looking up names can block.
  private let shared = DeviceQueue.of("watch ports")
  private var user: Int?
  private var watches = ReleaseWatches()
  private var isLookingUp = false
  /// Something happened at a watch that was not in `watches` yet.
  private var hadEarlyEvents = false
  private var seen = Seen()
  private var isTrying = false
  private var isCancelled = false

  private struct Seen {
    var closes = 0
    var unlocks = 0
  }

  /// `signs` returns the port's current node and the place of its lock files; it runs on a queue. `cause` is the error
  /// of the failed opening.
  init(
    _ node: String?, _ signs: @escaping @Sendable () -> ReleaseSigns?, after cause: SystemError?, on poller: Poller,
    _ changed: @escaping (DeviceNews) -> Void
  ) {
    self.signs = signs
    self.poller = poller
    self.changed = changed
    nodes = node.map { NodeWatch(path: $0, on: poller) { changed(.appeared) } }
    if cause?.meansInUse == true { watch() }
  }

  func cancel() {
    isCancelled = true
    nodes?.cancel()
    guard let user else { return }
    self.user = nil
    poller.inotify.leave(user)
  }

  // MARK: - Our own tries

  func attemptBegins() { isTrying = true }

  func attemptFailed(_ cause: SystemError?) {
    isTrying = false
    guard cause?.meansInUse == true else { return }
    poller.inotify.readNow()
    let seen = seen
    self.seen = Seen()
    // An attempt that a lock file ended has touched nothing; one that the driver refused never had the port open.
    let isOwnLock = cause?.call != UUCPLocks.call
    let isOwnClose = isOwnLock && cause?.call != "open"
    watch()  // it may be another node by now
    if seen.closes > (isOwnClose ? 1 : 0) || seen.unlocks > (isOwnLock ? 1 : 0) { changed(.freed) }
  }

  // MARK: - Events of other programs

  func note(_ watch: Int32, _ mask: UInt32, _ name: UnsafePointer<CChar>?) -> Bool {
    if mask & UInt32(IN_Q_OVERFLOW) != 0 {
      seen.closes += 2
    } else if mask & UInt32(IN_CLOSE_WRITE | IN_CLOSE_NOWRITE) != 0, watch == watches.node {
      seen.closes += 1
    } else if mask & UInt32(IN_DELETE | IN_MOVED_FROM) != 0, watch == watches.folder, let name {
      if watches.locks.contains(String(cString: name)) { seen.unlocks += 1 }
    } else if isLookingUp, watch != watches.node, watch != watches.folder {
      hadEarlyEvents = true
    }
    return seen.closes > 0 || seen.unlocks > 0
  }

  func filesChanged() {
    // During a try they are counted, and looked at when it has failed.
    guard !isTrying, seen.closes > 0 || seen.unlocks > 0 else { return }
    seen = Seen()
    changed(.freed)
  }

  /// The kernel does not report a release: only a try shows whether the port is free.
  func poll() {
    watch()
    if !isTrying { changed(.appeared) }
  }

  private func watch() {
    guard !isCancelled, !isLookingUp else { return }
    let user = user ?? poller.inotify.join(self)
    self.user = user
    switch poller.inotify.adding(for: user) {
    case .failure(let refusal): poller.inotify.startPolling(user, refusal)
    case .success(let adding):
      isLookingUp = true
      let (signs, old) = (signs, watches)
      poller.offload(to: shared.queue) {
        ReleaseWatches(signs(), with: adding, replacing: old)
      } then: { [self] in
        isLookingUp = false
        guard !isCancelled else { return }
        watches = $0
        if let refusal = watches.refusal {
          poller.inotify.startPolling(user, refusal)
        } else {
          poller.inotify.stopPolling(user)
        }
        guard watches.hadEvents || hadEarlyEvents else { return }
        hadEarlyEvents = false
        if isTrying { seen.closes += 2 } else { changed(.freed) }
      }
    }
  }
}

/// Where the release of a port by another program can be seen.
struct ReleaseSigns: Sendable {
  let node: String
  /// Nil if there are no lock files.
  let lockFolder: String?
  /// The possible names of this port's lock files.
  let locks: Set<String>
}

/// The inotify watches for these signs. A value.
private struct ReleaseWatches: Sendable {
  private(set) var node: Int32?
  private(set) var folder: Int32?
  private(set) var locks: Set<String> = []
  private(set) var hadEvents = false
  /// Why not all of it is watched, if that is a limit of the kernel.
  private(set) var refusal: InotifyRefusal?

  init() {}

  init(_ signs: ReleaseSigns?, with watches: InotifyAdding, replacing old: ReleaseWatches) {
    if let signs {
      node = add(signs.node, IN_CLOSE_WRITE | IN_CLOSE_NOWRITE, watches)
      folder = signs.lockFolder.flatMap { add($0, IN_DELETE | IN_MOVED_FROM | Int32(IN_ONLYDIR), watches) }
      locks = signs.locks
    }
    for watch in [old.node, old.folder] where watch != node && watch != folder {
      if let watch { watches.remove(watch) }
    }
  }

  private mutating func add(_ path: String, _ mask: Int32, _ watches: InotifyAdding) -> Int32? {
    do throws(SystemError) {
      let (watch, hadEvents) = try watches.add(path, UInt32(bitPattern: mask))
      if hadEvents { self.hadEvents = true }
      return watch
    } catch {
      let refusal = InotifyRefusal(adding: error)
      if refusal.limit != nil { self.refusal = refusal }
      return nil
    }
  }
}

extension SystemError {
  /// Whether another program, or another route, has the port open.
  var meansInUse: Bool { errno == EBUSY || (call == "flock" && errno == EWOULDBLOCK) }
}
