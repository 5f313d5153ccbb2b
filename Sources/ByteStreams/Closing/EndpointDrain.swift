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
  /// When the words may go out, on the lane's clock: what was sent before is a packet, which a silence ends.
  private let earliest: UInt64
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

  /// Sends `words` with the line at `settings`, and not before `earliest`; with nil the line keeps its settings.
  package init(
    _ words: [UInt8], to stream: any ByteStream, at settings: LineSettings? = nil, notBefore earliest: UInt64 = 0,
    timeout: Duration, on poller: Poller
  ) {
    self.earliest = earliest
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
      waitAnew()
      return write()
    }
    stream.writerWaits = []
    if let settings { return restore(settings, of: line) }
    waitAnew()
    // The answer comes after earlier commands to the line, such as a purge.
    line.unsent { [weak self] _ in self?.write() }
  }

  /// Restores the settings only after the bytes that clients sent at their own settings are out.
  private func restore(_ settings: LineSettings, of line: any SerialLine) {
    waitAnew(longer: type(of: line).longestWait)
    line.whenSent(on: poller) { [weak self] in
      guard let self, next != nil else { return }
      waitAnew()
      line.apply(settings) { [weak self] _ in self?.write() }
    }
  }

  /// Writes what the stream takes, then waits for the line.
  package func write() {
    guard next != nil, !awaitsSilence() else { return }
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
    if unsent == nil { askLine() }
  }

  /// Whether the words have to wait. If so, `look` sends them.
  private func awaitsSilence() -> Bool {
    let now = poller.timers.now
    guard !words.isEmpty, now < earliest else { return false }
    deadline = earliest &+ timeout.nanoseconds
    next?(.wait(.nanoseconds(Int64(clamping: earliest &- now))))
    return true
  }

  private func askLine() {
    guard let line = stream.serialLine else { return end() }
    line.unsent { [weak self] answer in
      guard let self, next != nil else { return }
      guard case .success(let count) = answer else { return end() }
      if count < unsent ?? .max { waitAnew() }
      unsent = count
      if count == 0 { end() } else { wait(atMost: Self.interval) }
    }
  }

  /// Call this when the time of `.wait` is over.
  package func look() {
    guard next != nil else { return }
    guard poller.timers.now < deadline else { return giveUp() }
    wait()  // the line may never answer
    if !words.isEmpty, earliest > 0, stream.writerWaits.isEmpty { return write() }
    askLine()
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
