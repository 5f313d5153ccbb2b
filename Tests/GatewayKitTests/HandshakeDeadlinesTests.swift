// The time limit of handshakes alone: times go in, the connections whose time is over come out.

import Testing

@testable import GatewayKit

@Suite("The deadlines of handshakes")
struct HandshakeDeadlinesTests {
  private static let second: UInt64 = 1_000_000_000

  @Test("expire in the order the handshakes began, each once")
  func order() {
    var deadlines = HandshakeDeadlines(.seconds(10))
    #expect(deadlines.next(at: 0) == nil)
    for number in UInt64(1)...3 { deadlines.add(number, at: number * Self.second) }
    #expect(deadlines.next(at: 3 * Self.second) == .seconds(8))
    #expect(deadlines.expired(at: 11 * Self.second - 1).isEmpty)
    #expect(deadlines.expired(at: 12 * Self.second) == [1, 2])
    #expect(deadlines.expired(at: 12 * Self.second).isEmpty)
    #expect(deadlines.next(at: 12 * Self.second) == .seconds(1))
    #expect(deadlines.next(at: 99 * Self.second) == .zero)
  }

  @Test("forget finished handshakes up to the first that is pending")
  func finished() {
    var deadlines = HandshakeDeadlines(.seconds(10))
    for number in UInt64(1)...4 { deadlines.add(number, at: number * Self.second) }
    let second = deadlines.oldest { $0 != 1 }
    #expect(second == 2)
    deadlines.forget { $0 == 3 }
    let third = deadlines.oldest { _ in true }
    #expect(deadlines.next(at: 0) == .seconds(13) && third == 3)
    #expect(deadlines.expired(at: 20 * Self.second) == [3, 4])
    deadlines.forget { _ in true }
    #expect(deadlines.next(at: 0) == nil)
  }

  @Test("pass each finished handshake once, however many were refused in favour of newer ones")
  func flood() {
    var deadlines = HandshakeDeadlines(.seconds(10))
    var looks = 0
    var refused: UInt64 = 0
    for number in UInt64(1)...2000 {
      deadlines.add(number, at: number)
      guard number > 100 else { continue }
      let victim = deadlines.oldest { pending in
        looks += 1
        return pending > refused
      }
      #expect(victim == refused + 1)
      refused += 1
    }
    #expect(refused == 1900 && looks < 2 * 1900)
    #expect(deadlines.expired(at: 20 * Self.second) == Array(1900...2000))
    deadlines.shrink()
    #expect(deadlines.next(at: 0) == nil)
  }
}
