import ByteStreams
import Testing

@testable import GatewayKit

@Suite("Limits per address")
struct AddressLimitsTests {
  private func address(_ text: String) throws -> SocketAddress {
    try #require(SocketAddress(numeric: text, port: UInt16.random(in: 1...60000)))
  }

  @Test("start a number of handshakes, make the next ones wait, and refuse those beyond that")
  func crowd() throws {
    var limits = AddressLimits(most: 2)
    let here = try address("127.0.0.2")
    let verdicts = try (1...13).map { limits.enter(UInt64($0), from: try address("127.0.0.2")) }
    #expect(verdicts[..<2] == [.proceed, .proceed])
    #expect(verdicts[2..<12].allSatisfy { $0 == .wait })
    #expect(verdicts[12] == .refuse)
    #expect(limits.enter(14, from: try address("127.0.0.1")) == .proceed)  // another address
    #expect(limits.leave(1, from: here) == 3)
    #expect(limits.leave(5, from: here) == nil)  // it had only waited
    #expect(limits.leave(3, from: here) == 4)
    #expect(limits.leave(2, from: here) == 6)
  }

  @Test("when raised start waiting handshakes at once, in order; when lowered they end none")
  func raised() throws {
    var limits = AddressLimits(most: 1)
    let (one, other) = (try address("192.0.2.1"), try address("192.0.2.2"))
    for number in 1...4 as ClosedRange<UInt64> { _ = limits.enter(number, from: one) }
    for number in 5...6 as ClosedRange<UInt64> { _ = limits.enter(number, from: other) }
    #expect(limits.set(most: 3, at: 7) == [2, 3, 6] && limits.isCrowded)
    #expect(limits.overdue(at: 7, after: 7) == [1] && limits.overdue(at: 14, after: 7) == [1])
    #expect(limits.set(most: 1) == [])
    #expect(limits.leave(1, from: one) == nil && limits.leave(2, from: one) == nil && limits.leave(3, from: one) == 4)
    #expect(!limits.isCrowded)
  }

  @Test("give each handshake a share of the time while others of its address wait, the longest first")
  func shares() throws {
    var limits = AddressLimits(most: 3)
    let here = try address("127.0.0.2")
    for number in 1...5 { _ = limits.enter(UInt64(number), from: here, at: UInt64(number)) }
    _ = limits.enter(9, from: try address("127.0.0.1"), at: 1)  // none of this address waits
    #expect(limits.isCrowded)
    #expect(limits.overdue(at: 10, after: 9) == [1])
    #expect(limits.overdue(at: 12, after: 9) == [1, 2])  // not more than are waiting
    #expect(limits.leave(1, from: here, at: 12) == 4)
    #expect(limits.overdue(at: 12, after: 9) == [2])
    #expect(limits.leave(5, from: here, at: 12) == nil)
    #expect(limits.overdue(at: 99, after: 9).isEmpty)
    #expect(!limits.isCrowded)
  }

  @Test("forget an address with its last handshake")
  func forgets() throws {
    var limits = AddressLimits(most: 1)
    let here = try address("192.0.2.1")
    for number in 1...3 { _ = limits.enter(UInt64(number), from: here) }
    #expect(limits.count == 1)
    #expect(limits.leave(2, from: here) == nil)
    #expect(limits.leave(1, from: here) == 3)
    #expect(limits.leave(3, from: here) == nil)
    #expect(limits.leave(3, from: here) == nil)  // the second call changes nothing
    #expect(limits.count == 0)
  }

  @Test("count a customer's whole IPv6 network as one address, and a mapped address as IPv4")
  func rateLimitKeys() throws {
    var limits = AddressLimits(most: 1)
    #expect(limits.enter(1, from: try address("2001:db8:1:2::1")) == .proceed)
    #expect(limits.enter(2, from: try address("2001:db8:1:2:ffff::9")) == .wait)
    #expect(limits.enter(3, from: try address("2001:db8:1:3::1")) == .proceed)
    #expect(limits.enter(4, from: try address("::ffff:10.0.0.1")) == .proceed)
    #expect(limits.enter(5, from: try address("10.0.0.1")) == .wait)
    #expect(limits.enter(6, from: try address("10.0.0.2")) == .proceed)
  }

  @Test("allow one second's connections at once, and then as many as arrive evenly in a second")
  func rate() throws {
    var rate = ConnectRate(limit: 4)
    let (here, there) = (try address("127.0.0.1"), try address("127.0.0.2"))
    let second: UInt64 = 1_000_000_000
    #expect((0..<6).map { _ in rate.admits(here, at: second) } == [true, true, true, true, false, false])
    #expect(rate.admits(there, at: second) == true)
    #expect(rate.admits(here, at: second + second / 5) == false)
    #expect(rate.admits(here, at: second + second / 4) == true)
    #expect(rate.admits(here, at: second + second / 4) == false)
    #expect((0..<6).map { _ in rate.admits(here, at: 9 * second) }.filter(\.self).count == 4)
  }

  @Test(
    "make room for an address with few by ending one of many: the last waiting client, or the longest handshake"
  )
  func room() throws {
    var limits = AddressLimits(most: 2)
    let (many, few, new) = (try address("192.0.2.1"), try address("192.0.2.2"), try address("192.0.2.3"))
    #expect(limits.toMakeRoom(for: new, oldest: 99) == 99)  // no client's address is known yet
    for number in 1...4 as ClosedRange<UInt64> { _ = limits.enter(number, from: many, at: number) }
    _ = limits.enter(5, from: few, at: 5)
    #expect(limits.toMakeRoom(for: new, oldest: nil) == 4 && limits.toMakeRoom(for: few, oldest: nil) == 4)
    #expect(limits.toMakeRoom(for: many, oldest: nil) == nil)
    #expect(limits.leave(4, from: many) == nil)
    #expect(limits.leave(3, from: many) == nil)
    #expect(limits.toMakeRoom(for: new, oldest: nil) == 1 && limits.toMakeRoom(for: nil, oldest: nil) == 1)
    #expect(limits.leave(1, from: many) == nil)
    #expect(limits.toMakeRoom(for: new, oldest: 7) == 7)  // one of each: the oldest of all
    #expect(limits.toMakeRoom(for: few, oldest: 7) == nil)
    #expect(limits.leave(2, from: many) == nil)
    #expect(limits.leave(5, from: few) == nil)
    limits.shrink()
    #expect(limits.toMakeRoom(for: new, oldest: nil) == nil && limits.count == 0)
  }

  @Test("on the connect rate remember a bounded number of addresses")
  func bounded() throws {
    var rate = ConnectRate(limit: 1)
    for number in 0..<40_000 {
      let bytes = [10, UInt8(number >> 16), UInt8(number >> 8 & 255), UInt8(number & 255)]
      #expect(rate.admits(SocketAddress(ipv4: bytes, port: 1), at: 5) == true)
    }
    #expect(rate.count <= 16_384)
    var free = ConnectRate(limit: nil)
    #expect(free.admits(try address("10.0.0.1"), at: 5) == true)
    #expect(free.count == 0)
  }
}
