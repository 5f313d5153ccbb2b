// Waits for a path to appear or change: /dev/ttyUSB0, /dev/pts/3, a symbolic link under /dev/serial/by-id whose
// directory does not exist yet. A route's link owns one while it waits for its device, beside its retry timer. Never
// opens the path.

import ByteStreams
import CLinux
import Dispatch
import Glibc

/// Waits for a path to appear or change, by inotify(7); never opens the path. Where the kernel refuses to watch, it
/// looks at the path every second. Lives on the lane of its poller, which keeps it until `cancel()`.
public final class NodeWatch: DeviceWatch {
  private let path: String
  private let seesWrites: Bool
  private let poller: Poller
  private let changed: () -> Void
  private let failed: (SystemError) -> Void
  // Looking up names can block (automounts, network file systems), and the kernel takes a while to close: not for the
  // lane. One queue for all paths under the same top-level directory: /dev and /run never hang, and a dead /mnt delays
  // no others.
  private let shared: DeviceQueue
  private var queue: DispatchQueue { shared.queue }

  private let watched = WatchedNode()
  private var user: Int?
  private var names: [Int32: Set<String>] = [:]  // by watch descriptor: the names that matter in that directory
  // A node or link changed after this is reported; nanoseconds of CLOCK_REALTIME. 0 after an event: anything that
  // exists is reported.
  private var newsSince = NodePathWalk.now()
  private var matches: Set<String> = []
  private var isAway = false  // a survey is in progress
  private var isStale = false  // … and something changed after it began
  private var hasFailed = false
  private var polls = false
  // While it polls: what the path led to at the last look.
  private var trace: [Int64]?

  /// `path` may end in `*`, for any ending (/dev/tty*): the exact name is not known in advance. Calls `changed` on the
  /// lane each time opening the path may have become possible: it appeared, leads elsewhere now, or its permissions
  /// changed (udev sets them after it creates the node). Continues until `cancel()`. A path that existed before and has
  /// not changed is not reported: create the watch right after an opening has failed. `failed` is called at most once,
  /// when a limit of inotify(7) or a permission blinds the watch; it looks every second then. With `seesWrites` it
  /// also reports when a program that wrote to the file closes it, and when one of the files that `*` stands for
  /// disappears: for files whose content matters.
  public init(
    path: String, on poller: Poller, seesWrites: Bool = false, changed: @escaping () -> Void,
    failed: @escaping (SystemError) -> Void = { _ in }
  ) {
    self.path = path
    self.seesWrites = seesWrites
    self.poller = poller
    self.changed = changed
    self.failed = failed
    shared = DeviceQueue.of("watch /\(path.split(separator: "/").first ?? "")")
    watched.watch = self
    user = poller.inotify.join(watched)
    survey()
  }

  /// No callback is called afterwards. Safe to call twice.
  public func cancel() {
    guard let user else { return }
    self.user = nil
    poller.inotify.leave(user)
    watched.watch = nil
  }

  /// Walks the path again, and calls `changed` if there is news.
  private func survey() {
    guard let user else { return }
    guard !isAway else {
      isStale = true
      return
    }
    isAway = true
    var watches: InotifyAdding?
    var refusal: InotifyRefusal?
    switch poller.inotify.adding(for: user) {
    case .success(let adding): watches = adding
    case .failure(let why): refusal = why
    }
    let (path, seesWrites, adding) = (path, seesWrites, watches)
    let old = Array(names.keys)
    poller.offload(to: queue) {
      NodePathWalk(of: path, watchingWith: adding, replacing: old, seesWrites: seesWrites)
    } then: { [self] survey in
      isAway = false
      guard self.user != nil else { return }
      took(survey, refusal ?? survey.error.map { InotifyRefusal(adding: $0) })
    }
  }

  private func took(_ survey: NodePathWalk, _ refusal: InotifyRefusal?) {
    names = survey.names
    let polled = polls
    setPolling(refusal)
    if isStale || survey.isStale {
      if survey.isStale { newsSince = 0 }
      isStale = false
      return self.survey()
    }
    let isOneGone = seesWrites && !matches.isSubset(of: survey.matches)
    matches = survey.matches
    let isChanged: Bool
    if polled, let trace {
      isChanged = trace != survey.trace || newsSince == 0
    } else {
      isChanged = survey.changedAfter(newsSince)
    }
    trace = survey.trace
    let isNews = isOneGone || survey.exists && isChanged
    newsSince = survey.startedAt
    if isNews { changed() }
  }

  private func setPolling(_ refusal: InotifyRefusal?) {
    guard let user else { return }
    polls = refusal != nil
    guard let refusal else { return poller.inotify.stopPolling(user) }
    poller.inotify.startPolling(user, refusal)
    fail(refusal.error)
  }

  private func fail(_ error: SystemError) {
    guard !hasFailed else { return }
    hasFailed = true
    failed(error)
  }

  // MARK: - Events

  // Events of other files in the same directories (/tmp, /dev) end here, at the cost of a comparison.
  fileprivate func note(_ watch: Int32, _ mask: UInt32, _ name: UnsafePointer<CChar>?) -> Bool {
    guard matters(watch, mask, name) else { return false }
    newsSince = 0
    return true
  }

  fileprivate func filesChanged() { survey() }

  fileprivate func poll() { survey() }

  private func matters(_ watch: Int32, _ mask: UInt32, _ name: UnsafePointer<CChar>?) -> Bool {
    if mask & UInt32(IN_Q_OVERFLOW) != 0 { return true }
    guard let known = names[watch] else {
      // From a watch that is not in the table yet: the survey in progress must be repeated.
      isStale = isAway
      return false
    }
    guard let name else { return true }  // the directory itself
    return known.contains { NodePathWalk.isMeant(name, by: $0) }
  }
}

/// Takes the lane's events, and keeps the watch until it is cancelled.
private final class WatchedNode: InotifyUser {
  var watch: NodeWatch?

  func note(_ watch: Int32, _ mask: UInt32, _ name: UnsafePointer<CChar>?) -> Bool {
    self.watch?.note(watch, mask, name) ?? false
  }
  func filesChanged() { watch?.filesChanged() }
  func poll() { watch?.poll() }
}
