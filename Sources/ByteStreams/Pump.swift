// Moves bytes one way between two streams, through one bounded ring that it borrows from the lane while it has work. A
// session owns one for its client's input, of `clients.buffer` bytes (64 KiB on a shared link). While the sink is
// blocked it stops reading past half of that, without a sink when it is full: then the kernel's buffer fills, and the
// client's TCP window closes. Knows nothing of clients, routes or TLS.

import Glibc

/// Moves bytes one way between two streams, through a ring of bounded size. Lives on the lane of both streams. Its
/// owner is the delegate of both, and calls `turn()` at each event. When the sink takes no more, the pump stops to
/// read, so the back-pressure reaches the source.
public final class Pump {
  /// The result of a turn.
  public enum Outcome: Equatable, Sendable {
    /// Everything that was read is written, and the source may send more.
    case idle
    /// Bytes are kept: the sink takes no more now, or must not be written to.
    case keeps
    /// The source has ended, and all its bytes are written.
    case finished
  }

  /// A stream broke. `side` shows which stream, and so which party is at fault.
  public struct Fault: Error {
    /// A stream, or the pump.
    public enum Side: Sendable {
      /// The read failed.
      case source
      /// The write failed.
      case sink
      /// An error of this library, or no memory.
      case ourselves
    }
    /// Which stream broke.
    public let side: Side
    /// The error that the stream threw.
    public let cause: any Error
  }

  /// Where the bytes come from.
  public var source: any ByteStream { from }
  // Private for the reason given at `nextCapacity`.
  private var from: any ByteStream
  /// Where the bytes go. While it is nil, input is kept up to `capacity`, then reading stops.
  public var sink: (any ByteStream)?
  /// The most it may keep, in bytes.
  public var capacity: Int { nextCapacity }
  // Private, since each read of a public variable would be checked at run time for exclusive access.
  private var nextCapacity: Int

  /// Bytes written so far.
  public private(set) var moved: UInt64 = 0
  /// Bytes read by `readAndDiscard`.
  public private(set) var readAndDiscarded: UInt64 = 0
  /// Kept bytes that `discard` has dropped.
  public private(set) var discarded: UInt64 = 0
  /// Bytes read so far: written, skimmed, discarded or still kept.
  public var taken: UInt64 { moved &+ readAndDiscarded &+ discarded &+ UInt64(count) }
  /// The source has no more input.
  public private(set) var sourceEnded = false
  /// The last turn has read all bytes that the source had.
  public private(set) var sourceIsDry = false
  /// The sink's last write returned `.blocked`. `drain` tries it again.
  public private(set) var sinkIsBlocked = false
  /// Bytes read and not yet written.
  public var count: Int { ring?.count ?? 0 }

  private let poller: Poller
  private var ring: RingBuffer?

  /// Reads per turn for a ring of `capacity` bytes: about 256 KiB in all. With less, bulk data costs up to half as much
  /// CPU again; with more, other streams on the lane wait. Few large reads are cheaper than many small ones
  /// (decision E12).
  public static func budget(capacity: Int) -> Int { max(1, min(4, (256 << 10) / capacity)) }

  /// `capacity` is the most bytes that it keeps, at least 1. Without a sink it reads until that is reached. The pump
  /// keeps both streams; it does not close them, and sets no delegate.
  public init(from source: any ByteStream, to sink: (any ByteStream)?, capacity: Int, on poller: Poller) {
    from = source
    self.sink = sink
    nextCapacity = capacity
    self.poller = poller
  }

  /// Reads from `source` from now on, which continues where the previous source stopped. Can be called during a read of
  /// the previous one.
  public func exchangeSource(for source: any ByteStream) { from = source }

  /// Sets the capacity of the next ring; a ring in use stays until it is empty.
  public func resize(to capacity: Int) { nextCapacity = capacity }

  // MARK: - Turns

  /// Reads and writes until both would block, the source has no more bytes, or the budget is spent. Then sets the
  /// streams' `readerWaits` and `writerWaits` for what comes next. Call it when the source has bytes. While `mayWrite`
  /// is false it only reads and keeps bytes.
  public func turn(mayWrite: Bool = true) throws(Fault) -> Outcome {
    // A turn that the source woke does not try a blocked sink again.
    var canWrite = mayWrite && sink != nil && !sinkIsBlocked
    if canWrite && count > 0 { canWrite = try write(limit: .max) }
    var reads = Self.budget(capacity: nextCapacity)
    sourceIsDry = false
    reading: while !sourceEnded {
      guard wantsMore(canWrite) else {
        source.readerWaits = []
        break
      }
      guard reads > 0 else {
        source.readerWaits = .readable
        if source.hasBufferedInput { poller.again(source) }
        break
      }
      reads -= 1
      let room = self.room
      switch try read() {
      case .moved(let count):
        if canWrite { canWrite = try write(limit: .max) }
        // A short read has emptied the source, unless the stream holds bytes; another read would cost a call.
        if count > 0 && count < room && !source.hasBufferedInput {
          source.readerWaits = wantsMore(canWrite) ? .readable : []
          sourceIsDry = true
          break reading
        }
      case .blocked(let wish):
        source.readerWaits = wish
        sourceIsDry = true
        break reading
      case .ended:
        source.readerWaits = []
        sourceEnded = true
      }
    }
    return outcome()
  }

  /// Writes at most `limit` of the kept bytes, then reads on if that made room. Call it when the sink has space. The
  /// code that serves the sink's writers clears `writerWaits` when none is left.
  public func drain(limit: Int = .max) throws(Fault) -> Outcome {
    sinkIsBlocked = false
    guard sink != nil else { return outcome() }
    let tookAll = count == 0 ? true : try write(limit: limit)
    // After making room, read first and wait second: a hang-up is reported only once.
    if !sourceEnded && source.readerWaits.isEmpty && wantsMore(tookAll) {
      return try turn(mayWrite: tookAll && limit == .max)  // bytes beyond `limit` wait for the other writers' turns
    }
    return outcome()
  }

  /// Reads and discards what the source has; bytes kept before stay. For a source whose bytes nobody wants, but whose
  /// end matters. Needs a warm ring for the turn.
  public func readAndDiscard() throws(Fault) {
    guard !sourceEnded else { return }
    let ring: RingBuffer
    do { ring = try poller.rings.borrow(capacity: nextCapacity) } catch { throw Fault(side: .ourselves, cause: error) }
    defer { poller.rings.giveBack(ring) }
    for _ in 0..<Self.budget(capacity: nextCapacity) {
      switch try read(into: ring) {
      case .moved(let count):
        ring.clear()
        readAndDiscarded &+= UInt64(count)
        guard count == 0 || count == ring.capacity || source.hasBufferedInput else {
          source.readerWaits = .readable
          return
        }
      case .blocked(let wish):
        source.readerWaits = wish
        return
      case .ended:
        source.readerWaits = []
        sourceEnded = true
        return
      }
    }
    source.readerWaits = .readable
    if source.hasBufferedInput { poller.again(source) }
  }

  /// The source broke, so no more will come. Bytes read before are still written.
  public func endSource() {
    source.readerWaits = []
    sourceEnded = true
  }

  /// Drops the kept bytes and returns their number.
  public func discard() -> Int {
    let dropped = count
    discarded &+= UInt64(dropped)
    ring?.clear()
    sinkIsBlocked = false  // nothing waits for the sink any more, so the next byte must try it
    _ = outcome()
    return dropped
  }

  /// With a blocked sink, reads only while the ring is at most half full; otherwise each freed 4 KiB would cost a read.
  private func wantsMore(_ canWrite: Bool) -> Bool {
    guard let ring, !ring.isEmpty else { return true }
    return canWrite || sink == nil ? ring.room >= source.largestUnit : ring.count <= ring.capacity / 2
  }

  private func outcome() -> Outcome {
    guard let ring else { return sourceEnded ? .finished : .idle }
    guard ring.isEmpty else { return .keeps }
    poller.rings.giveBack(ring)
    self.ring = nil
    return sourceEnded ? .finished : .idle
  }

  // MARK: - One step

  private var room: Int { ring?.room ?? nextCapacity }

  private func read() throws(Fault) -> Transfer {
    let ring: RingBuffer
    do { ring = try self.ring ?? poller.rings.borrow(capacity: nextCapacity) } catch {
      throw Fault(side: .ourselves, cause: error)
    }
    self.ring = ring
    return try read(into: ring)
  }

  @inline(__always)
  private func read(into ring: RingBuffer) throws(Fault) -> Transfer {
    let source = source
    do { return try ring.fill { try source.read(into: $0) } } catch {
      throw Fault(side: error is InternalFault ? .ourselves : .source, cause: error)
    }
  }

  /// Returns whether the sink took all kept bytes, so that it may be offered more.
  private func write(limit: Int) throws(Fault) -> Bool {
    guard let ring, let sink else { return false }
    var left = limit
    do {
      while !ring.isEmpty && left > 0 {
        let transfer = try ring.drain(limit: left) {
          // A fault of the sink is reported apart from a fault of the ring: other sessions may share the sink, but the
          // ring is this pump's alone.
          do { return try sink.write($0) } catch { throw Fault(side: .sink, cause: error) }
        }
        switch transfer {
        case .moved(let count):
          moved &+= UInt64(count)
          left -= count
        case .blocked(let wish):
          sink.writerWaits = wish
          sinkIsBlocked = true
          return false
        case .ended:
          throw Fault(side: .sink, cause: SystemError("write", EPIPE))
        }
      }
      return ring.isEmpty
    } catch {
      throw error as? Fault ?? Fault(side: .ourselves, cause: error)
    }
  }
}
