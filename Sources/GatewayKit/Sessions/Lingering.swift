// The end of a connection whose other side may still be sending: close(2) with unread input sends a reset, and the
// reset destroys the tail of our own bytes on its way. So: finish writing, read and drop until the other side has
// finished too, then close.

import ByteStreams

/// A route's connections on this lane that are past their session. Bounded in number and time.
final class Lingering: ByteStreamDelegate {
  private let poller: Poller
  private var deadlines: [ObjectIdentifier: (stream: any ByteStream, timer: Timers.Token)] = [:]
  /// Beyond so many a connection closes at once; a hostile client gains nothing by never finishing.
  private static let most = 64
  private static let longest = Duration.seconds(2)

  init(on poller: Poller) { self.poller = poller }

  private var whenEmpty: (() -> Void)?

  /// Takes over `stream` and closes it in order. `otherSideFinished` when its end has been read already.
  func close(_ stream: any ByteStream, otherSideFinished: Bool) {
    guard !otherSideFinished, stream.canHalfClose, deadlines.count < Self.most else { return stream.close() }
    stream.writerWaits = []
    stream.finishWriting()
    let timer = poller.timers.after(Self.longest) { [weak self, weak stream] in
      if let self, let stream { self.finish(stream) }
    }
    deadlines[ObjectIdentifier(stream)] = (stream, timer)
    stream.delegate = self
    stream.readerWaits = .readable
  }

  /// Calls `done` when none is left, and sees to it that this is so within `limit`.
  func empty(within limit: Duration, then done: @escaping () -> Void) {
    if deadlines.isEmpty { return done() }
    whenEmpty = done
    poller.timers.after(limit) { [weak self] in self?.closeAll() }
  }

  /// Closes all of them now.
  func closeAll() {
    for (stream, _) in deadlines.values { finish(stream) }
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasBytesAvailable: drop(from: stream)
    case .errorOccurred, .endEncountered: finish(stream)
    case .openCompleted, .hasSpaceAvailable: break
    }
  }

  private func drop(from stream: any ByteStream) {
    do {
      let transfer = try withUnsafeTemporaryAllocation(byteCount: 16384, alignment: 1) { try stream.read(into: $0) }
      switch transfer {
      case .moved: if stream.holdsBytes { poller.again(stream) }
      case .blocked(let wish): stream.readerWaits = wish
      case .ended: finish(stream)
      }
    } catch {
      finish(stream)
    }
  }

  private func finish(_ stream: any ByteStream) {
    poller.timers.cancel(deadlines.removeValue(forKey: ObjectIdentifier(stream))?.timer)
    stream.close()
    guard deadlines.isEmpty, let done = whenEmpty else { return }
    whenEmpty = nil
    done()
  }
}
