// Drops what `device.flush` names when the last client leaves: bytes that the port has not sent, and output that no
// client got. In the kernel this is a call on the port's own queue.

import ByteStreams

extension Link {
  func allClientsFinished() { flush(.output) }

  /// New clients' input waits until the call is done: the call would drop that input as well.
  func flush(_ what: Purge) {
    if what != .output { hub.downstream.dropWithoutClients() }
    guard let stream = hub.endpoint, let line = stream.serialLine else { return }
    hub.upstream.hold()
    line.unsent { [weak self] answer in
      guard let self, case .success(let count) = answer, count > 0 else { return }
      delegate.link(self, dropped: UInt64(count))
    }
    hub.upstream.purge(what, of: line) { [weak self, weak stream] _ in
      guard let self, let stream, stream === hub.endpoint else { return }
      hub.upstream.resume()
    }
  }
}
