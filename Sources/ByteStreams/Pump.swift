// Moves bytes one way between two streams, through one bounded ring that it borrows from the lane while it has work.
// A session owns one for its client's input. Knows nothing of clients, routes or TLS.

import Glibc

public final class Pump {
  /// How a turn left things.
  public enum Outcome: Equatable, Sendable {
    /// Everything that was read is written, and the source may send more.
    case idle
    /// Bytes are kept: the sink takes no more now, or may not be written to.
    case keeps
    /// The source has ended, and everything it said is written.
    case finished
  }

  /// A stream broke; which of the two decides whose fault it is.
  public struct Fault: Error {
    public enum Side: Sendable { case source, sink, ourselves }
    public let side: Side
    public let cause: any Error
  }

  public var source: any ByteStream { from }
  // Private, as `nextCapacity` is.
  private var from: any ByteStream
  /// Where the bytes go. Nil while there is none: what comes is kept up to `capacity`, then reading stops.
  public var sink: (any ByteStream)?
  /// The most it may keep, in bytes.
  public var capacity: Int { nextCapacity }
  // Private, since for a public variable each look would be checked at run time for exclusive access.
  private var nextCapacity: Int

  /// Bytes written so far.
  public private(set) var moved: UInt64 = 0
  /// Bytes read by `skim`.
  public private(set) var skimmed: UInt64 = 0
  /// Bytes that were kept, and forgotten by `discard`.
  public private(set) var discarded: UInt64 = 0
  /// Bytes read so far, whatever became of them.
  public var taken: UInt64 { moved &+ skimmed &+ discarded &+ UInt64(count) }
  public private(set) var sourceEnded = false
  /// The last turn has read all that the source had at hand.
  public private(set) var sourceIsDry = false
  /// The sink's last answer was that it takes no more now. `drain` finds out anew.
  public private(set) var sinkIsBlocked = false
  /// Bytes read and not yet written.
  public var count: Int { ring?.count ?? 0 }

  private let poller: Poller
  private var ring: RingBuffer?

  /// Reads per turn for a ring of so many bytes: some 256 KiB. With less, bulk costs up to a half more CPU; more makes the
  /// others on the lane wait. Few large reads are cheaper than many small ones (ARCHITECTURE.md, decisions).
  public static func budget(capacity: Int) -> Int { max(1, min(4, (256 << 10) / capacity)) }

  public init(from source: any ByteStream, to sink: (any ByteStream)?, capacity: Int, on poller: Poller) {
    from = source
    self.sink = sink
    nextCapacity = capacity
    self.poller = poller
  }

  /// Reads from `source` from now on, which goes on where the one before stopped; also in the middle of a read of that one.
  public func exchangeSource(for source: any ByteStream) { from = source }

  /// Another capacity holds for the next ring; one that is in use stays until it is empty.
  public func resize(to capacity: Int) { nextCapacity = capacity }

  // MARK: - Turns

  /// Reads and writes until both would block, the source has nothing more at hand, or the budget is spent; then says
  /// through the streams' `readerWaits` and `writerWaits` what comes next. For when the source has bytes.
  /// While `mayWrite` is false it only keeps what comes.
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
        if source.holdsBytes { poller.again(source) }
        break
      }
      reads -= 1
      let room = self.room
      switch try read() {
      case .moved(let count):
        if canWrite { canWrite = try write(limit: .max) }
        // A short read has emptied the source, unless bytes hide inside; looking once more would cost a call.
        if count > 0 && count < room && !source.holdsBytes {
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
    return settle()
  }

  /// Writes at most `limit` of the kept bytes, then reads on if that made room. For when the sink has space; whoever
  /// serves its writers takes `writerWaits` back when none is left.
  public func drain(limit: Int = .max) throws(Fault) -> Outcome {
    sinkIsBlocked = false
    guard sink != nil else { return settle() }
    let tookAll = count == 0 ? true : try write(limit: limit)
    // After making room it reads first and waits second: a hang-up is told once only.
    if !sourceEnded && source.readerWaits.isEmpty && wantsMore(tookAll) {
      return try turn(mayWrite: tookAll && limit == .max)  // more than `limit` would be others' turn
    }
    return settle()
  }

  /// Reads what the source has at hand and forgets it; what is kept from before stays. For a source whose bytes nobody wants
  /// and whose end matters. Costs a warm ring for the turn.
  public func skim() throws(Fault) {
    guard !sourceEnded else { return }
    let ring: RingBuffer
    do { ring = try poller.rings.borrow(capacity: nextCapacity) } catch { throw Fault(side: .ourselves, cause: error) }
    defer { poller.rings.giveBack(ring) }
    for _ in 0..<Self.budget(capacity: nextCapacity) {
      switch try read(into: ring) {
      case .moved(let count):
        ring.clear()
        skimmed &+= UInt64(count)
        guard count == 0 || count == ring.capacity || source.holdsBytes else {
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
    if source.holdsBytes { poller.again(source) }
  }

  /// No more will come: the source broke. What it said before is still written.
  public func endSource() {
    source.readerWaits = []
    sourceEnded = true
  }

  /// Forgets the kept bytes and says how many there were.
  public func discard() -> Int {
    let dropped = count
    discarded &+= UInt64(dropped)
    ring?.clear()
    sinkIsBlocked = false  // nobody waits for it any more, so the next byte has to find out anew
    _ = settle()
    return dropped
  }

  /// Behind a blocked sink only while the ring is under half full, or each freed 4 KiB would cost a read.
  private func wantsMore(_ canWrite: Bool) -> Bool {
    guard let ring, !ring.isEmpty else { return true }
    return canWrite || sink == nil ? ring.room >= source.largestUnit : ring.count <= ring.capacity / 2
  }

  private func settle() -> Outcome {
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

  /// Whether the sink took everything it was offered and may be offered more.
  private func write(limit: Int) throws(Fault) -> Bool {
    guard let ring, let sink else { return false }
    var left = limit
    do {
      while !ring.isEmpty && left > 0 {
        let transfer = try ring.drain(limit: left) {
          // Told from a fault of the ring: the sink may be others', too.
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
