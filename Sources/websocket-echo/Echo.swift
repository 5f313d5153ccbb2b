// One connection: bytes before the upgrade, then messages that go back as they came.

import ByteStreams
import Glibc
import StreamWebSocket

/// What was printed is out, also into a pipe.
func flushOutput() { fflush(nil) }

/// Says back each message of a stream whose messages are marked, until it ends.
final class Echo: ByteStreamDelegate {
  private let stream: WebSocketStream
  private let poller: Poller
  private var message: [UInt8] = []
  // What is going back, and how much of it is out; nil while one is coming in.
  private var kind: WebSocketMessageKind?
  private var sent = 0
  private let heard: (([UInt8]) -> Void)?
  private var done: (() -> Void)?

  /// With `hearing` messages are told instead of said back. `done` is called once, when the connection is closed.
  init(
    _ stream: WebSocketStream, on poller: Poller, hearing heard: (([UInt8]) -> Void)? = nil,
    then done: @escaping () -> Void
  ) {
    self.stream = stream
    self.poller = poller
    self.heard = heard
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
    case .openCompleted, .lastByteIsIn: break
    }
  }

  private func turn() {
    do {
      while done != nil, try kind == nil ? hear() : say() {}
    } catch {
      linger()
    }
  }

  private func hear() throws -> Bool {
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
      if let heard {
        heard(message)
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

  // MARK: - The end

  /// What is said last shall arrive: one that broke the rules is heard out for a second.
  private func linger() {
    guard done != nil else { return }
    if stream.holdsUnit || stream.hasClosingHandshake {
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

/// Reads and drops until the other side has ended, a second at most.
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
    stream.writerWaits = stream.holdsUnit ? .writable : []
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
          if stream.holdsUnit { return stream.writerWaits = .writable }
          return finish()
        }
      }
    } catch {
      if stream.holdsUnit { return stream.writerWaits = .writable }
      if !self.stream.hasClosingHandshake { finish() } else { poller.again(stream) }
    }
  }

  private func finish() {
    stream.close()
    done.take()?()
  }
}
