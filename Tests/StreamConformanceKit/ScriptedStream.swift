// Plays a kernel from a list, so that a test chooses the result of every read and write. Records what was written and
// what is waited for. Reports nothing by itself: the test plays the poller too.

import ByteStreams
import Glibc

public final class ScriptedStream: TransportStream {
  /// The result of one call.
  public enum Step: Sendable {
    /// A read: this many bytes of the running pattern are there; those that do not fit stay for the next read. A write:
    /// at most this many are taken.
    case moved(Int)
    /// A read: exactly these bytes are there.
    case bytes([UInt8])
    case blocked(until: Readiness)
    case ended
    case failed(SystemError)
  }

  public var delegate: (any ByteStreamDelegate)?
  public var readerWaits: Readiness = [] { didSet { note(oldValue, readerWaits) } }
  public var writerWaits: Readiness = [] { didSet { note(oldValue, writerWaits) } }
  public var largestUnit = 1
  /// Set it to play a stream with buffered bytes that epoll does not report.
  public var hasBufferedInput = false
  public var hasPendingOutput = false
  /// With `sendsCloseNotice`, its notice is held until the test releases it.
  public var closeBehavior = CloseBehavior(canHalfClose: true)
  public var undelivered: UndeliveredOutput {
    get {
      undeliveredCalls += 1
      return left
    }
    set { left = newValue }
  }
  private var left = UndeliveredOutput.none
  /// How often `undelivered` was asked for.
  public private(set) var undeliveredCalls = 0
  public var serialLine: (any SerialLine)?
  public var metadata: StreamMetadata?

  /// The bytes written.
  public private(set) var written: [UInt8] = []
  public private(set) var readCalls = 0
  public private(set) var writeCalls = 0
  /// How often an interest changed; each change would be an epoll_ctl.
  public private(set) var interestChanges = 0
  public private(set) var finishedWriting = false
  public private(set) var madeRoomForEnd = false
  /// The arguments of `limitUnsent(to:)`.
  public private(set) var unsentLimits: [Int] = []
  public private(set) var isPrepared = false
  public private(set) var isClosed = false
  public var onClose: () -> Void = {}
  /// Whether `abort()` was called.
  public private(set) var isAborted = false

  private var reads: [Step]
  private var writes: [Step]
  private let takesAll: Bool
  private var patternPosition = 0
  private let faults: Faults?

  /// After the list's end, a read is blocked until readable and a write until writable; with `takesAll` a write takes
  /// everything.
  public init(reads: [Step] = [], writes: [Step] = [], takesAll: Bool = false, faults: Faults? = nil) {
    self.reads = reads
    self.writes = writes
    self.takesAll = takesAll
    self.faults = faults
  }

  /// The byte that `.moved` reads give at a position of the stream. The period is long and odd, so that every shift is
  /// noticed.
  public static func pattern(at position: Int) -> UInt8 { UInt8(truncatingIfNeeded: position % 251) }
  public static func pattern(_ range: Range<Int>) -> [UInt8] { range.map(pattern(at:)) }

  /// Adds results for reads.
  public func willRead(_ steps: Step...) { reads += steps }
  /// Adds results for writes.
  public func willWrite(_ steps: Step...) { writes += steps }

  public func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    precondition(!run.isEmpty)
    readCalls += 1
    try faults?.step("read")
    guard !reads.isEmpty else { return .blocked(until: .readable) }
    switch reads.removeFirst() {
    case .moved(let count):
      let taken = min(count, run.count)
      for place in 0..<taken { run[place] = Self.pattern(at: patternPosition + place) }
      patternPosition += taken
      if count > taken { reads.insert(.moved(count - taken), at: 0) }
      return .moved(taken)
    case .bytes(let bytes):
      let taken = min(bytes.count, run.count)
      run.copyBytes(from: bytes[..<taken])
      if bytes.count > taken { reads.insert(.bytes(Array(bytes[taken...])), at: 0) }
      return .moved(taken)
    case .blocked(let wish): return .blocked(until: wish)
    case .ended:
      reads.insert(.ended, at: 0)
      return .ended
    case .failed(let error): throw error
    }
  }

  public func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    precondition(!run.isEmpty)
    writeCalls += 1
    try faults?.step("write")
    guard !writes.isEmpty else {
      guard takesAll else { return .blocked(until: .writable) }
      written += run
      return .moved(run.count)
    }
    switch writes.removeFirst() {
    case .moved(let count):
      let taken = min(count, run.count)
      written += run[..<taken]
      return .moved(taken)
    case .bytes(let bytes): preconditionFailure("a write takes a number of bytes, not \(bytes)")
    case .blocked(let wish): return .blocked(until: wish)
    case .ended:
      writes.insert(.ended, at: 0)
      return .ended
    case .failed(let error): throw error
    }
  }

  /// One call, as with a socket.
  public func write(together runs: UnsafeMutableBufferPointer<iovec>) throws -> Transfer {
    var joined: [UInt8] = []
    for run in runs { joined += UnsafeRawBufferPointer(start: run.iov_base, count: run.iov_len) }
    return try joined.withUnsafeBytes { try write($0) }
  }

  public func finishWriting() {
    if closeBehavior.sendsCloseNotice && !finishedWriting { hasPendingOutput = true }
    finishedWriting = true
  }

  public func makeRoomForEnd() { madeRoomForEnd = true }

  public func limitUnsent(to bytes: Int) { unsentLimits.append(bytes) }

  public func prepareToClose() { isPrepared = true }

  public func abort() {
    isAborted = true
    close()
  }

  public func close() {
    isClosed = true
    onClose()
    dismissDelegate()
  }

  private func note(_ old: Readiness, _ new: Readiness) { if old != new { interestChanges += 1 } }
}

/// Makes the nth fallible step of a scenario fail. Run it with n = 0, 1, 2, … until `wasReached` stays false.
public final class Faults {
  private var left: Int
  public private(set) var wasReached = false

  public init(failing step: Int) { left = step }

  public func step(_ call: String) throws {
    defer { left -= 1 }
    guard left == 0 else { return }
    wasReached = true
    throw SystemError(call, 5)  // EIO
  }
}
