// The ring compared with a plain array of bytes.

import ByteStreams
import StreamTestKit
import Testing

@Suite("A ring", .timeLimit(.minutes(5)))
struct RingBufferTests {
  @Test("returns the bytes that were filled in, whatever the chunks", arguments: [1, 2, 3, 7, 4096, 5000])
  func randomChunks(capacity: Int) throws {
    var random = SeededRandom()
    let ring = try RingBuffer(capacity: capacity)
    var expected: [UInt8] = []
    for _ in 0..<3000 {
      if Bool.random(using: &random), ring.room > 0 {
        let chunk = random.bytes(Int.random(in: 0...ring.room, using: &random))
        _ = try ring.fill { run in
          #expect(run.count == ring.room)
          run.copyBytes(from: chunk)
          return .moved(chunk.count)
        }
        expected += chunk
      } else {
        let count = Int.random(in: 0...ring.count, using: &random)
        _ = try ring.drain(limit: count) { run in
          #expect(Array(run) == Array(expected.prefix(count)), "\(random)")
          return .moved(run.count)
        }
        expected.removeFirst(count)
      }
      try #require(ring.count == expected.count && ring.room == capacity - ring.count, "\(random)")
    }
  }

  @Test("lets each reader read from its own position until the slowest has read")
  func cursors() throws {
    let ring = try RingBuffer(capacity: 7)
    try put([1, 2, 3, 4, 5], into: ring)
    #expect(try ring.look(from: 2) { Array($0) } == [3, 4, 5])
    #expect(try ring.look(from: 1, limit: 2) { Array($0) } == [2, 3])
    try ring.release(upTo: 2)
    #expect(ring.oldest == 2 && ring.head == 5 && ring.room == 4)
    try put([6, 7, 8, 9], into: ring)
    #expect(ring.room == 0)
    #expect(try ring.look(from: ring.oldest) { Array($0) } == [3, 4, 5, 6, 7, 8, 9])
    #expect(try ring.look(from: ring.head) { $0.count } == 0)
  }

  @Test("continues its positions when it starts again elsewhere")
  func positions() throws {
    let ring = try RingBuffer(capacity: 3)
    try put([1, 2, 3], into: ring)
    ring.restart(at: 1_000_000_007)
    #expect(ring.isEmpty && ring.head == 1_000_000_007 && ring.oldest == 1_000_000_007)
    try put([4, 5], into: ring)
    #expect(try ring.look(from: 1_000_000_008) { Array($0) } == [5])
  }

  @Test("keeps nothing when the fill was blocked")
  func blockedFill() throws {
    let ring = try RingBuffer(capacity: 3)
    #expect(try ring.fill { _ in .blocked(until: .readable) } == .blocked(until: .readable))
    #expect(ring.isEmpty)
  }

  @Test("reports a fault for a position that it does not keep, and continues")
  func outside() throws {
    let ring = try RingBuffer(capacity: 7)
    try put([1, 2, 3, 4], into: ring)
    try ring.release(upTo: 2)
    for position: UInt64 in [0, 1, 5, .max] {
      let fault = #expect(throws: InternalFault.self) { try ring.look(from: position) { $0.count } }
      #expect(fault?.location == "ring.look" && fault?.text.contains("2 to 4") == true)
      #expect(throws: InternalFault.self) { try ring.release(upTo: position) }
    }
    #expect(throws: InternalFault.self) { try ring.look(from: 2, limit: -1) { $0.count } }
    #expect(try ring.look(from: 2) { Array($0) } == [3, 4])
  }

  @Test("reports a fault for a stream that moved more than offered, or less than nothing", arguments: [-1, 5])
  func impossibleCounts(count: Int) throws {
    let ring = try RingBuffer(capacity: 7)
    try put([1, 2, 3], into: ring)
    #expect(throws: InternalFault.self) { try ring.fill { _ in .moved(count) } }
    #expect(throws: InternalFault.self) { try ring.drain { _ in .moved(count) } }
    #expect(ring.count == 3 && ring.room == 4)
  }

  @Test("comes back from the pool warm, empty and of the right size")
  func pool() throws {
    let pool = RingPool()
    let ring = try pool.borrow(capacity: 64)
    try put([1, 2], into: ring)
    pool.giveBack(ring)
    #expect(try pool.borrow(capacity: 128) !== ring)
    let again = try pool.borrow(capacity: 64, at: 9)
    #expect(again === ring && again.isEmpty && again.head == 9)
  }

  @Test("stays in the pool when its size is the one in use, though the pool is full")
  func fullPool() throws {
    let pool = RingPool()
    for _ in 0..<4 { pool.giveBack(try RingBuffer(capacity: 64)) }
    let other = try RingBuffer(capacity: 128)
    pool.giveBack(other)
    #expect(try pool.borrow(capacity: 128) === other)
  }

  private func put(_ bytes: [UInt8], into ring: RingBuffer) throws {
    let answer = try ring.fill { run in
      run.copyBytes(from: bytes)
      return .moved(bytes.count)
    }
    #expect(answer == .moved(bytes.count))
  }
}
