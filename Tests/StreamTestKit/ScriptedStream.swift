// Plays a kernel from a list, so that a test says what every read and write of a stream meets. Records what was written
// and what is waited for. Tells nobody anything by itself: the test plays the poller too.

import ByteStreams
import Glibc

public final class ScriptedStream: ByteStream {
  /// What one call meets.
  public enum Step: Sendable {
    /// A read: so many bytes have come, of the running pattern; what does not fit in is there for the next read.
    /// A write: so many are taken, at most.
    case moved(Int)
    /// A read: exactly these bytes have come.
    case bytes([UInt8])
    case blocked(until: Readiness)
    case ended
    case failed(SystemError)
  }

  public var delegate: (any ByteStreamDelegate)?
  public var readerWaits: Readiness = [] { didSet { note(oldValue, readerWaits) } }
  public var writerWaits: Readiness = [] { didSet { note(oldValue, writerWaits) } }
  public var largestUnit = 1
  public var canHalfClose = true
  /// Set it to play a stream that has bytes which epoll is silent about.
  public var holdsBytes = false
  public var holdsUnit = false
  /// Its last words are held until the test says otherwise.
  public var saysFarewell = false
  public var hasClosingHandshake = false
  public var unacknowledged = 0
  public var unread: Int?
  public var serialLine: (any SerialLine)?
  public var metadata: StreamMetadata?

  /// What was written.
  public private(set) var written: [UInt8] = []
  public private(set) var readCalls = 0
  public private(set) var writeCalls = 0
  /// How often an interest changed; each would be an epoll_ctl.
  public private(set) var interestChanges = 0
  public private(set) var finishedWriting = false
  public private(set) var isClosed = false
  /// It was broken off.
  public private(set) var isAborted = false

  private var reads: [Step]
  private var writes: [Step]
  private let takesAll: Bool
  private var patternPosition = 0
  private let faults: Faults?

  /// Past its list, a read is blocked until readable and a write until writable; with `takesAll` a write takes everything.
  public init(reads: [Step] = [], writes: [Step] = [], takesAll: Bool = false, faults: Faults? = nil) {
    self.reads = reads
    self.writes = writes
    self.takesAll = takesAll
    self.faults = faults
  }

  /// The byte of `.moved` reads at a place of the stream. Long and odd, so that no shift goes unseen.
  public static func pattern(at position: Int) -> UInt8 { UInt8(truncatingIfNeeded: position % 251) }
  public static func pattern(_ range: Range<Int>) -> [UInt8] { range.map(pattern(at:)) }

  /// Adds to what reads will meet.
  public func willRead(_ steps: Step...) { reads += steps }
  /// Adds to what writes will meet.
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
    if saysFarewell && !finishedWriting { holdsUnit = true }
    finishedWriting = true
  }

  public func abort() {
    isAborted = true
    close()
  }

  public func close() {
    isClosed = true
    dismissDelegate()
  }

  private func note(_ old: Readiness, _ new: Readiness) { if old != new { interestChanges += 1 } }
}

/// Fails the nth fallible step of a scenario. Run it with n = 0, 1, 2, … until `wasReached` stays false.
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
