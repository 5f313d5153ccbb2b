// One connection: bytes before the upgrade, then messages that are sent back unchanged.

import ByteStreams
import Glibc
import StreamWebSocket

/// Flushes printed text, also into a pipe.
func flushOutput() { fflush(nil) }

/// Sends back each message of a stream that keeps message boundaries, until it ends.
final class Echo: ByteStreamDelegate {
  private let stream: WebSocketStream
  private let poller: Poller
  private var message: [UInt8] = []
  // The kind of the message being sent back, and how many of its bytes are sent; nil while a message arrives.
  private var kind: WebSocketMessageKind?
  private var sent = 0
  private let received: (([UInt8]) -> Void)?
  private var done: (() -> Void)?

  /// With `hearing`, messages go to that closure and are not sent back. `done` is called once, when the connection is
  /// closed.
  init(
    _ stream: WebSocketStream, on poller: Poller, hearing received: (([UInt8]) -> Void)? = nil,
    then done: @escaping () -> Void
  ) {
    self.stream = stream
    self.poller = poller
    self.received = received
    self.done = done
  }

  func start() {
    stream.delegate = self
    turn()
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasBytesAvailable, .hasSpaceAvailable: turn()
    case .errorOccurred, .endEncountered: close()
    case .openCompleted, .inputEnded: break
    }
  }

  private func turn() {
    do {
      while done != nil, try kind == nil ? handle() : say() {}
    } catch {
      linger()
    }
  }

  private func handle() throws -> Bool {
    stream.writerWaits = []
    switch try withUnsafeTemporaryAllocation(
      byteCount: 65_536, alignment: 1,
      { run in
        let transfer = try stream.read(into: run)
        if case .moved(let count) = transfer { message += run[..<count] }
        return transfer
      })
    {
    case .moved:
      guard let ended = stream.endedMessage else { return true }
      if let received {
        received(message)
        message = []
      } else {
        kind = ended
      }
      return true
    case .blocked(let wish):
      stream.readerWaits = wish
      return false
    case .ended:
      linger()
      return false
    }
  }

  private func say() throws -> Bool {
    guard let kind else { return true }
    switch try message.withUnsafeBytes({
      try stream.write(UnsafeRawBufferPointer(rebasing: $0[sent...]), as: kind, endsMessage: true)
    }) {
    case .moved(let count):
      sent += count
      guard sent == message.count else { return true }
      (message, self.kind, sent) = ([], nil, 0)
      return true
    case .blocked(let wish):
      stream.readerWaits = []
      stream.writerWaits = wish
      return false
    case .ended:
      linger()
      return false
    }
  }

  // MARK: - Ending

  /// The last output must arrive: input after a protocol error is read and dropped for a second.
  private func linger() {
    guard done != nil else { return }
    if stream.hasPendingOutput || stream.closeBehavior.hasClosingHandshake {
      let rest = Lingerer(stream, on: poller, then: done)
      done = nil
      rest.start()
    } else {
      close()
    }
  }

  private func close() {
    stream.close()
    done.take()?()
  }
}

/// Reads and drops until the other side has ended, for up to a second.
private final class Lingerer: ByteStreamDelegate {
  private let stream: WebSocketStream
  private let poller: Poller
  private var done: (() -> Void)?

  init(_ stream: WebSocketStream, on poller: Poller, then done: (() -> Void)?) {
    self.stream = stream
    self.poller = poller
    self.done = done
  }

  func start() {
    stream.delegate = self
    stream.readerWaits = .readable
    stream.writerWaits = stream.hasPendingOutput ? .writable : []
    poller.timers.after(.seconds(1)) { self.finish() }
    poller.again(stream)
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    do {
      while true {
        switch try withUnsafeTemporaryAllocation(byteCount: 16_384, alignment: 1, { try stream.read(into: $0) }) {
        case .moved: continue
        case .blocked(let wish):
          stream.readerWaits = wish
          return
        case .ended:
          if stream.hasPendingOutput { return stream.writerWaits = .writable }
          return finish()
        }
      }
    } catch {
      if stream.hasPendingOutput { return stream.writerWaits = .writable }
      if !self.stream.closeBehavior.hasClosingHandshake { finish() } else { poller.again(stream) }
    }
  }

  private func finish() {
    stream.close()
    done.take()?()
  }
}
