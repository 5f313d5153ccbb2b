// The last words to an endpoint that is closed in order: what it was told before goes out first, then `device.on-close`, then
// the port's own queue. Bounded by `device.drain` without progress. The link waits for it, for until then it opens no other.

import ByteStreams

final class Farewell: ByteStreamDelegate {
  private let stream: any ByteStream
  private let poller: Poller
  private var words: ArraySlice<UInt8>
  private let settings: LineSettings?
  private let patience: Duration
  private var deadline: Timers.Token?
  // What the port still had to send when it was last asked.
  private var unsent: Int?
  private var done: ((Int, InternalFault?) -> Void)?
  private var fault: InternalFault?
  // A queue of some KiB empties in tenths of a second; asking costs a call on the port's own queue.
  private static let interval = Duration.milliseconds(20)

  /// Whether there is anything to wait for; a unit that the stream holds is the business of whoever closes it.
  static func isNeeded(for stream: any ByteStream, _ words: [UInt8]) -> Bool {
    !words.isEmpty || stream.serialLine != nil
  }

  /// The words go out at `settings`, where the line has others; nil: at those it has. `done` is called once, maybe at once, with
  /// how many bytes the port did not get rid of, and the fault of ours that the words met. The stream is its caller's again.
  init(
    to stream: any ByteStream, saying words: [UInt8], at settings: LineSettings? = nil, patience: Duration,
    on poller: Poller, then done: @escaping (Int, InternalFault?) -> Void
  ) {
    self.stream = stream
    self.words = words[...]
    self.settings = settings
    self.patience = patience
    self.poller = poller
    self.done = done
  }

  func start() {
    stream.delegate = self
    stream.readerWaits = .readable  // what it says is of no use any more, but unread it may keep it from listening
    if stream.holdsBytes { poller.again(stream) }
    guard let line = stream.serialLine else {
      waitOnce()
      return speak()
    }
    stream.writerWaits = []
    if let settings { return restore(settings, of: line) }
    waitOnce()
    // What the line was asked to do before, such as to throw away what it was sent, comes first.
    line.unsent { [weak self] _ in self?.speak() }
  }

  /// Behind what clients have sent at theirs.
  private func restore(_ settings: LineSettings, of line: any SerialLine) {
    waitOnce(longer: type(of: line).longestWait)
    line.whenSent(on: poller) { [weak self] in
      guard let self, done != nil else { return }
      waitOnce()
      line.apply(settings) { [weak self] _ in self?.speak() }
    }
  }

  /// Time is up: what can go at once still goes.
  func cutOff() {
    speak()
    finish()
  }

  func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasBytesAvailable: drop()
    case .hasSpaceAvailable: speak()
    case .errorOccurred, .endEncountered: finish()
    case .openCompleted, .lastByteIsIn: break
    }
  }

  // MARK: - Steps

  private func speak() {
    guard done != nil else { return }
    do {
      while !words.isEmpty {
        let transfer = try words.withUnsafeBytes { try stream.write($0) }
        switch try transfer.checked(of: words.count, at: "farewell.speak") {
        case .moved(let count):
          words = words.dropFirst(count)
          waitOnce()
        case .blocked(let wish): return stream.writerWaits = wish
        case .ended: return finish()
        }
      }
    } catch {
      fault = error as? InternalFault
      return finish()
    }
    guard !stream.holdsUnit else { return stream.writerWaits = .writable }
    stream.writerWaits = []
    if unsent == nil { waitForLine() }
  }

  private func waitForLine() {
    guard done != nil else { return }
    guard let line = stream.serialLine else { return finish() }
    line.unsent { [weak self] answer in
      guard let self else { return }
      guard case .success(let count) = answer else { return finish() }
      if count < unsent ?? .max { waitOnce() }
      unsent = count
      guard count > 0 else { return finish() }
      poller.timers.after(Self.interval) { [weak self] in self?.waitForLine() }
    }
  }

  private func drop() {
    do {
      switch try withUnsafeTemporaryAllocation(byteCount: 16384, alignment: 1, { try stream.read(into: $0) }) {
      case .moved: if stream.holdsBytes { poller.again(stream) }
      case .blocked(let wish): stream.readerWaits = wish
      case .ended: finish()
      }
    } catch {
      finish()
    }
  }

  // MARK: - Patience

  /// Something has moved: the wait begins anew.
  private func waitOnce(longer: Duration = .zero) {
    poller.timers.cancel(deadline)
    deadline = poller.timers.after(patience + longer) { [weak self] in self?.lostPatience() }
  }

  private func lostPatience() {
    // Closing would wait for what is unsent, and the next opening behind it: the kernel's patience is 30 s.
    if let unsent, unsent > 0 { stream.serialLine?.purge(.output) { _ in } }
    finish()
  }

  private func finish() {
    guard let done else { return }
    self.done = nil
    poller.timers.cancel(deadline)
    stream.delegate = nil
    stream.readerWaits = []
    stream.writerWaits = []
    done(unsent ?? 0, fault)
  }
}
