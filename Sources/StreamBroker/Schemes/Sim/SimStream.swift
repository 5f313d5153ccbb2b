// A stream whose other side is a value in this process: no descriptor, so it is its own kernel. It obeys the waits as a
// descriptor does: level-triggered, told in the lane's next round and never from inside a call, silent while nobody waits.

import ByteStreams

/// What stands at the other side. Bounded: it keeps what fits, and takes no more than that.
protocol SimDevice {
  /// Whether `give` would give something now, or the end.
  var hasBytes: Bool { get }
  /// Whether `take` would take something now.
  var hasSpace: Bool { get }
  /// After its last byte it hangs up.
  var hasEnded: Bool { get }
  /// Whether it learns of the end of what it is told, and can still answer.
  var canHalfClose: Bool { get }
  /// How often it does something by itself; nil for never.
  var period: Duration? { get }

  /// Puts what it says next into `run`, and says how much that is.
  mutating func give(_ run: UnsafeMutableRawBufferPointer) -> Int
  /// Takes bytes from the front of `run`, and says how many.
  mutating func take(_ run: UnsafeRawBufferPointer) -> Int
  /// A period has passed.
  mutating func tick()
  /// It will be told no more.
  mutating func finish()
}

extension SimDevice {
  var hasEnded: Bool { false }
  var canHalfClose: Bool { false }
  var period: Duration? { nil }
  mutating func tick() {}
  mutating func finish() {}
}

public final class SimStream: ByteStream, PollHandler {
  public var delegate: (any ByteStreamDelegate)? {
    didSet { if isClosed && delegate != nil { delegate = nil } }
  }
  public var readerWaits: Readiness = [] { didSet { arrange() } }
  public var writerWaits: Readiness = [] { didSet { arrange() } }
  public var canHalfClose: Bool { device.canHalfClose }
  /// Bytes that the device has taken so far.
  public private(set) var taken: UInt64 = 0

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

  public func read(into run: UnsafeMutableRawBufferPointer) -> Transfer {
    guard !isClosed else { return .ended }
    let count = device.give(run)
    guard count > 0 else { return device.hasEnded ? .ended : .blocked(until: .readable) }
    arrange()  // there may be space now
    return .moved(count)
  }

  public func write(_ run: UnsafeRawBufferPointer) -> Transfer {
    guard !isClosed else { return .ended }
    let count = device.take(run)
    guard count > 0 else { return device.hasEnded ? .ended : .blocked(until: .writable) }
    taken &+= UInt64(count)
    arrange()  // there may be an answer now
    return .moved(count)
  }

  public func finishWriting() {
    device.finish()
    arrange()
  }

  public func close() {
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

  /// Sees to it that who waits for what is there is told in the next round.
  private func arrange() {
    guard !isClosed, !isInNextRound, !interest.isDisjoint(with: readiness) else { return }
    isInNextRound = true
    poller.nextRound(self)
  }

  public func ready(_ events: PollEvents) {
    isInNextRound = false
    // The writer first, as descriptors do it; each may change what the other finds.
    if !writerWaits.isDisjoint(with: readiness) { tell(.hasSpaceAvailable) }
    if !readerWaits.isDisjoint(with: readiness) { tell(.hasBytesAvailable) }
    arrange()
  }

  private func tell(_ event: ByteStreamEvent) {
    guard !isClosed else { return }
    delegate?.stream(self, handle: event)
  }

  // MARK: - Time

  private func tick(every period: Duration, due: UInt64) {
    device.tick()
    arrange()
    let now = poller.timers.now
    // From when it was due and not from when it came, so that the rate holds; what was missed stays missed.
    let next = max(due &+ period.nanoseconds, now)
    timer = poller.timers.after(.nanoseconds(Int64(clamping: next - now))) { [weak self] in
      self?.tick(every: period, due: next)
    }
  }
}
