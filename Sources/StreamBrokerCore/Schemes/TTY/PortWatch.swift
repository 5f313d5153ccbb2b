// Waits for a serial port that can't be opened: for its node, and while another program has it open, also for that
// program's close and the removal of its lock file. inotify does not report which process caused an event, so the owner
// announces our own attempts by `attemptBegins` and `attemptFailed`.

import ByteStreams
import CLinux
import Glibc

/// Lives on the lane of its poller, which keeps it until `cancel()`.
final class PortWatch: PollHandler, DeviceWatch {
  private let nodes: NodeWatch?
  private let poller: Poller
  private let signs: @Sendable () -> ReleaseSigns?
  private let changed: (DeviceNews) -> Void
  // Looking up names can block.
  private let shared = DeviceQueue.of("watch ports")
  private var inotify: Inotify?
  private var watches = ReleaseWatches()
  private var isOpening = false
  private var isTrying = false
  private var isCancelled = false

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
    if cause?.meansInUse == true { begin() }
  }

  func cancel() {
    isCancelled = true
    nodes?.cancel()
    guard let inotify else { return }
    self.inotify = nil
    poller.remove(inotify.raw)
    inotify.close(on: shared.queue)
  }

  // MARK: - Our own tries

  func attemptBegins() {
    isTrying = true
    if let inotify { poller.change(inotify.raw, to: []) }
  }

  func attemptFailed(_ cause: SystemError?) {
    isTrying = false
    guard cause?.meansInUse == true else { return }
    guard let inotify else { return begin() }
    poller.change(inotify.raw, to: .readable)
    let seen = watches.read(inotify)
    // An attempt that a lock file ended has touched nothing; one that the driver refused never had the port open.
    let isOwnLock = cause?.call != UUCPLocks.call
    let isOwnClose = isOwnLock && cause?.call != "open"
    watch()  // it may be another node by now
    if seen.closes > (isOwnClose ? 1 : 0) || seen.unlocks > (isOwnLock ? 1 : 0) { changed(.freed) }
  }

  // MARK: - Events of other programs

  func ready(_ events: PollEvents) {
    guard let inotify, !isTrying else { return }
    let seen = watches.read(inotify)
    if seen.closes > 0 || seen.unlocks > 0 { changed(.freed) }
  }

  private func begin() {
    guard !isOpening else { return }
    isOpening = true
    poller.offload(to: shared.queue) {
      Inotify.open()
    } then: { [self] result in
      isOpening = false
      // If this fails, only the retry timer is left.
      guard case .success(let inotify) = result else { return }
      guard !isCancelled, (try? poller.add(inotify.raw, handler: self, for: isTrying ? [] : .readable)) != nil else {
        return inotify.close(on: shared.queue)
      }
      self.inotify = inotify
      watch()
    }
  }

  private func watch() {
    guard let inotify else { return }
    let signs = signs
    poller.offload(to: shared.queue) {
      signs().map { ReleaseWatches($0, with: inotify) } ?? ReleaseWatches()
    } then: { [self] in
      watches = $0
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
  private var node: Int32 = -1
  private var folder: Int32 = -1
  private var locks: Set<String> = []

  init() {}

  init(_ signs: ReleaseSigns, with inotify: Inotify) {
    node = inotify_add_watch(inotify.raw, signs.node, UInt32(IN_CLOSE_WRITE | IN_CLOSE_NOWRITE))
    if let lockFolder = signs.lockFolder {
      folder = inotify_add_watch(inotify.raw, lockFolder, UInt32(IN_DELETE | IN_MOVED_FROM) | UInt32(IN_ONLYDIR))
    }
    locks = signs.locks
  }

  struct Seen {
    var closes = 0
    var unlocks = 0
  }

  /// The events since the last read.
  func read(_ inotify: Inotify) -> Seen {
    var seen = Seen()
    _ = inotify.read { watch, mask, name in
      if mask & UInt32(IN_Q_OVERFLOW) != 0 {
        seen.closes += 2
      } else if mask & UInt32(IN_CLOSE_WRITE | IN_CLOSE_NOWRITE) != 0, watch == node {
        seen.closes += 1
      } else if mask & UInt32(IN_DELETE | IN_MOVED_FROM) != 0, watch == folder, let name {
        if locks.contains(String(cString: name)) { seen.unlocks += 1 }
      }
      return false
    }
    return seen
  }
}

extension SystemError {
  /// Whether another program, or another route, has the port open.
  var meansInUse: Bool { errno == EBUSY || (call == "flock" && errno == EWOULDBLOCK) }
}
