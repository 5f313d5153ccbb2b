// Waits for a path to appear or change: /dev/ttyUSB0, /dev/pts/3, a symbolic link under /dev/serial/by-id whose
// directory does not exist yet. A route's link owns one while it waits for its device, beside its retry timer. Never
// opens the path.

import ByteStreams
import CLinux
import Dispatch
import Glibc

/// Waits for a path to appear or change, by inotify(7); never opens the path. Lives on the lane of its poller, which keeps
/// it until `cancel()`.
public final class NodeWatch: PollHandler, DeviceWatch {
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

  private var inotify: Inotify?
  private var names: [Int32: Set<String>] = [:]  // by watch descriptor: the names that matter in that directory
  // A node or link changed after this is reported; nanoseconds of CLOCK_REALTIME. 0 after an event: anything that
  // exists is reported.
  private var newsSince = NodePathWalk.now()
  private var matches: Set<String> = []
  private var isAway = false  // a survey is in progress
  private var isStale = false  // … and something changed after it began
  private var isCancelled = false
  private var hasFailed = false

  /// `path` may end in `*`, for any ending (/dev/tty*): the exact name is not known in advance. Calls `changed` on the
  /// lane each time opening the path may have become possible: it appeared, leads elsewhere now, or its permissions
  /// changed (udev sets them after it creates the node). Continues until `cancel()`. A path that existed before and has
  /// not changed is not reported: create the watch right after an opening has failed. `failed` is called at most once,
  /// when a limit of inotify(7) or a permission blinds the watch; then only a retry timer is left. With `seesWrites` it
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
    poller.offload(to: queue) {
      Inotify.open()
    } then: { [self] result in
      begin(result)
    }
  }

  /// No callback is called afterwards. Safe to call twice.
  public func cancel() {
    isCancelled = true
    guard let inotify else { return }
    self.inotify = nil
    poller.remove(inotify.raw)
    inotify.close(on: queue)
  }

  private func begin(_ result: Result<Inotify, SystemError>) {
    switch result {
    case .failure(let error): fail(error)
    case .success(let inotify):
      guard !isCancelled else { return inotify.close(on: queue) }
      do {
        try poller.add(inotify.raw, handler: self, for: .readable)
      } catch {
        inotify.close(on: queue)
        return fail(error)
      }
      self.inotify = inotify
      survey()
    }
  }

  /// Walks the path again, and calls `changed` if there is news.
  private func survey() {
    guard let inotify else { return }
    guard !isAway else {
      isStale = true
      return
    }
    isAway = true
    let (path, seesWrites) = (path, seesWrites)
    let old = Array(names.keys)
    poller.offload(to: queue) {
      NodePathWalk(of: path, watchingWith: inotify.raw, replacing: old, seesWrites: seesWrites)
    } then: { [self] survey in
      isAway = false
      guard !isCancelled else { return }
      names = survey.names
      if let error = survey.error { fail(error) }
      if isStale {
        isStale = false
        return self.survey()
      }
      let isOneGone = seesWrites && !matches.isSubset(of: survey.matches)
      matches = survey.matches
      let isNews = isOneGone || survey.exists && survey.changedAfter(newsSince)
      newsSince = survey.startedAt
      if isNews { changed() }
    }
  }

  private func fail(_ error: SystemError) {
    guard !isCancelled, !hasFailed else { return }
    hasFailed = true
    failed(error)
  }

  // MARK: - Events

  /// Called by the poller.
  public func ready(_ events: PollEvents) {
    // Events of other files in the same directories (/tmp, /dev) end here, at the cost of a comparison.
    guard let inotify, inotify.read(until: { matters($0, $1, $2) }) else { return }
    newsSince = 0
    survey()
  }

  private func matters(_ watch: Int32, _ mask: UInt32, _ name: UnsafePointer<CChar>?) -> Bool {
    if mask & UInt32(IN_Q_OVERFLOW) != 0 { return true }
    if mask & UInt32(IN_IGNORED) != 0 { return false }  // the watch has ended; another event reported why
    guard let known = names[watch] else {
      // From a watch that is not in the table yet: the survey in progress must be repeated.
      isStale = isAway
      return false
    }
    guard let name else { return true }  // the directory itself
    return known.contains { NodePathWalk.isMeant(name, by: $0) }
  }
}
