// A stream of length-prefixed units over another stream. It behaves as TLS and WebSocket do, so it proves the rules for
// units and hidden bytes (ARCHITECTURE.md, the byte path) without either. For tests only.

import ByteStreams
import Glibc

/// On the wire: two bytes of length, big end first, then so many bytes, at most 16 KiB. A length of 0 is an
/// acknowledgement: with `acknowledges` every unit is answered by one before its payload is handed out, so a read may
/// have to write, as in TLS.
public final class FramingStream: ByteStream, ByteStreamDelegate {
  public static let largestPayload = 16 * 1024

  public var delegate: (any ByteStreamDelegate)?
  public var readerWaits: Readiness = [] { didSet { waitsChanged() } }
  public var writerWaits: Readiness = [] { didSet { waitsChanged() } }
  /// Units written whole to what is below.
  public private(set) var unitsSent = 0
  public private(set) var acknowledgementsSeen = 0
  /// How often a read answered `.moved(0)` and how often it wanted to write.
  public private(set) var emptyReads = 0
  public private(set) var crossedReads = 0

  private let below: any ByteStream
  private let acknowledges: Bool
  // Taken from the writer and not yet by what is below: one unit at most, and acknowledgements behind it.
  private var held: [UInt8] = []
  // Read from below and not yet handed out.
  private var hidden: [UInt8] = []
  private let readAhead: Int
  private var unitLeft = 0  // payload of the current unit still to come

  /// `readAhead` bytes are taken from below at a time, so that some hide here. Becomes the delegate of `below`.
  public init(over below: any ByteStream, readAhead: Int = 4096, acknowledges: Bool = false) {
    self.below = below
    self.readAhead = readAhead
    self.acknowledges = acknowledges
    below.delegate = self
  }

  public var holdsBytes: Bool { !hidden.isEmpty || below.holdsBytes }
  public var holdsUnit: Bool { !held.isEmpty || below.holdsUnit }
  // Who has to acknowledge has never written his last.
  public var canHalfClose: Bool { below.canHalfClose && !acknowledges }

  // MARK: - Bytes

  public func read(into run: UnsafeMutableRawBufferPointer) throws -> Transfer {
    if unitLeft == 0 {
      guard hidden.count >= 2 else { return try readAheadFromBelow() }
      let length = Int(hidden[0]) << 8 | Int(hidden[1])
      guard length <= Self.largestPayload else { throw SystemError("read", EPROTO) }
      if length > 0 && acknowledges {
        // The answer goes first, as a TLS key update would.
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

  /// Takes more bytes in and hands none out.
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
    if case .blocked(let wish) = try flush() { return .blocked(until: wish) }
    let count = min(run.count, Self.largestPayload)
    held = [UInt8(count >> 8), UInt8(count & 255)] + run[..<count]
    unitsSent += 1
    _ = try flush()  // taken either way: what is below may be full, and then the unit waits here
    return .moved(count)
  }

  /// `.moved` when nothing is held any more.
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

  public func finishWriting() { below.finishWriting() }

  // MARK: - Waiting

  /// A descriptor's interest is the pump's and the stream's own together.
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
    case .hasBytesAvailable: tell(.readable)
    case .hasSpaceAvailable:
      do {
        guard case .moved = try flush() else { return }
        tell(.writable)
      } catch {
        let cause = error as? SystemError ?? SystemError("write", EIO)
        delegate?.stream(self, handle: .errorOccurred(cause))
      }
    default: delegate?.stream(self, handle: event)
    }
  }

  private func tell(_ readiness: Readiness) {
    let (reader, writer) = (readerWaits, writerWaits)
    if !writer.isDisjoint(with: readiness) { delegate?.stream(self, handle: .hasSpaceAvailable) }
    if !reader.isDisjoint(with: readiness) { delegate?.stream(self, handle: .hasBytesAvailable) }
  }

  // MARK: - The end

  public func close() {
    dismissDelegate()
    below.close()
  }

  public func abort() {
    dismissDelegate()
    below.abort()
  }
}
