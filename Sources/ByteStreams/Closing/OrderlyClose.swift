// Closes one stream in order. close(2) with unread input sends a reset, and a reset destroys output of ours that is
// still on its way. So: send what is left, read and discard until the other side has received it and has ended, then
// close.

package final class OrderlyClose: ByteStreamDelegate {
  private enum Stage {
    /// The last bytes to an endpoint are written, then the port's own queue drains.
    case endpointDrain(EndpointDrain)
    /// All is sent; the other side still has to end, read or acknowledge.
    case waits(CloseWait)
    /// A refused user of a pty keeps the pty until that user closes it. `isOpenedAgain` is called before anything is
    /// discarded.
    case keepsUser(isOpenedAgain: () -> Bool)
  }

  package struct End {
    /// The other side ended by itself.
    package var otherSideEnded = false
    /// Bytes that the port did not send, the last bytes included.
    package var unsent = 0
    /// A mistake of ours that was found while writing the last bytes.
    package var fault: InternalFault?
  }

  private let stream: any ByteStream
  private let poller: Poller
  private var stage: Stage
  /// The only timer that runs.
  private var timer: Timers.Token?
  /// How many more bytes may be discarded; nil: bounded by time only.
  private var mostRead: Int?
  private var done: ((End) -> Void)?

  private init(_ stage: Stage, _ stream: any ByteStream, on poller: Poller, then done: @escaping (End) -> Void) {
    self.stage = stage
    self.stream = stream
    self.poller = poller
    self.done = done
  }

  /// Takes over `stream`, waits and closes it; with `.acknowledgement` it is reset. After `most` bytes it closes, even
  /// if more input arrives.
  package convenience init(
    _ stream: any ByteStream, _ wait: CloseWait, readingAtMost most: Int? = nil, on poller: Poller,
    then done: @escaping () -> Void
  ) {
    self.init(.waits(wait), stream, on: poller) { _ in done() }
    mostRead = most
  }

  /// Takes over the stream of a refused pty user, and drops what it sends. After a hang-up many programs open the port
  /// again at once (minicom 25 times a second), and would be refused each time. `isOpenedAgain` is called before
  /// anything is dropped; if it returns true, it has handled the rest. `done` gets true if the user has closed the pty;
  /// false means unknown.
  package convenience init(
    keeping user: any ByteStream, on poller: Poller, isOpenedAgain: @escaping () -> Bool,
    then done: @escaping (_ hasClosed: Bool) -> Void
  ) {
    self.init(.keepsUser(isOpenedAgain: isOpenedAgain), user, on: poller) { done($0.otherSideEnded) }
  }

  /// Sends an endpoint its last bytes. The stream is the caller's again when `done` is called.
  package convenience init(_ words: EndpointDrain, then done: @escaping (End) -> Void) {
    self.init(.endpointDrain(words), words.stream, on: words.poller, then: done)
  }

  /// Call it first, once. `done` is called once, maybe before this returns.
  package func start() {
    stream.delegate = self
    switch stage {
    case .keepsUser: readOn()
    case .waits(let wait):
      stream.writerWaits = stream.hasPendingOutput && wait.aim != .reads ? .writable : []
      if wait.aim == .otherSidesEnd && !stream.hasPendingOutput { stream.finishWriting() }
      if wait.readsOn { readOn() } else { stream.readerWaits = [] }
      wake(in: wait.pause)
    case .endpointDrain(let words):
      readOn()  // while its output is unread, the endpoint may stop reading
      words.start { [weak self] step in
        switch step {
        case .wait(let pause): self?.wake(in: pause)
        case .over: self?.finish()
        }
      }
    }
  }

  // MARK: - Events

  package func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasBytesAvailable: discard()
    case .errorOccurred: finish()
    case .endEncountered: otherSideHasEnded()
    case .hasSpaceAvailable: goOn()
    case .openCompleted, .inputEnded: break
    }
  }

  /// Reads once per turn, to share the lane with other streams.
  private func discard() {
    if case .keepsUser(let isOpenedAgain) = stage, isOpenedAgain() { return }
    do {
      switch try stream.discard() {
      case .moved(let count): hasDiscarded(count)
      case .blocked(let wish): stream.readerWaits = wish
      case .ended: otherSideHasEnded()
      }
    } catch {
      finish()
    }
  }

  private func hasDiscarded(_ count: Int) {
    if case .waits(var wait) = stage {
      wait.hasReceived = true
      stage = .waits(wait)
      if !wait.readsOn { return }  // this read was requested before
    }
    if let most = mostRead {
      guard count < most else { return finish() }
      mostRead = most - count
    }
    readOn()
  }

  /// No event reports bytes inside the stream, and the other side's end may be among them.
  private func readOn() {
    guard done != nil else { return }
    stream.readerWaits = .readable
    if stream.hasBufferedInput { poller.again(stream) }
  }

  private func otherSideHasEnded() {
    // Our own last unit may still be held: send it first.
    guard case .waits(var wait) = stage, stream.hasPendingOutput, wait.aim != .acknowledgement else {
      return finish(otherSideEnded: true)
    }
    wait.aim = .pendingOutput
    stage = .waits(wait)
    stream.readerWaits = []
    stream.writerWaits = .writable
  }

  /// A held unit may be out now. Finishing the output had to wait for it.
  private func goOn() {
    switch stage {
    case .endpointDrain(let words): words.write()
    case .keepsUser: break
    case .waits(let wait):
      guard !stream.hasPendingOutput else { return }
      stream.writerWaits = []
      switch wait.aim {
      case .otherSidesEnd: stream.finishWriting()
      case .pendingOutput, .reads: finish()
      case .acknowledgement: break
      }
    }
  }

  // MARK: - Time

  private func wake(in pause: Duration) {
    poller.timers.cancel(timer)
    timer = poller.timers.after(pause) { [weak self] in self?.look() }
  }

  private func look() {
    switch stage {
    case .endpointDrain(let words): words.look()
    case .waits(var wait):
      guard let pause = wait.look(stream.undelivered, hasPendingOutput: stream.hasPendingOutput) else {
        return finish()
      }
      stage = .waits(wait)
      wake(in: pause)
    case .keepsUser: break
    }
  }

  // MARK: - The end

  /// Time is up. Writes what the stream takes at once, then closes.
  package func cutOff() {
    if case .endpointDrain(let words) = stage { words.cutOff() }
    finish()
  }

  /// Closes now, without calling `done`.
  package func forget() {
    done = { _ in }
    finish()
  }

  private func finish(otherSideEnded: Bool = false) {
    guard let done = done.take() else { return }
    poller.timers.cancel(timer)
    var end = End(otherSideEnded: otherSideEnded)
    switch stage {
    case .endpointDrain(let words):
      end.unsent = words.unsent ?? 0
      end.fault = words.fault
      words.stop()
      stream.delegate = nil
      stream.readerWaits = []
      stream.writerWaits = []
    case .waits(let wait) where wait.aim == .acknowledgement: stream.abort()
    case .waits, .keepsUser: stream.close()
    }
    done(end)
  }
}

extension ByteStream {
  /// Reads once and drops the bytes.
  package func discard() throws -> Transfer {
    try withUnsafeTemporaryAllocation(byteCount: mostDiscardedAtOnce, alignment: 1) {
      try read(into: $0).checked(of: $0.count, at: "close.discard")
    }
  }

  /// Drops the bytes that have arrived, about `most` of them at most. Returns their number, and the error if the stream
  /// broke.
  package func discardAll(atMost most: Int) -> (Int, (any Error)?) {
    var dropped = 0
    do {
      for _ in 0..<most / mostDiscardedAtOnce {
        guard case .moved(let count) = try discard() else { break }
        dropped += count
      }
      return (dropped, nil)
    } catch {
      return (dropped, error)
    }
  }
}

private let mostDiscardedAtOnce = 16_384
