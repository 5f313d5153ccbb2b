// The ring with a link's output, by itself: which bytes it keeps, when it is given back, and how it changes its size.

import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The ring of a link's output", .timeLimit(.minutes(5)))
struct OutputRingTests {
  private let pool = RingPool()

  private func ring(buffer: Int, backlog: Int) -> OutputRing {
    OutputRing(OutputRing.Sizes(buffer: buffer, backlog: backlog), from: pool)
  }

  private func fill(_ output: inout OutputRing, _ bytes: Range<Int>) throws {
    _ = try output.borrow().fill { run in
      run.copyBytes(from: pattern(bytes))
      return .moved(bytes.count)
    }
  }

  private func kept(_ output: OutputRing) throws -> [UInt8] {
    try output.ring.map { ring in try ring.look(from: ring.oldest) { Array($0) } } ?? []
  }

  @Test("keeps the backlog, even if its clients have received it")
  func backlog() throws {
    var output = ring(buffer: 32, backlog: 8)
    try fill(&output, 0..<20)
    try output.free(upTo: 20)
    #expect(output.oldest == 12 && output.head == 20)
    #expect(try kept(output) == pattern(12..<20))
    try output.free(upTo: 5)
    #expect(output.oldest == 12, "what is freed does not come back")
  }

  @Test("is given back when it is empty, and the next one continues at its position")
  func positions() throws {
    var output = ring(buffer: 32, backlog: 0)
    try fill(&output, 0..<20)
    var wantsToMove = output.giveBackIfEmpty()
    #expect(!wantsToMove && output.ring != nil)
    try output.free(upTo: 20)
    wantsToMove = output.giveBackIfEmpty()
    #expect(!wantsToMove && output.ring == nil)
    #expect(output.head == 20 && output.oldest == 20)
    try fill(&output, 20..<25)
    #expect(output.oldest == 20 && output.head == 25)
    output.clear()
    #expect(output.ring == nil && output.head == 25)
  }

  @Test("moves to another size with everything it keeps, as soon as that fits")
  func otherSize() throws {
    var output = ring(buffer: 32, backlog: 8)
    try fill(&output, 0..<30)
    output.resize(to: OutputRing.Sizes(buffer: 12, backlog: 4))
    output.move(from: 10)
    #expect(output.sizes.buffer == 32, "20 bytes do not fit into 16")
    var wantsToMove = output.giveBackIfEmpty()
    #expect(wantsToMove && output.ring != nil)
    output.move(from: 18)
    #expect(output.sizes == OutputRing.Sizes(buffer: 12, backlog: 4) && output.ring?.capacity == 16)
    #expect(output.oldest == 18 && output.head == 30)
    #expect(try kept(output) == pattern(18..<30))
    wantsToMove = output.giveBackIfEmpty()
    #expect(!wantsToMove && output.ring != nil)
  }

  @Test("moves with its new backlog, and to a new size at once when nothing is kept")
  func otherBacklog() throws {
    var output = ring(buffer: 32, backlog: 8)
    output.resize(to: OutputRing.Sizes(buffer: 64, backlog: 8))
    output.move(from: 0)
    #expect(output.sizes.capacity == 72)
    try fill(&output, 0..<30)
    output.resize(to: OutputRing.Sizes(buffer: 32, backlog: 2))
    output.move(from: 30)
    #expect(try kept(output) == pattern(28..<30))
  }

  @Test("stays unchanged if there is no memory for another")
  func noMemory() throws {
    var output = ring(buffer: 32, backlog: 0)
    try fill(&output, 0..<10)
    output.resize(to: OutputRing.Sizes(buffer: 1 << 56, backlog: 0))
    output.move(from: 0)
    #expect(output.sizes.buffer == 32)
    #expect(try kept(output) == pattern(0..<10))
    output.clear()
    #expect(throws: SystemError.self) { try output.borrow() }
  }
}
