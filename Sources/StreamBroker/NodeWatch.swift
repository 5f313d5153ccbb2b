// Waits for a path to appear or to change: /dev/ttyUSB0, a link under /dev/serial/by-id whose directory is not there
// yet, /dev/pts/3. A link that waits for its device owns one, beside its retry timer; it never opens the path itself.

import ByteStreams
import CLinux
import Dispatch
import Glibc

/// Lives on the lane of its poller, which keeps it until `cancel()`.
public final class NodeWatch: PollHandler, DeviceWatch {
  private let path: String
  private let seesWrites: Bool
  private let poller: Poller
  private let changed: () -> Void
  private let failed: (SystemError) -> Void
  // Looking up names can block (automounts, network file systems), and closing takes the kernel a while: not for the lane.
  // One queue for all paths under one directory of the root: /dev and /run never hang, and a dead /mnt holds up no other.
  private let shared: DeviceQueue
  private var queue: DispatchQueue { shared.queue }

  private var inotify: Inotify?
  private var names: [Int32: Set<String>] = [:]  // by watch descriptor: what matters in that directory
  // A node or link that is newer is news; nanoseconds of CLOCK_REALTIME. 0 after an event: whatever is there is news.
  private var newsSince = NodeSurvey.now()
  private var isAway = false  // a survey is under way
  private var isStale = false  // … and something has changed since it began
  private var isCancelled = false
  private var hasFailed = false

  /// `path` may end in `*`, for any ending: what appears under one of these names is not known before (/dev/tty*).
  /// Calls `changed` on the lane each time the path may have become one that can be opened: it appeared, came to lead
  /// elsewhere, or its permissions changed (udev sets them after making the node). Goes on until `cancel()`.
  /// What was there and unchanged before is not told of: make the watch right after an opening has failed.
  /// `failed` is called once at most, when a limit of inotify(7) or a permission blinds the watch; a retry timer then has
  /// to do without it.
  /// With `seesWrites` it also tells when somebody who wrote to it closes it: for files, of which a write is news.
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

  /// No call comes afterwards. Safe to call twice.
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

  /// Looks along the path anew, and tells if there is news.
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
      NodeSurvey(of: path, watchingWith: inotify.raw, replacing: old, seesWrites: seesWrites)
    } then: { [self] survey in
      isAway = false
      guard !isCancelled else { return }
      names = survey.names
      if let error = survey.error { fail(error) }
      if isStale {
        isStale = false
        return self.survey()
      }
      let isNews = survey.exists && survey.changedAfter(newsSince)
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

  public func ready(_ events: PollEvents) {
    // Others' files in the same directories (/tmp, /dev) end here, at the cost of a comparison.
    guard let inotify, inotify.read(until: { matters($0, $1, $2) }) else { return }
    newsSince = 0
    survey()
  }

  private func matters(_ watch: Int32, _ mask: UInt32, _ name: UnsafePointer<CChar>?) -> Bool {
    if mask & UInt32(IN_Q_OVERFLOW) != 0 { return true }
    if mask & UInt32(IN_IGNORED) != 0 { return false }  // the watch has ended; why, another event has said
    guard let known = names[watch] else {
      // From a watch so new that it is not in the table: the survey under way has to look once more.
      isStale = isAway
      return false
    }
    guard let name else { return true }  // the directory itself
    return known.contains { NodeSurvey.isMeant(name, by: $0) }
  }
}
