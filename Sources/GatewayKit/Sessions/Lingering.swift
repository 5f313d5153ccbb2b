// The end of a connection whose other side may still be sending: close(2) with unread input sends a reset, and the
// reset destroys the tail of our own bytes on its way. So: finish writing, read and drop until the other side has
// finished too, then close.

import ByteStreams

/// A route's connections on this lane that are past their session. Bounded in number and time.
final class Lingering: ByteStreamDelegate {
  private let poller: Poller
  private struct Entry {
    let stream: any ByteStream
    var timer: Timers.Token
    /// What the other side had not acknowledged when the timer was set.
    var unacknowledged: Int
    /// How long that has not become less.
    var stalledFor = Duration.zero
    /// Whether bytes came from it since the timer was set.
    var isHeard = false
    /// There is nothing to wait for but the unit that it holds.
    var onlyHoldsUnit: Bool
    /// Its end is a reset.
    var breaksOff = false
    /// How many bytes are still read; nil for no bound but time.
    var mostRead: Int?
  }

  private var entries: [ObjectIdentifier: Entry] = [:]
  /// Beyond so many a connection closes at once; a hostile client gains nothing by never finishing.
  private static let most = 64
  /// It closes when so long nothing came, and nothing of ours is on its way.
  private static let longest = Duration.seconds(2)
  /// Or when our tail has made no progress for so long, whatever comes. One that reads slowly acknowledges in large steps,
  /// seconds apart, and one that answers while it reads would take a reset for an answer that nobody wants.
  private static let longestStall = Duration.seconds(30)

  /// What is read of one that never had a session. A session's client has sent what it sent in good faith.
  static let mostBeforeSession = 256 << 10

  init(on poller: Poller) { self.poller = poller }

  private var whenEmpty: (() -> Void)?

  /// Takes over `stream` and closes it in order. `otherSideFinished` when its end has been read already. After `most` bytes it
  /// closes, whatever comes.
  func close(_ stream: any ByteStream, otherSideFinished: Bool, readingAtMost most: Int? = nil) {
    let isOver = otherSideFinished || !(stream.canHalfClose || stream.hasClosingHandshake)
    if let unread = stream.unread, entries.count < Self.most { return awaitReader(of: stream, unread) }
    if isOver && stream.saysFarewell && !stream.holdsUnit { stream.finishWriting() }
    guard !isOver || stream.holdsUnit, entries.count < Self.most else { return stream.close() }
    stream.writerWaits = stream.holdsUnit ? .writable : []
    if !isOver && !stream.holdsUnit { stream.finishWriting() }
    entries[ObjectIdentifier(stream)] = Entry(
      stream: stream, timer: setTimer(for: stream), unacknowledged: stream.unacknowledged, onlyHoldsUnit: isOver,
      mostRead: most)
    stream.delegate = self
    stream.readerWaits = isOver ? [] : .readable
    askAgainIfHolding(stream)
  }

  /// No event tells of what is inside, and the other side's end may be.
  private func askAgainIfHolding(_ stream: any ByteStream) {
    if !stream.readerWaits.isEmpty && stream.holdsBytes { poller.again(stream) }
  }

  private func setTimer(for stream: any ByteStream) -> Timers.Token {
    poller.timers.after(Self.longest) { [weak self, weak stream] in
      if let self, let stream { self.timeIsOver(for: stream) }
    }
  }

  private func timeIsOver(for stream: any ByteStream) {
    guard var entry = entries[ObjectIdentifier(stream)] else { return }
    let left = stream.unacknowledged
    entry.stalledFor = left < entry.unacknowledged ? .zero : entry.stalledFor + Self.longest
    guard left > 0 || entry.isHeard, entry.stalledFor < Self.longestStall else { return finish(stream) }
    entry.unacknowledged = left
    entry.isHeard = false
    entry.timer = setTimer(for: stream)
    entries[ObjectIdentifier(stream)] = entry
  }

  // MARK: - Where a close destroys what is unread

  // The shortest pause before a look, and the longest: nobody is told when the other side has read something.
  private static let look = Duration.milliseconds(20)
  private static let longestLook = Duration.milliseconds(320)

  private func awaitReader(of stream: any ByteStream, _ unread: Int) {
    entries[ObjectIdentifier(stream)] = Entry(
      stream: stream, timer: look(at: stream, in: Self.look), unacknowledged: max(1, unread), onlyHoldsUnit: true)
    stream.delegate = self
    stream.writerWaits = []
    stream.readerWaits = .readable  // tells when he leaves; what he says is dropped
    askAgainIfHolding(stream)
  }

  private func look(at stream: any ByteStream, in pause: Duration) -> Timers.Token {
    poller.timers.after(pause) { [weak self, weak stream] in
      if let self, let stream { look(at: stream, after: pause) }
    }
  }

  private func look(at stream: any ByteStream, after pause: Duration) {
    guard var entry = entries[ObjectIdentifier(stream)] else { return }
    let left = stream.unread ?? 0
    entry.stalledFor = left < entry.unacknowledged ? .zero : entry.stalledFor + pause
    // Only nothing twice is nothing: the first time, bytes may be on their way from one of the kernel's buffers to the next.
    guard left > 0 || entry.unacknowledged > 0, entry.stalledFor < Self.longestStall else { return finish(stream) }
    entry.unacknowledged = left
    entry.timer = look(at: stream, in: left == 0 ? Self.look : min(pause * 2, Self.longestLook))
    entries[ObjectIdentifier(stream)] = entry
  }

  // MARK: - Breaking off

  /// Takes over `stream` and resets it, where it can be: the other side shall know that it did not get all. Not before it has
  /// acknowledged what is on its way, which a reset would destroy.
  func breakOff(_ stream: any ByteStream) {
    guard stream.holdsUnit || stream.unacknowledged > 0, entries.count < Self.most else { return stream.abort() }
    entries[ObjectIdentifier(stream)] = Entry(
      stream: stream, timer: watchTail(of: stream, in: Self.look), unacknowledged: stream.unacknowledged,
      onlyHoldsUnit: false, breaksOff: true)
    stream.delegate = self
    stream.writerWaits = stream.holdsUnit ? .writable : []
    stream.readerWaits = []
  }

  private func watchTail(of stream: any ByteStream, in pause: Duration) -> Timers.Token {
    poller.timers.after(pause) { [weak self, weak stream] in
      guard let self, let stream, var entry = entries[ObjectIdentifier(stream)] else { return }
      let left = stream.unacknowledged
      entry.stalledFor = left < entry.unacknowledged ? .zero : entry.stalledFor + pause
      guard left > 0 || stream.holdsUnit, entry.stalledFor < Self.longestStall else { return finish(stream) }
      entry.unacknowledged = left
      entry.timer = watchTail(of: stream, in: min(pause * 2, Self.longestLook))
      entries[ObjectIdentifier(stream)] = entry
    }
  }

  /// Calls `done` when none is left, and sees to it that this is so within `limit`.
  func empty(within limit: Duration, then done: @escaping () -> Void) {
    if entries.isEmpty { return done() }
    whenEmpty = done
    poller.timers.after(limit) { [weak self] in self?.closeAll() }
  }

  /// Closes all of them now.
  func closeAll() {
    for entry in entries.values { finish(entry.stream) }
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasBytesAvailable: drop(from: stream)
    case .errorOccurred: finish(stream)
    case .endEncountered: otherSideHasFinished(stream)
    case .hasSpaceAvailable: goOn(stream)
    case .openCompleted, .lastByteIsIn: break
    }
  }

  /// The last unit may be out: the end of writing waited for it.
  private func goOn(_ stream: any ByteStream) {
    guard !stream.holdsUnit, let entry = entries[ObjectIdentifier(stream)] else { return }
    stream.writerWaits = []
    if entry.breaksOff { return }
    if entry.onlyHoldsUnit { finish(stream) } else { stream.finishWriting() }
  }

  private func drop(from stream: any ByteStream) {
    do {
      let transfer = try withUnsafeTemporaryAllocation(byteCount: 16384, alignment: 1) {
        try stream.read(into: $0).checked(of: $0.count, at: "lingering.drop")
      }
      switch transfer {
      case .moved(let count):
        entries[ObjectIdentifier(stream)]?.isHeard = true
        if let most = entries[ObjectIdentifier(stream)]?.mostRead {
          guard count < most else { return finish(stream) }
          entries[ObjectIdentifier(stream)]?.mostRead = most - count
        }
        // It may have waited for nothing but its unit, which is out.
        if let entry = entries[ObjectIdentifier(stream)], !entry.onlyHoldsUnit, !entry.breaksOff {
          stream.readerWaits = .readable
        }
        askAgainIfHolding(stream)
      case .blocked(let wish): stream.readerWaits = wish
      case .ended: otherSideHasFinished(stream)
      }
    } catch {
      finish(stream)
    }
  }

  /// Our own last words may still be held.
  private func otherSideHasFinished(_ stream: any ByteStream) {
    guard stream.holdsUnit, entries[ObjectIdentifier(stream)]?.breaksOff == false else { return finish(stream) }
    entries[ObjectIdentifier(stream)]?.onlyHoldsUnit = true
    stream.readerWaits = []
    stream.writerWaits = .writable
  }

  private func finish(_ stream: any ByteStream) {
    let entry = entries.removeValue(forKey: ObjectIdentifier(stream))
    poller.timers.cancel(entry?.timer)
    if entry?.breaksOff == true { stream.abort() } else { stream.close() }
    guard entries.isEmpty, let done = whenEmpty else { return }
    whenEmpty = nil
    done()
  }
}
