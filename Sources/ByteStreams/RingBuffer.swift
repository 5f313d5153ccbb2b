// A bounded ring of bytes between one writer and any number of readers, each with its own position. Pumps and hubs
// borrow it from the lane's RingPool. No allocation after init; not for two threads. A position outside the kept bytes,
// or a stream that moved more than it was offered, throws an InternalFault, which ends only its caller.

import CLinux
import Glibc

/// ```
///        oldest          head
///          ▼               ▼
///   ┄┄┄┄┄┄┄████████████████┄┄┄┄┄┄┄      positions only grow; count = head − oldest ≤ capacity
/// ```
/// The memory is mapped twice in a row, so kept bytes and free room are each one contiguous run, wherever they are. No
/// record or datagram is split, and one system call is enough where a plain ring needs two.
public final class RingBuffer {
  /// The most it may hold, in bytes.
  public let capacity: Int
  /// The position of the next byte to be filled in.
  public var head: UInt64 { end }
  /// The position of the oldest kept byte; `head` when empty.
  public var oldest: UInt64 { start }
  /// Bytes that it holds.
  public var count: Int { Int(truncatingIfNeeded: end &- start) }
  /// Bytes that it has room for.
  public var room: Int { capacity &- count }
  /// It holds no byte.
  public var isEmpty: Bool { start == end }

  private let memory: UnsafeMutableRawPointer
  private let mappedLength: UInt64  // whole pages, ≥ capacity
  private var start: UInt64 = 0
  private var end: UInt64 = 0
  // Position of the memory's first byte. It moves to `head` when the ring runs empty, so that a quiet session uses the
  // same page again and again. base ≤ start.
  private var base: UInt64 = 0

  /// `capacity` is at least 1 byte; the memory is rounded up to whole pages. Throws mmap(2)'s error when the kernel has
  /// no memory.
  public init(capacity: Int) throws(SystemError) {
    precondition(capacity > 0)
    let page = Int(sysconf(Int32(_SC_PAGESIZE)))
    let length = (capacity + page - 1) / page * page
    guard let memory = linux_map_mirrored(length) else { throw SystemError("mmap") }
    self.capacity = capacity
    self.memory = memory
    mappedLength = UInt64(length)
  }

  deinit { linux_unmap_mirrored(memory, Int(mappedLength)) }

  /// Empties the ring and continues its positions at `position`, for a borrower that counts across rings.
  public func restart(at position: UInt64) {
    start = position
    end = position
    base = position
  }

  /// Hands `body` the whole free room, which must not be empty, as one run; `body` must not keep the pointer. The bytes
  /// that it reports as moved are kept. Returns what `body` returned.
  @inline(__always)
  public func fill(_ body: (UnsafeMutableRawBufferPointer) throws -> Transfer) throws -> Transfer {
    let run = UnsafeMutableRawBufferPointer(start: memory + offset(of: end), count: room)
    let transfer = try body(run)
    if case .moved(let count) = transfer {
      guard count >= 0 && count <= run.count else {
        throw InternalFault.miscounted(count, of: run.count, at: "ring.fill")
      }
      end &+= UInt64(count)
    }
    return transfer
  }

  /// Hands `body` the kept bytes from `position` on as one run, at most `limit`; it must not keep the pointer. Frees
  /// nothing: see `release(upTo:)`. Returns what `body` returned.
  @inline(__always)
  public func look<Result>(
    from position: UInt64, limit: Int = .max, _ body: (UnsafeRawBufferPointer) throws -> Result
  ) throws -> Result {
    guard position >= start && position <= end && limit >= 0 else { throw isOutside(position, limit, "ring.look") }
    let kept = min(Int(truncatingIfNeeded: end &- position), limit)
    return try body(UnsafeRawBufferPointer(start: memory + offset(of: position), count: kept))
  }

  /// Hands `body` all kept bytes, as one run.
  @inline(__always)
  public func lookAtAll<Result>(_ body: (UnsafeRawBufferPointer) throws -> Result) rethrows -> Result {
    try body(UnsafeRawBufferPointer(start: memory + offset(of: start), count: count))
  }

  /// Hands `body` the oldest bytes, at most `limit`, and frees those that it reports as moved.
  @inline(__always)
  public func drain(limit: Int = .max, _ body: (UnsafeRawBufferPointer) throws -> Transfer) throws -> Transfer {
    let offered = min(count, max(limit, 0))
    let transfer = try body(UnsafeRawBufferPointer(start: memory + offset(of: start), count: offered))
    if case .moved(let count) = transfer {
      guard count >= 0 && count <= offered else { throw InternalFault.miscounted(count, of: offered, at: "ring.drain") }
      start &+= UInt64(count)
      if start == end { base = end }
    }
    return transfer
  }

  /// Frees everything before `position`.
  @inline(__always)
  public func release(upTo position: UInt64) throws(InternalFault) {
    guard position >= start && position <= end else { throw isOutside(position, 0, "ring.release") }
    start = position
    if start == end { base = end }
  }

  /// Frees everything.
  public func clear() {
    start = end
    base = end
  }

  @inline(never)
  private func isOutside(_ position: UInt64, _ limit: Int, _ location: StaticString) -> InternalFault {
    InternalFault(location, "\(limit) bytes from position \(position) on, of \(start) to \(end) that are kept")
  }

  @inline(__always)
  private func offset(of position: UInt64) -> Int {
    Int(truncatingIfNeeded: (position &- base) % mappedLength)
  }
}

/// A lane's spare rings. Nearly every turn empties its ring, so one warm ring serves all sessions of a lane, and idle
/// sessions own none. Keeps four at most; others return to the kernel.
public final class RingPool {
  private var spare: [RingBuffer] = []
  private static let mostSpare = 4

  /// A pool of a lane's own; the one of a lane is `poller.rings`.
  public init() {}

  /// An empty ring whose positions start at `position`. Call `giveBack` when it has run empty.
  public func borrow(capacity: Int, at position: UInt64 = 0) throws(SystemError) -> RingBuffer {
    let ring: RingBuffer
    if let index = spare.lastIndex(where: { $0.capacity == capacity }) {
      ring = spare.remove(at: index)
    } else {
      ring = try RingBuffer(capacity: capacity)
    }
    ring.restart(at: position)
    return ring
  }

  /// Takes back a ring of `borrow`, which nobody uses any more.
  public func giveBack(_ ring: RingBuffer) {
    if spare.count < Self.mostSpare {
      spare.append(ring)
    } else if let index = spare.firstIndex(where: { $0.capacity != ring.capacity }) {
      spare[index] = ring  // a size in use now is worth more than a former one
    }
  }
}
