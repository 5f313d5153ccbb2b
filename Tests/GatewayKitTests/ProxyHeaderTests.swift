import ByteStreams
import StreamTestKit
import Testing

@testable import GatewayKit

/// A header of version 2.
func proxyBlock(_ body: [UInt8], _ command: UInt8 = 0x21, _ family: UInt8 = 0x11, length: Int? = nil) -> [UInt8] {
  let length = length ?? body.count
  return [0x0D, 0x0A, 0x0D, 0x0A, 0x00, 0x0D, 0x0A, 0x51, 0x55, 0x49, 0x54, 0x0A, command, family]
    + [UInt8(length >> 8), UInt8(length & 255)] + body
}

private let fourToFour: [UInt8] = [192, 0, 2, 7, 198, 51, 100, 1, 0xC8, 0x21, 0x0F, 0xA1]
private let sixToSix =
  [0x20, 0x01, 0x0D, 0xB8] + [UInt8](repeating: 0, count: 11) + [7]
  + [UInt8](repeating: 0, count: 16) + [0xC8, 0x21, 0x0F, 0xA1]

@Suite("A PROXY header")
struct ProxyHeaderTests {
  /// The header, and the source address that it names; nil for none.
  static let good: [(bytes: [UInt8], source: String?)] = [
    (Array("PROXY TCP4 192.0.2.7 198.51.100.1 51233 4001\r\n".utf8), "192.0.2.7:51233"),
    (Array("PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n".utf8), "255.255.255.255:65535"),
    (Array("PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n".utf8), "0.0.0.0:0"),
    (Array("PROXY TCP6 2001:db8::7 2001:db8::1 51233 4001\r\n".utf8), "[2001:db8::7]:51233"),
    (Array("PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n".utf8), "192.0.2.7:1"),
    (Array("PROXY UNKNOWN\r\n".utf8), nil),
    (Array("PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n".utf8), nil),
    (proxyBlock(fourToFour), "192.0.2.7:51233"),
    (proxyBlock(sixToSix, 0x21, 0x21), "[2001:db8::7]:51233"),
    (proxyBlock(fourToFour + [3, 0, 4, 1, 2, 3, 4]), "192.0.2.7:51233"),  // an extension after the addresses
    (proxyBlock(fourToFour + [UInt8](repeating: 9, count: 65523)), "192.0.2.7:51233"),
    (proxyBlock([], 0x20, 0x00), nil),  // LOCAL: a health check
    (proxyBlock(fourToFour, 0x20, 0x11), nil),  // LOCAL, whose addresses are ignored
    (proxyBlock([], 0x21, 0x00), nil),
    (proxyBlock([UInt8](repeating: 0, count: 216), 0x21, 0x31), nil),  // AF_UNIX
    (proxyBlock(fourToFour, 0x21, 0x12), nil),  // UDP
  ]

  @Test("names the client, in pieces of any size, and leaves the bytes after it unread", arguments: good.indices)
  func reads(index: Int) throws {
    let (bytes, source) = Self.good[index]
    let whole = bytes + Array("payload".utf8)
    var random = SeededRandom()
    for size in [1, 2, 7, 16, whole.count] + (0..<5).map({ _ in Int.random(in: 1...64, using: &random) }) {
      var reader = ProxyReader()
      var place = 0
      while reader.header == nil && place < whole.count {
        let piece = Array(whole[place..<min(place + size, whole.count)])
        place += try piece.withUnsafeBytes { try reader.take($0) }
      }
      // Only LOCAL is a check. UNKNOWN, and an address family that we do not know, is a client.
      #expect(reader.header?.isCheck == (bytes.count > 12 && bytes[12] == 0x20))
      #expect(reader.header?.source?.description == source)
      #expect(place == bytes.count, "in pieces of \(size)")
    }
  }

  /// The bytes, the fault, and how many bytes are enough to detect it.
  static let bad: [(bytes: [UInt8], fault: ProxyFault, after: Int)] = [
    (Array("GET / HTTP/1.1\r\n".utf8), .noHeader, 1),
    (Array("PROXZ".utf8), .noHeader, 5),
    (Array("PROXY\tTCP4".utf8), .noHeader, 6),
    ([0x0D, 0x0A, 0x0D, 0x0B], .noHeader, 4),
    ([0x16, 3, 1], .noHeader, 1),
    (Array("PROXY ".utf8) + [UInt8](repeating: 65, count: 200), .tooLong, 107),
    (Array("PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n".utf8), .malformed("a line that does not end in CR LF"), 31),
    (Array("PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n".utf8), .malformed("neither TCP4, TCP6 nor UNKNOWN"), 32),
    (Array("PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n".utf8), .malformed("not two addresses and two ports"), 30),
    (Array("PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n".utf8), .malformed("not two addresses and two ports"), 33),
    (Array("PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n".utf8), .malformed("an invalid port"), 36),
    (Array("PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n".utf8), .malformed("an invalid port"), 33),
    (Array("PROXY TCP4 1.2.3.4 1.2.3.4 +1 2\r\n".utf8), .malformed("an invalid port"), 33),
    (Array("PROXY TCP4 ::1 1.2.3.4 1 2\r\n".utf8), .malformed("an address that is not valid for TCP4"), 28),
    (Array("PROXY TCP6 1.2.3.4 ::1 1 2\r\n".utf8), .malformed("an address that is not valid for TCP6"), 28),
    (Array("PROXY TCP6 fe80::1%lo ::1 1 2\r\n".utf8), .malformed("an address that is not valid for TCP6"), 31),
    (proxyBlock(fourToFour, 0x11, 0x11), .malformed("version or command 17"), 16),
    (proxyBlock(fourToFour, 0x22, 0x11), .malformed("version or command 34"), 16),
    (proxyBlock(fourToFour, 0x21, 0x41), .malformed("address family 65"), 16),
    (proxyBlock(fourToFour, 0x21, 0x13), .malformed("address family 19"), 16),
    (proxyBlock(fourToFour, 0x21, 0x11, length: 11), .malformed("11 bytes are too few for its addresses"), 16),
    (proxyBlock(sixToSix, 0x21, 0x21, length: 12), .malformed("12 bytes are too few for its addresses"), 16),
  ]

  @Test("that is invalid is detected as early as possible", arguments: bad.indices)
  func refuses(index: Int) throws {
    let (bytes, fault, after) = Self.bad[index]
    var reader = ProxyReader()
    let early = Array(bytes[..<(after - 1)])
    let taken = try early.withUnsafeBytes { try reader.take($0) }
    #expect(taken == early.count)
    #expect(reader.header == nil)
    let late = Array(bytes[(after - 1)...])
    #expect(throws: fault) { _ = try late.withUnsafeBytes { try reader.take($0) } }
  }
}
