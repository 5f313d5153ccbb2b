// The decoder on bytes written by hand, cut at every place and decoded into runs of every size.

import StreamTestKit
import Testing

@testable import StreamTelnet

@Suite("A telnet decoder", .timeLimit(.minutes(5)))
struct DecoderTests {
  static let rooms: [Int?] = [nil, 1, 2, 3, 7]

  /// Everything there is, and what must come out.
  private static let sample: [UInt8] =
    [65, 255, 255, 66] + Wire.nop + [67] + Wire.will(0) + Wire.do(44) + Wire.dont(200) + Wire.wont(1)
    + Wire.subnegotiation([5, 255, 255, 7]) + [255, 255] + Wire.subnegotiation([], of: 24) + Wire.breakKey
    + [68, 255, 200, 69, 255, 242] + Wire.areYouThere + [255, 255, 255, 240, 70]
  private static let expected: [Heard.Item] = [
    .data([65, 255, 66]), .token(.command(.noOperation)), .data([67]), .token(.negotiation(.will, option: 0)),
    .token(.negotiation(.do, option: 44)), .token(.negotiation(.dont, option: 200)),
    .token(.negotiation(.wont, option: 1)), .token(.subnegotiation(option: 44, content: [5, 255, 255, 7])),
    .data([255]), .token(.subnegotiation(option: 24, content: [])), .token(.command(.breakKey)), .data([68, 69]),
    .token(.command(.areYouThere)), .data([255]), .token(.command(.subnegotiationEnd)), .data([70]),
  ]

  @Test("finds the same data and commands wherever the bytes are cut", arguments: rooms)
  func everySplit(room: Int?) {
    let (bytes, expected) = (Self.sample, Self.expected)
    for binary in [true, false] {
      for first in 0...bytes.count {
        for second in first...bytes.count {
          let pieces = [Array(bytes[..<first]), Array(bytes[first..<second]), Array(bytes[second...])]
          let isSame = decode(pieces, binary: binary, room: room).items == expected
          #expect(isSame, "cut at \(first) and \(second), binary \(binary)")
        }
      }
      #expect(decode(bytes.map { [$0] }, binary: binary, room: room).items == expected)
    }
  }

  @Test(
    "drops the NUL of CR NUL outside BINARY only",
    arguments: [
      ([13, 0], [13]), ([13, 10], [13, 10]), ([13, 65], [13, 65]), ([13, 13, 0, 0], [13, 13, 0]), ([0, 13], [0, 13]),
      ([13, 0, 0], [13, 0]), ([13, 255, 255, 0], [13, 255, 0]), ([13, 255, 241, 0], [13]), ([10, 0], [10, 0]),
      ([13, 0, 13, 0, 13, 0, 65], [13, 13, 13, 65]),
    ] as [([UInt8], [UInt8])])
  func carriageReturns(wire: [UInt8], text: [UInt8]) {
    let plain: [UInt8] = wire.count >= 3 && wire[1] == 255 ? [13] + (wire[2] == 255 ? [255, 0] : [0]) : wire
    for room in Self.rooms {
      for cut in 0...wire.count {
        let pieces = [Array(wire[..<cut]), Array(wire[cut...])]
        #expect(decode(pieces, binary: false, room: room).bytes == text, "cut at \(cut)")
        #expect(decode(pieces, binary: true, room: room).bytes == plain, "binary, cut at \(cut)")
      }
    }
  }

  @Test("forgets a CR when BINARY begins or ends after it")
  func binaryAfterCR() {
    var decoder = TelnetDecoder()
    var heard = decode([[13]], with: &decoder).bytes
    decoder.isBinary = true
    heard += decode([[0, 65]], with: &decoder).bytes
    decoder.isBinary = false
    heard += decode([[0, 13]], with: &decoder).bytes
    decoder.isBinary = false
    heard += decode([[0]], with: &decoder).bytes
    #expect(heard == [13, 0, 65, 0, 13])
  }

  @Test("drops a subnegotiation that is too long, and goes on after it", arguments: [256, 257, 300, 65_536])
  func overlong(count: Int) {
    let content = [UInt8](repeating: 255, count: count)
    let bytes = [1] + Wire.subnegotiation(content) + [2] + Wire.subnegotiation([9])
    for room in [nil, 7] as [Int?] {
      let heard = decode([bytes], binary: true, room: room)
      #expect(heard.bytes == [1, 2] && !heard.isBroken)
      let last = TelnetDecoder.Token.subnegotiation(option: 44, content: [9])
      let isWhole = heard.tokens == (count <= 256 ? [.subnegotiation(option: 44, content: content), last] : [last])
      #expect(isWhole)
    }
  }

  @Test("breaks at a subnegotiation without an end, after the data before it")
  func endless() {
    let begin: [UInt8] = [1, 2, 255, 250, 44]
    for fill in [[7], [255, 255]] as [[UInt8]] {
      let endless = begin + (0..<65_537).flatMap { _ in fill }
      for pieces in [
        [endless], stride(from: 0, to: endless.count, by: 1000).map { Array(endless[$0...].prefix(1000)) },
      ] {
        let heard = decode(pieces, binary: false)
        #expect(heard.isBroken && heard.bytes == [1, 2] && heard.tokens.isEmpty)
      }
      let almost = decode([Array(endless.dropLast(fill.count)), [255, 240, 3]], binary: false)
      #expect(!almost.isBroken && almost.bytes == [1, 2, 3])
    }
  }

  @Test("takes a command inside a subnegotiation as the missing end of it")
  func commandInside() {
    for room in Self.rooms {
      let heard = decode([[255, 250, 44, 1, 2] + Wire.will(0) + [65]], binary: true, room: room)
      #expect(heard.items == [.token(.negotiation(.will, option: 0)), .data([65])])
      let nested = decode([[255, 250, 44, 1] + Wire.subnegotiation([3]) + [66]], binary: true, room: room)
      #expect(nested.items == [.token(.subnegotiation(option: 44, content: [3])), .data([66])])
      let unknown = decode([[255, 250, 44, 1, 255, 7, 66]], binary: true, room: room)
      #expect(unknown.items == [.data([66])])
    }
  }

  @Test("ignores every command that it does not know, and its data")
  func unknownCommands() {
    let known: Set<UInt8> = [240, 241, 243, 246, 250, 251, 252, 253, 254, 255]
    for byte in UInt8.min...UInt8.max where !known.contains(byte) {
      #expect(decode([[65, 255, byte, 66]], binary: false).items == [.data([65, 66])], "\(byte)")
    }
  }

  @Test("passes random bytes through that were doubled by hand, in random pieces")
  func random() {
    var random = SeededRandom()
    let seed = random.seed
    for _ in 0..<200 {
      let bytes = (0..<Int.random(in: 1...300, using: &random)).map { _ in
        [255, 13, 0, 10, 65].randomElement(using: &random) ?? 0 as UInt8
      }
      for binary in [true, false] {
        var rest = (binary ? Wire.data(bytes) : Wire.text(bytes))[...]
        var pieces: [[UInt8]] = []
        while !rest.isEmpty {
          pieces.append(Array(rest.prefix(Int.random(in: 1...9, using: &random))))
          rest = rest.dropFirst(pieces.last?.count ?? 0)
        }
        for room in Self.rooms { #expect(decode(pieces, binary: binary, room: room).bytes == bytes, "seed \(seed)") }
      }
    }
  }
}
