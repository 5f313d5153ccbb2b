// What a handle keeps for its readers, against a model that does each step the slow way.

import ByteStreams
import StreamTestKit
import Testing

@testable import StreamBrokerCore

@Suite("Kept input")
struct InputBufferTests {
  /// All bytes with the times of their arrival, and everything decided by looking at each of them.
  private struct Model {
    var bytes: [UInt8] = []
    var times: [UInt64] = []
    var breaks: Set<Int> = []
    var taken = 0

    mutating func take(_ count: Int) -> [UInt8] {
      defer { taken += count }
      return Array(bytes[taken..<taken + count])
    }

    /// How many bytes a read may take at most.
    private var limit: Int { (breaks.filter { $0 > taken }.min() ?? .max) - taken }

    mutating func some(_ most: Int) -> [UInt8]? {
      let count = min(bytes.count - taken, most, limit)
      return count > 0 ? take(count) : nil
    }

    mutating func until(_ delimiter: [UInt8], _ most: Int, isLast: Bool) -> [UInt8]? {
      let kept = bytes.count - taken
      guard kept > 0 else { return nil }
      let allowed = min(kept, most, limit)
      for count in 1...allowed where bytes[taken..<taken + count].suffix(delimiter.count).elementsEqual(delimiter) {
        return take(count)
      }
      return allowed == most || allowed == limit || isLast ? take(allowed) : nil
    }

    mutating func packet(_ max: Int, _ idle: UInt64, _ delimiter: [UInt8], at now: UInt64, isLast: Bool) -> [UInt8]? {
      guard taken < bytes.count else { return nil }
      for end in taken + 1...bytes.count {
        let packet = bytes[taken..<end]
        let isFull = packet.count == max
        let isDelimited = !delimiter.isEmpty && packet.suffix(delimiter.count).elementsEqual(delimiter)
        let isBroken = breaks.contains(end)
        let next = end < bytes.count ? times[end] : now
        if isFull || isDelimited || isBroken || next - times[end - 1] >= idle { return take(packet.count) }
      }
      return isLast ? take(bytes.count - taken) : nil
    }
  }

  @Test("gives every byte once, in order, up to a delimiter or to a place that no read crosses", arguments: 0..<200)
  func reads(round: Int) {
    var random = SeededRandom()
    let seed = random.seed
    var model = Model()
    var buffer = InputBuffer()
    let delimiter = [[UInt8]](arrayLiteral: [1], [1, 2], [1, 1], [1, 2, 1]).randomElement(using: &random)!
    let most = Int.random(in: 1...80, using: &random)
    // A reader keeps what it wants until it gets it.
    var want: InputBuffer.Want?
    for step in 0..<400 {
      let isLast = step > 380
      switch Int.random(in: 0..<(isLast ? 4 : 10), using: &random) {
      case 0...3:
        if want == nil { want = Bool.random(using: &random) ? .bytes(most) : .until(delimiter, most: most, scanned: 0) }
        let (got, expected) =
          switch want! {
          case .bytes: (buffer.take(&want!, at: 0, isLast: isLast), model.some(most))
          default: (buffer.take(&want!, at: 0, isLast: isLast), model.until(delimiter, most, isLast: isLast))
          }
        #expect(got == expected, "seed \(seed), step \(step)")
        if got != nil { want = nil }
      case 4:
        buffer.markBreak()
        if model.bytes.count > model.taken { model.breaks.insert(model.bytes.count) }
      default:
        let run = (0..<Int.random(in: 0...20, using: &random)).map { _ in UInt8.random(in: 0...2, using: &random) }
        run.withUnsafeBytes { buffer.append($0, at: 0) }
        model.bytes += run
      }
      #expect(buffer.count == model.bytes.count - model.taken, "seed \(seed), step \(step)")
    }
  }

  @Test("gives the same packets, whenever they are taken", arguments: 0..<200)
  func packets(round: Int) {
    var random = SeededRandom()
    let seed = random.seed
    let max = Int.random(in: 3...30, using: &random)
    let idle: UInt64? = Bool.random(using: &random) ? 10 : nil
    let delimiter = [[UInt8]](arrayLiteral: [], [1], [1, 2], [1, 1]).randomElement(using: &random)!
    let rule = PacketRule(max: max, idle: idle.map { .nanoseconds(Int64($0)) }, delimiter: delimiter)
    var model = Model()
    var buffer = InputBuffer()
    var now: UInt64 = 0
    let feed = { (random: inout SeededRandom, buffer: inout InputBuffer, model: inout Model) in
      let run = (0..<Int.random(in: 1...12, using: &random)).map { _ in UInt8.random(in: 0...2, using: &random) }
      run.withUnsafeBytes { buffer.append($0, at: now) }
      model.bytes += run
      model.times += run.map { _ in now }
    }
    // Bytes from before the rule, all of one moment.
    for _ in 0..<Int.random(in: 0...3, using: &random) {
      feed(&random, &buffer, &model)
      if Bool.random(using: &random) {
        buffer.markBreak()
        model.breaks.insert(model.bytes.count)
      }
    }
    buffer.cut(by: rule)
    for step in 0..<400 {
      let isLast = step > 390
      switch Int.random(in: 0..<(isLast ? 3 : 8), using: &random) {
      case 0...2:
        var want = InputBuffer.Want.packet
        let got = buffer.take(&want, at: now, isLast: isLast)
        let expected = model.packet(max, idle ?? .max, delimiter, at: now, isLast: isLast)
        #expect(got == expected, "seed \(seed), step \(step)")
      case 3:
        buffer.markBreak()
        if model.bytes.count > model.taken { model.breaks.insert(model.bytes.count) }
      case 4: now += UInt64.random(in: 0...12, using: &random)
      default: feed(&random, &buffer, &model)
      }
    }
  }

  @Test("has no empty packet after other reads have taken all of it, and no silence to wait for")
  func nothingLeft() {
    var buffer = InputBuffer()
    buffer.cut(by: PacketRule(max: 100, idle: .nanoseconds(10), delimiter: []))
    [UInt8](1...3).withUnsafeBytes { buffer.append($0, at: 0) }
    #expect(buffer.idleEnd == 10)
    var want = InputBuffer.Want.bytes(10)
    #expect(buffer.take(&want, at: 1, isLast: false) == [1, 2, 3])
    #expect(buffer.idleEnd == nil)
    [UInt8](4...5).withUnsafeBytes { buffer.append($0, at: 30) }
    want = .packet
    #expect(buffer.take(&want, at: 30, isLast: false) == nil)
    #expect(buffer.take(&want, at: 40, isLast: false) == [4, 5])
  }

  @Test("is not searched again for a delimiter that was not there")
  func scanned() {
    var buffer = InputBuffer()
    var want = InputBuffer.Want.until([1, 2], most: 1000, scanned: 0)
    [UInt8](repeating: 1, count: 100).withUnsafeBytes { buffer.append($0, at: 0) }
    #expect(buffer.take(&want, at: 0, isLast: false) == nil)
    guard case .until(_, _, let scanned) = want else { return }
    #expect(scanned == 99)
    [UInt8](arrayLiteral: 2, 3).withUnsafeBytes { buffer.append($0, at: 0) }
    #expect(buffer.take(&want, at: 0, isLast: false)?.count == 101)
    #expect(buffer.count == 1)
  }
}
