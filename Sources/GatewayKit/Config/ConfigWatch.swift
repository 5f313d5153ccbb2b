// Tells when the configuration file may have changed: written in place, replaced by an editor's rename, or reached by links
// that now lead elsewhere, as when Kubernetes swaps a ConfigMap's folder. Waits until it is quiet. `serve --watch` uses it.

import ByteStreams
import Glibc
import StreamBroker

/// Lives on the lane of its poller, until `cancel()`.
final class ConfigWatch {
  private let poller: Poller
  private let changed: () -> Void
  private var watch: NodeWatch?
  private var timer: Timers.Token?
  /// Editors write in several steps; the last one counts.
  private static let quiet = Duration.milliseconds(200)

  /// `failed` is called when changes can't be seen, once.
  init(
    _ path: String, on poller: Poller, changed: @escaping () -> Void, failed: @escaping (SystemError) -> Void
  ) {
    self.poller = poller
    self.changed = changed
    watch = NodeWatch(
      path: Self.absolute(path), on: poller, seesWrites: true, changed: { [weak self] in self?.noticed() },
      failed: failed)
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
    watch?.cancel()
    watch = nil
    poller.timers.cancel(timer)
  }
}
