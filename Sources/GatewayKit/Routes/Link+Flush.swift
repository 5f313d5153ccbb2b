// What is thrown away when the last client leaves, where `device.flush` says so: what the port has not sent, and what it
// said that nobody has heard. In the kernel it goes by a call on the port's own queue.

import ByteStreams

extension Link {
  func allHaveFinished() { flush(.output) }

  /// Newcomers' bytes wait until the call is done, or it would take them too.
  func flush(_ what: Purge) {
    if what != .output { hub.dropUnheard() }
    guard let stream = hub.endpoint, let line = stream.serialLine else { return }
    hub.holdInput()
    line.unsent { [weak self] answer in
      guard let self, case .success(let count) = answer, count > 0 else { return }
      delegate.link(self, dropped: UInt64(count))
    }
    line.purge(what) { [weak self, weak stream] _ in
      guard let self, let stream, stream === hub.endpoint else { return }
      hub.resumeInput()
    }
  }
}
