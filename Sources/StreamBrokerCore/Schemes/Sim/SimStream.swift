// A stream whose other side is a value in this process. It has no descriptor, so it reports readiness itself, by the
// rules of a descriptor: level-triggered, in the lane's next round, never from inside a call, and only to a side that
// waits.

import ByteStreams

/// The device at the other side. Bounded: it takes no more than fits.
protocol SimDevice {
  /// Whether `give` would return bytes now, or the end.
  var hasBytes: Bool { get }
  /// Whether `take` would take bytes now.
  var hasSpace: Bool { get }
  /// Whether it has hung up, after its last byte.
  var hasEnded: Bool { get }
  /// Whether it notices the end of its input and can still answer.
  var canHalfClose: Bool { get }
  /// How often it acts by itself; nil for never.
  var period: Duration? { get }

  /// Puts its next output into `run`, and returns the number of bytes.
  mutating func give(_ run: UnsafeMutableRawBufferPointer) -> Int
  /// Takes bytes from the front of `run`, and returns how many.
  mutating func take(_ run: UnsafeRawBufferPointer) -> Int
  /// Called after each period.
  mutating func tick()
  /// Called at the end of its input.
  mutating func finish()
}

extension SimDevice {
  var hasEnded: Bool { false }
  var canHalfClose: Bool { false }
  var period: Duration? { nil }
  mutating func tick() {}
  mutating func finish() {}
}

package final class SimStream: TransportStream, PollHandler {
  package var delegate: (any ByteStreamDelegate)? {
    didSet { if isClosed && delegate != nil { delegate = nil } }
  }
  package var readerWaits: Readiness = [] { didSet { arrange() } }
  package var writerWaits: Readiness = [] { didSet { arrange() } }
  package var closeBehavior: CloseBehavior { CloseBehavior(canHalfClose: device.canHalfClose) }
  /// Bytes that the device has taken so far.
  package private(set) var taken: UInt64 = 0

  private var device: any SimDevice
  private let poller: Poller
  private var isClosed = false
  private var isInNextRound = false
  private var timer: Timers.Token?

  init(_ device: any SimDevice, on poller: Poller) {
    self.device = device
    self.poller = poller
    if let period = device.period { tick(every: period, due: poller.timers.now) }
  }

  package func read(into run: UnsafeMutableRawBufferPointer) -> Transfer {
    guard !isClosed else { return .ended }
    let count = device.give(run)
    guard count > 0 else { return device.hasEnded ? .ended : .blocked(until: .readable) }
    arrange()  // there may be space now
    return .moved(count)
  }

  package func write(_ run: UnsafeRawBufferPointer) -> Transfer {
    guard !isClosed else { return .ended }
    let count = device.take(run)
    guard count > 0 else { return device.hasEnded ? .ended : .blocked(until: .writable) }
    taken &+= UInt64(count)
    arrange()  // there may be an answer now
    return .moved(count)
  }

  package func finishWriting() {
    device.finish()
    arrange()
  }

  package func close() {
    isClosed = true
    dismissDelegate()
    poller.timers.cancel(timer)
  }

  // MARK: - Readiness

  private var readiness: Readiness {
    var readiness: Readiness = []
    if device.hasBytes || device.hasEnded { readiness.insert(.readable) }
    if device.hasSpace || device.hasEnded { readiness.insert(.writable) }
    return readiness
  }

  /// A side that waits for something available is called in the next round.
  private func arrange() {
    guard !isClosed, !isInNextRound, !interest.isDisjoint(with: readiness) else { return }
    isInNextRound = true
    poller.nextRound(self)
  }

  package func ready(_ events: PollEvents) {
    isInNextRound = false
    // The writer first, as with descriptors; each call may change what the other side finds.
    if !writerWaits.isDisjoint(with: readiness) { report(.hasSpaceAvailable) }
    if !readerWaits.isDisjoint(with: readiness) { report(.hasBytesAvailable) }
    arrange()
  }

  private func report(_ event: ByteStreamEvent) {
    guard !isClosed else { return }
    delegate?.stream(self, handle: event)
  }

  // MARK: - Time

  private func tick(every period: Duration, due: UInt64) {
    device.tick()
    arrange()
    let now = poller.timers.now
    // Counted from the due time, not from the actual time, so that the rate holds. Missed ticks are not made up for.
    let next = max(due &+ period.nanoseconds, now)
    timer = poller.timers.after(.nanoseconds(Int64(clamping: next - now))) { [weak self] in
      self?.tick(every: period, due: next)
    }
  }
}
