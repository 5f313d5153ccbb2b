// Waits for a serial port that can't be opened: for its node, and while another program holds it also for that program's close
// and for the end of its lock file. inotify does not say whose doing an event is, so our own tries are told to it.

import ByteStreams
import CLinux
import Glibc

/// Lives on the lane of its poller, which keeps it until `cancel()`.
final class PortWatch: PollHandler, DeviceWatch {
  private let nodes: NodeWatch?
  private let poller: Poller
  private let place: @Sendable () -> ReleasePlace?
  private let changed: (DeviceNews) -> Void
  // Looking up names can block.
  private let shared = DeviceQueue.of("watch ports")
  private var inotify: Inotify?
  private var watches = ReleaseWatches()
  private var isOpening = false
  private var isTrying = false
  private var isCancelled = false

  /// `place` says which port it is by now, and where its lock files are; it runs on a queue. `cause` is why it could not be opened.
  init(
    _ node: String?, _ place: @escaping @Sendable () -> ReleasePlace?, after cause: SystemError?, on poller: Poller,
    _ changed: @escaping (DeviceNews) -> Void
  ) {
    self.place = place
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

  func tryBegins() {
    isTrying = true
    if let inotify { poller.change(inotify.raw, to: []) }
  }

  func tryFailed(_ cause: SystemError?) {
    isTrying = false
    guard cause?.meansInUse == true else { return }
    guard let inotify else { return begin() }
    poller.change(inotify.raw, to: .readable)
    let seen = watches.read(inotify)
    // A try that a lock file ended has touched nothing; one that the driver refused never had the port open.
    let isOwnLock = cause?.call != UUCPLocks.call
    let isOwnClose = isOwnLock && cause?.call != "open"
    watch()  // it may be another node by now
    if seen.closes > (isOwnClose ? 1 : 0) || seen.unlocks > (isOwnLock ? 1 : 0) { changed(.freed) }
  }

  // MARK: - Others' doing

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
      // Without it the retry timer has to do.
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
    let place = place
    poller.offload(to: shared.queue) {
      place().map { ReleaseWatches($0, with: inotify) } ?? ReleaseWatches()
    } then: { [self] in
      watches = $0
    }
  }
}

/// Where a program that lets go of a port can be seen.
struct ReleasePlace: Sendable {
  let node: String
  /// Nil where there are none.
  let lockFolder: String?
  /// The names that lock files of this port may have.
  let locks: Set<String>
}

/// inotify's watches for it. A value.
private struct ReleaseWatches: Sendable {
  private var node: Int32 = -1
  private var folder: Int32 = -1
  private var locks: Set<String> = []

  init() {}

  init(_ place: ReleasePlace, with inotify: Inotify) {
    node = inotify_add_watch(inotify.raw, place.node, UInt32(IN_CLOSE_WRITE | IN_CLOSE_NOWRITE))
    if let lockFolder = place.lockFolder {
      folder = inotify_add_watch(inotify.raw, lockFolder, UInt32(IN_DELETE | IN_MOVED_FROM) | UInt32(IN_ONLYDIR))
    }
    locks = place.locks
  }

  struct Seen {
    var closes = 0
    var unlocks = 0
  }

  /// What has happened since the last reading.
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
  /// Another program, or another route, has the port.
  var meansInUse: Bool { errno == EBUSY || (call == "flock" && errno == EWOULDBLOCK) }
}
