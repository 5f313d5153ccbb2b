// Reports that a file, or one of several, may have changed: it was written, an editor replaced it by a rename, or links
// to it now lead elsewhere, as when Kubernetes swaps a ConfigMap's folder. Waits until changes pause. `serve --watch`
// uses it.

import ByteStreams
import Glibc
import StreamBroker

/// Lives on the lane of its poller, until `cancel()`.
final class ConfigWatch {
  private let poller: Poller
  private let changed: () -> Void
  private var watches: [NodeWatch] = []
  private var timer: Timers.Token?
  /// Editors write in several steps; the last one counts.
  private static let quiet = Duration.milliseconds(200)

  /// A path may end in `*`, for any ending. `failed` is called when the kernel does not report changes of a path, at
  /// most once for each. Not for a limit of inotify(7), which is reported once for everything that is watched.
  init(
    _ paths: [String], on poller: Poller, changed: @escaping () -> Void,
    failed: @escaping (SystemError, _ path: String) -> Void
  ) {
    self.poller = poller
    self.changed = changed
    watches = paths.map { path in
      NodeWatch(
        path: Self.absolute(path), on: poller, seesWrites: true, changed: { [weak self] in self?.noticed() },
        failed: { if !InotifyRefusal.isLimit($0) { failed($0, path) } })
    }
  }

  private static func absolute(_ path: String) -> String {
    guard !path.hasPrefix("/"), let folder = getcwd(nil, 0) else { return path }
    defer { free(folder) }
    return String(cString: folder) + "/" + path
  }

  private func noticed() {
    poller.timers.cancel(timer)
    timer = poller.timers.after(Self.quiet) { [weak self] in self?.changed() }
  }

  func cancel() {
    for watch in watches { watch.cancel() }
    watches = []
    poller.timers.cancel(timer)
  }
}
