// Where packets end: the types that find and remember it, compared with a naive implementation.

import StreamTestKit
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("Packets", .timeLimit(.minutes(5)))
struct PacketsTests {
  /// The lengths of the packets in `bytes`; the last packet may be incomplete.
  private func naive(_ bytes: [UInt8], max: Int?, delimiter: [UInt8]?) -> [Int] {
    var lengths: [Int] = []
    var packet: [UInt8] = []
    for byte in bytes {
      packet.append(byte)
      if packet.count == max || delimiter.map({ packet.suffix($0.count).elementsEqual($0) }) ?? false {
        lengths.append(packet.count)
        packet = []
      }
    }
    return lengths + (packet.isEmpty ? [] : [packet.count])
  }

  private func scanned(_ bytes: [UInt8], _ rule: PacketRule, portions: () -> Int) -> [Int] {
    var scanner = PacketScanner()
    var lengths: [Int] = []
    var length = 0
    var rest = bytes[...]
    while !rest.isEmpty {
      let portion = rest.prefix(portions())
      let count = portion.withUnsafeBytes { scanner.take($0, by: rule) }
      length += count
      rest = rest.dropFirst(count)
      #expect(count > 0 && scanner.length == (scanner.isInside ? length : 0))
      if !scanner.isInside {
        lengths.append(length)
        length = 0
      }
    }
    return lengths + (length == 0 ? [] : [length])
  }

  @Test("end after a delimiter or at their maximum length, in portions of any size")
  func ends() {
    var random = SeededRandom()
    let delimiters: [[UInt8]?] = [nil, [1], [1, 2], [1, 1], [1, 1, 2], [1, 2, 1, 2, 3], [1, 1, 2, 1, 1, 1]]
    for _ in 0..<500 {
      let bytes = (0..<Int.random(in: 0...200, using: &random)).map { _ in UInt8.random(in: 1...3, using: &random) }
      let delimiter = delimiters.randomElement(using: &random)!
      let max = Bool.random(using: &random) ? Int.random(in: 1...20, using: &random) : nil
      let rule = PacketRule(max: max, delimiter: delimiter ?? [])
      let lengths = scanned(bytes, rule) { Int.random(in: 1...9, using: &random) }
      #expect(
        lengths == naive(bytes, max: max, delimiter: delimiter),
        "\(bytes) by \(delimiter ?? []) and \(max ?? 0), \(random)")
    }
  }

  @Test("are remembered by their ends, up to a limit, and forgotten when they are in the past")
  func marks() {
    var marks = PacketMarks()
    var ends: [UInt64] = []
    var random = SeededRandom()
    var position: UInt64 = 0
    for step in 0..<20_000 {
      position += UInt64.random(in: 1...5, using: &random)
      marks.add(position)
      ends.append(position)
      if step % 100 == 0 {
        // Including the hundred until the next check, these are fewer than three quarters of `most`. Above that, pairs
        // are merged.
        let kept = ends[max(0, ends.count - Int.random(in: 1...600, using: &random))]
        marks.forget(before: kept)
        ends.removeAll { $0 < kept }
      }
      let asked = UInt64.random(in: ends[0]...position + 3, using: &random)
      #expect(marks.first(from: asked) == ends.first { $0 >= asked }, "\(random)")
    }
  }

  @Test("are merged in pairs when there are too many, but the first and the last end are always right")
  func tooMany() {
    var marks = PacketMarks()
    let count = UInt64(10 * PacketMarks.most)
    for end in 1...count {
      marks.add(end)
      #expect(marks.first(from: end) == end && marks.first(from: 0) == 1)
    }
    var (found, last) = (0, UInt64(0))
    while let next = marks.first(from: last + 1) {
      (found, last) = (found + 1, next)
    }
    #expect(found <= PacketMarks.most && found > PacketMarks.most / 4 && last == count)
  }
}
