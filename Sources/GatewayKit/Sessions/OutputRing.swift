// The ring with a link's output, borrowed from the lane while it keeps bytes. It knows positions only, no clients and
// no packets.

import ByteStreams

struct OutputRing {
  /// Room for output that slow clients have not received, and for the backlog that a new client gets first; in bytes.
  struct Sizes: Equatable {
    var buffer: Int
    var backlog: Int
    var capacity: Int { buffer + backlog }
  }

  /// Nil while nothing is kept.
  private(set) var ring: RingBuffer?
  /// The sizes of the current ring. If the ring keeps too many bytes for a new size, only the next ring gets that size.
  private(set) var sizes: Sizes
  private var wanted: Sizes
  private var lastHead: UInt64 = 0  // the ring's head when it was given back
  private let pool: RingPool

  init(_ sizes: Sizes, from pool: RingPool) {
    self.sizes = sizes
    self.pool = pool
    wanted = sizes
  }

  /// Position of the next byte.
  var head: UInt64 { ring?.head ?? lastHead }
  var oldest: UInt64 { ring?.oldest ?? lastHead }
  /// Where the backlog begins.
  var backlogStart: UInt64 { head &- min(head, UInt64(sizes.backlog)) }
  /// Half of the buffer, counted back from the head.
  var half: UInt64 { head &- min(head, UInt64(sizes.buffer / 2)) }

  /// Throws when there is no memory for a ring.
  mutating func borrow() throws(SystemError) -> RingBuffer {
    if let ring { return ring }
    let ring = try pool.borrow(capacity: wanted.capacity, at: lastHead)
    sizes = wanted
    self.ring = ring
    return ring
  }

  /// Frees the bytes before `position`, except the backlog. It changes only the ring; were it not `mutating`, each call
  /// would copy this value, and count references, for each read of the endpoint.
  mutating func free(upTo position: UInt64) throws(InternalFault) {
    guard let ring else { return }
    let backlogStart = ring.head &- min(ring.head, UInt64(sizes.backlog))
    try ring.release(upTo: max(ring.oldest, min(position, backlogStart)))
  }

  /// Gives back the ring if it is empty. Returns whether a ring of the wrong size stays in use.
  mutating func giveBackIfEmpty() -> Bool {
    guard let ring, ring.isEmpty else { return ring != nil && sizes != wanted }
    drop(ring)
    return false
  }

  /// Drops everything kept.
  mutating func clear() {
    guard let ring else { return }
    ring.clear()
    drop(ring)
  }

  private mutating func drop(_ ring: RingBuffer) {
    lastHead = ring.head
    pool.giveBack(ring)
    self.ring = nil
  }

  // MARK: - Another size

  /// Sets the size of the next ring; `move` changes a ring in use.
  mutating func resize(to sizes: Sizes) { wanted = sizes }

  /// Moves the bytes after `position`, and the backlog, to a ring of the wanted size, if they fit and there is memory.
  mutating func move(from position: UInt64) {
    guard sizes != wanted else { return }
    guard let ring else { return sizes = wanted }
    let backlogStart = ring.head &- min(ring.head, UInt64(wanted.backlog))
    let oldest = max(ring.oldest, min(position, backlogStart))
    guard ring.head &- oldest <= UInt64(wanted.capacity),
      let other = try? pool.borrow(capacity: wanted.capacity, at: oldest)
    else { return }
    do { try Self.copy(ring, from: oldest, to: other) } catch {
      pool.giveBack(other)  // the old ring keeps the bytes
      return
    }
    ring.clear()
    pool.giveBack(ring)
    self.ring = other
    sizes = wanted
  }

  private static func copy(_ ring: RingBuffer, from position: UInt64, to other: RingBuffer) throws {
    try ring.look(from: position) { bytes in
      guard !bytes.isEmpty else { return }
      _ = try other.fill {
        $0.copyMemory(from: bytes)
        return .moved(bytes.count)
      }
    }
  }
}
