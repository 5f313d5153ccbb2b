// What becomes of a user who was not let in: he keeps the port, and what he says is dropped until he closes it or somebody
// else opens it, too. Clients who have to go are hung up on; but many a program opens a port that hung up again at once
// (minicom, 25 times a second), and would be refused again, without end.

import ByteStreams

final class PtyRest: ByteStreamDelegate {
  private let stream: PtyClientStream
  private let isOpenedAgain: () -> Bool
  private var over: ((_ hungUp: Bool) -> Void)?

  /// Takes over a duplicate of a pty's master. `over` is called when its user has closed it, or it can't be told any more.
  /// Before anything is dropped `isOpenedAgain` is asked; if it says so, it has seen to what follows.
  init(
    _ master: consuming Descriptor, on poller: Poller, isOpenedAgain: @escaping () -> Bool,
    over: @escaping (_ hungUp: Bool) -> Void
  ) {
    stream = PtyClientStream(master, on: poller)
    self.isOpenedAgain = isOpenedAgain
    self.over = over
    stream.delegate = self
    stream.readerWaits = .readable
  }

  /// Ends it without a word.
  func end() {
    over = nil
    stream.close()
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasBytesAvailable: drop()
    case .endEncountered: finish(hungUp: true)
    case .errorOccurred: finish(hungUp: false)
    case .openCompleted, .hasSpaceAvailable, .lastByteIsIn: break
    }
  }

  /// One read a turn: he is nobody's client, and others have the lane to share.
  private func drop() {
    if isOpenedAgain() { return }
    do {
      _ = try withUnsafeTemporaryAllocation(byteCount: 16384, alignment: 1) { try stream.read(into: $0) }
    } catch {
      finish(hungUp: false)
    }
  }

  private func finish(hungUp: Bool) {
    let over = over
    end()
    over?(hungUp)
  }
}
