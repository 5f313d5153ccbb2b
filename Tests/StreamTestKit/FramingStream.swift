// A stream of length-prefixed units over another stream. It behaves as TLS and WebSocket do, so it tests the rules for
// units and hidden bytes (ARCHITECTURE.md, the byte path) without either. For tests only.

import ByteStreams
import Glibc

/// On the wire: two length bytes, big-endian, then that many bytes, at most 16 KiB. A length of 0 is an
/// acknowledgement: with `acknowledges` each unit is acknowledged before its payload is returned, so a read may have to
/// write, as in TLS.
public final class FramingStream: LayeredStream {
  public static let largestPayload = 16 * 1024

  public var delegate: (any ByteStreamDelegate)? { didSet { if isClosed && delegate != nil { delegate = nil } } }
  private var isClosed = false
  public var readerWaits: Readiness = [] { didSet { waitsChanged() } }
  public var writerWaits: Readiness = [] { didSet { waitsChanged() } }
  /// Units completely written to `below`.
  public private(set) var unitsSent = 0
  public private(set) var acknowledgementsSeen = 0
  /// How many reads returned `.moved(0)`, and how many had to write first.
  public private(set) var emptyReads = 0
  public private(set) var crossedReads = 0

  public let below: any ByteStream
  private let acknowledges: Bool
  // Taken from the writer but not yet by `below`: at most one unit, and acknowledgements after it.
  private var held: [UInt8] = []
  // Read from below and not yet returned to the reader.
  private var hidden: [UInt8] = []
  private let readAhead: Int
  private var unitLeft = 0  // bytes of the current unit's payload still to come

  /// Reads `readAhead` bytes at a time from `below`, so that some are hidden here. Becomes the delegate of `below`.
  public init(over below: any ByteStream, readAhead: Int = 4096, acknowledges: Bool = false) {
    self.below = below
    self.readAhead = readAhead
    self.acknowledges = acknowledges
    below.delegate = self
  }

  public var hasBufferedInput: Bool { !hidden.isEmpty || below.hasBufferedInput }
  public var hasPendingOutput: Bool { !held.isEmpty || below.hasPendingOutput }
  // With acknowledgements it must be able to write until the end, so it cannot half-close.
  public var closeBehavior: CloseBehavior {
    CloseBehavior(canHalfClose: below.closeBehavior.canHalfClose && !acknowledges)
  }

  // MARK: - Bytes

  public func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    if isClosed { return .ended }
    if unitLeft == 0 {
      guard hidden.count >= 2 else { return try readAheadFromBelow() }
      let length = Int(hidden[0]) << 8 | Int(hidden[1])
      guard length <= Self.largestPayload else { throw SystemError("read", EPROTO) }
      if length > 0 && acknowledges {
        // The acknowledgement goes first, as a TLS key update does.
        if case .blocked(let wish) = try flush() {
          crossedReads += 1
          return .blocked(until: wish)
        }
        held += [0, 0]
        _ = try flush()
      }
      hidden.removeFirst(2)
      unitLeft = length
      if length == 0 { acknowledgementsSeen += 1 }
      emptyReads += 1
      return .moved(0)
    }
    guard !hidden.isEmpty else { return try readAheadFromBelow() }
    let count = min(unitLeft, hidden.count, run.count)
    run.copyBytes(from: hidden[..<count])
    hidden.removeFirst(count)
    unitLeft -= count
    return .moved(count)
  }

  /// Reads more bytes from `below` and returns none of them.
  private func readAheadFromBelow() throws -> Transfer {
    var bytes = [UInt8](repeating: 0, count: readAhead)
    switch try bytes.withUnsafeMutableBytes({ try below.read(into: $0) }) {
    case .moved(let count):
      hidden += bytes[..<count]
      emptyReads += 1
      return .moved(0)
    case .blocked(let wish):
      return .blocked(until: wish)
    case .ended:
      guard hidden.isEmpty && unitLeft == 0 else { throw SystemError("read", EPROTO) }
      return .ended
    }
  }

  public func write(_ run: UnsafeRawBufferPointer) throws -> Transfer {
    if isClosed { return .ended }
    if case .blocked(let wish) = try flush() { return .blocked(until: wish) }
    let count = min(run.count, Self.largestPayload)
    held = [UInt8(count >> 8), UInt8(count & 255)] + run[..<count]
    unitsSent += 1
    _ = try flush()  // the bytes are taken in any case: if `below` is full, the unit is held here
    return .moved(count)
  }

  /// `.moved` if nothing is held any more.
  private func flush() throws -> Transfer {
    defer { waitsChanged() }
    while !held.isEmpty {
      switch try held.withUnsafeBytes({ try below.write($0) }) {
      case .moved(let count): held.removeFirst(count)
      case .blocked(let wish): return .blocked(until: wish)
      case .ended: throw SystemError("write", EPIPE)
      }
    }
    return .moved(0)
  }

  // MARK: - Waiting

  /// The interest below is the reader's and writer's plus the stream's own.
  private func waitsChanged() {
    let own: Readiness = held.isEmpty ? [] : .writable
    let all = interest.union(own)
    let reads = all.intersection(.readable)
    let writes = all.intersection(.writable)
    if below.readerWaits != reads { below.readerWaits = reads }
    if below.writerWaits != writes { below.writerWaits = writes }
  }

  public func stream(_ stream: any ByteStream, handle event: ByteStreamEvent) {
    switch event {
    case .hasBytesAvailable: report(.readable)
    case .hasSpaceAvailable:
      do {
        guard case .moved = try flush() else { return }
        report(.writable)
      } catch {
        let cause = error as? SystemError ?? SystemError("write", EIO)
        delegate?.stream(self, handle: .errorOccurred(cause))
      }
    default: delegate?.stream(self, handle: event)
    }
  }

  private func report(_ readiness: Readiness) {
    let (reader, writer) = (readerWaits, writerWaits)
    if !writer.isDisjoint(with: readiness) { delegate?.stream(self, handle: .hasSpaceAvailable) }
    if !reader.isDisjoint(with: readiness) { delegate?.stream(self, handle: .hasBytesAvailable) }
  }

  // MARK: - Ending

  public func close() {
    letGo()
    below.close()
  }

  public func abort() {
    letGo()
    below.abort()
  }

  private func letGo() {
    guard !isClosed else { return }
    isClosed = true
    dismissDelegate()
  }
}
