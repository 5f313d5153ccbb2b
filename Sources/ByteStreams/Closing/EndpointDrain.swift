// Sends the last output to an endpoint that closes in order: what was sent before, then `device.on-close`, then the
// port's own queue. Ends after `device.drain` without progress. `OrderlyClose` runs it, with its events and its timer.

package final class EndpointDrain {
  package enum Step {
    /// `look()` is due after this.
    case wait(Duration)
    /// Everything is sent, or no more can be.
    case over
  }

  package let stream: any ByteStream
  package let poller: Poller
  private var words: ArraySlice<UInt8>
  private let settings: LineSettings?
  private let timeout: Duration
  /// What was sent before is a packet, which a silence ends. Nil without packets, and once `words` have begun.
  private var silenceEnds: ((_ unsent: Int) -> UInt64)?
  private var deadline: UInt64 = 0
  private var next: ((Step) -> Void)?
  /// Bytes that the port still had to send when it was last asked; nil before that.
  package private(set) var unsent: Int?
  /// A mistake of ours that happened while `words` were sent.
  package private(set) var fault: InternalFault?
  // A queue of some KiB empties in tenths of a second; asking costs a call on the port's own queue.
  private static let interval = Duration.milliseconds(20)

  /// Whether there is anything to send or wait for. A unit that the stream holds is sent by the code that closes it.
  package static func areNeeded(for stream: any ByteStream, _ words: [UInt8]) -> Bool {
    !words.isEmpty || stream.serialLine != nil
  }

  /// Sends `words` with the line at `settings`; with nil the line keeps its settings. They wait for the time
  /// on the lane's clock that `silenceEnds` returns for what the port still has to send, but no longer than for progress.
  package init(
    _ words: [UInt8], to stream: any ByteStream, at settings: LineSettings? = nil,
    after silenceEnds: ((_ unsent: Int) -> UInt64)? = nil, timeout: Duration, on poller: Poller
  ) {
    self.silenceEnds = words.isEmpty ? nil : silenceEnds
    self.stream = stream
    self.words = words[...]
    self.settings = settings
    self.timeout = timeout
    self.poller = poller
  }

  /// Calls `next` with each step, until `.over`.
  package func start(then next: @escaping (Step) -> Void) {
    self.next = next
    guard let line = stream.serialLine else {
      unsent = 0
      waitAnew()
      return write()
    }
    stream.writerWaits = []
    if let settings { return restore(settings, of: line) }
    waitAnew()
    askLine()  // the answer comes after earlier commands to the line, such as a purge
  }

  /// Restores the settings only after the bytes that clients sent at their own settings are out.
  private func restore(_ settings: LineSettings, of line: any SerialLine) {
    waitAnew(longer: type(of: line).longestWait)
    line.whenSent(on: poller) { [weak self] in
      guard let self, next != nil else { return }
      waitAnew()
      line.apply(settings) { [weak self] _ in self?.askLine() }
    }
  }

  /// Writes what the stream takes, then waits for the line.
  package func write() {
    guard next != nil, !awaitsSilence() else { return }
    silenceEnds = nil
    do {
      while !words.isEmpty {
        let transfer = try words.withUnsafeBytes { try stream.write($0) }
        switch try transfer.checked(of: words.count, at: "endpointDrain.write") {
        case .moved(let count):
          words = words.dropFirst(count)
          waitAnew()
        case .blocked(let wish): return stream.writerWaits = wish
        case .ended: return end()
        }
      }
    } catch {
      fault = error as? InternalFault
      return end()
    }
    guard !stream.hasPendingOutput else { return stream.writerWaits = .writable }
    stream.writerWaits = []
    askLine()
  }

  /// Whether the words have to wait. If so, `look` sends them.
  private func awaitsSilence() -> Bool {
    let now = poller.timers.now
    guard let silenceEnds, now < deadline else { return false }
    let (held, end) = (unsent ?? 0, silenceEnds(unsent ?? 0))
    guard now < end else { return false }
    wait(atMost: held > 0 ? Self.interval : .nanoseconds(Int64(clamping: end &- now)))
    return true
  }

  /// Asks what the port still has to send; then sends the words, or ends.
  private func askLine() {
    guard next != nil else { return }
    guard let line = stream.serialLine else { return words.isEmpty ? end() : write() }
    line.unsent { [weak self] answer in
      guard let self, next != nil else { return }
      let count = (try? answer.get()) ?? 0
      if count < unsent ?? .max { waitAnew() }
      unsent = count
      if !words.isEmpty { return write() }
      if count == 0 { end() } else { wait(atMost: Self.interval) }
    }
  }

  /// Call this when the time of `.wait` is over.
  package func look() {
    guard next != nil else { return }
    guard poller.timers.now < deadline else { return timeIsOver() }
    wait()  // the line may never answer
    askLine()
  }

  /// Nothing has moved for the timeout. Words that waited for a silence go out without it, if the port has sent the rest.
  private func timeIsOver() {
    if silenceEnds != nil, unsent == 0 { cutOff() }
    if poller.timers.now >= deadline { giveUp() }
  }

  /// What the stream takes at once goes out, without a silence before it.
  package func cutOff() {
    silenceEnds = nil
    write()
  }

  /// There was progress: the timeout starts again.
  private func waitAnew(longer: Duration = .zero) {
    deadline = poller.timers.now &+ (timeout + longer).nanoseconds
    wait()
  }

  private func wait(atMost most: Duration? = nil) {
    let now = poller.timers.now
    let rest = Duration.nanoseconds(Int64(clamping: deadline > now ? deadline &- now : 0))
    next?(.wait(min(most ?? rest, rest)))
  }

  private func giveUp() {
    // Closing would wait for unsent bytes, up to 30 s in the kernel, and the next opening would wait for that.
    if let unsent, unsent > 0 { stream.serialLine?.purge(.output) { _ in } }
    end()
  }

  /// Stops, because the caller uses the stream itself again. Later answers of the line are ignored.
  package func stop() { next = nil }

  private func end() {
    guard let next = next.take() else { return }
    next(.over)
  }
}
