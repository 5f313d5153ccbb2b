// The codec alone: tables of valid and invalid frames. Input pieces and output space do not change the result.

import StreamTestKit
import Testing

@testable import StreamWebSocket

@Suite("A frame decoder")
struct FrameDecoderTests {
  @Test(
    "compacts the payload of every length that is written differently",
    arguments: [0, 1, 3, 4, 7, 8, 31, 32, 33, 64, 125, 126, 127, 255, 65_535, 65_536, 70_001])
  func lengths(length: Int) {
    let payload = ScriptedStream.pattern(0..<length)
    for mask: [UInt8] in [[0x12, 0x34, 0x56, 0x78], [0, 0, 0, 0]] {
      let bytes = wire(2, payload, mask: mask) + wire(2, [9], mask: mask) + wire(2, payload, mask: mask)
      #expect(FrameDecoder.handle([bytes]) == Heard(bytes: payload + [9] + payload))
    }
    let bare = wire(2, payload, mask: nil) + wire(2, [9], mask: nil)
    #expect(FrameDecoder.handle([bare], .init(role: .client)) == Heard(bytes: payload + [9]))
  }

  @Test("gives the same result for any pieces, any space, and any frames between fragments")
  func anyPieces() {
    var random = SeededRandom()
    let seed = random.seed
    for _ in 0..<40 {
      var bytes: [UInt8] = []
      var expected = Heard()
      for _ in 0..<12 {
        let payload = random.bytes(Int.random(in: 0...400, using: &random))
        let fragments = pieces(of: payload, most: 150, &random)
        for (place, fragment) in fragments.enumerated() {
          bytes += wire(place == 0 ? 2 : 0, fragment, final: place == fragments.count - 1, mask: random.bytes(4))
          if Bool.random(using: &random) {
            bytes += wire(9, random.bytes(5), mask: random.bytes(4))
            expected.events.append("ping 5")
          }
        }
        expected.bytes += payload
      }
      let cut = pieces(of: bytes, most: Int.random(in: 1...300, using: &random), &random)
      #expect(FrameDecoder.handle(cut) == expected, "seed \(seed)")
      let room = Int.random(in: 1...50, using: &random)
      #expect(FrameDecoder.handle(cut, room: room) == expected, "seed \(seed), room \(room)")
      #expect(FrameDecoder.handle(bytes.map { [$0] }) == expected, "seed \(seed)")
    }
  }

  @Test(
    "refuses what RFC 6455 forbids, by its code",
    arguments: [
      (wire(2, [1], mask: nil), WebSocketFault.Code.protocolError), (wire(3, []), .protocolError),
      (wire(7, []), .protocolError), (wire(11, []), .protocolError), (wire(15, []), .protocolError),
      (wire(2, [1], reserved: 4), .protocolError), (wire(2, [1], reserved: 1), .protocolError),
      (wire(9, [], reserved: 2), .protocolError), (wire(9, [], final: false), .protocolError),
      (wire(9, [UInt8](repeating: 0, count: 126)), .protocolError), (wire(0, [1]), .protocolError),
      (wire(2, [1], final: false) + wire(2, [2]), .protocolError), (wire(2, []) + wire(0, []), .protocolError),
      ([0x82, 0xFE, 0, 125, 0, 0, 0, 0], .protocolError),
      ([0x82, 0xFF, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0, 0, 0], .protocolError),
      ([0x82, 0xFF, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], .protocolError),
      (wire(1, [0xC3, 0x28]), .invalidPayload), (wire(1, [0xC3]), .invalidPayload),
      (wire(1, [0xED, 0xA0, 0x80]), .invalidPayload), (wire(1, [0xC3], final: false) + wire(0, []), .invalidPayload),
      (wire(2, [UInt8](repeating: 0, count: 1001)), .messageTooBig),
      (
        wire(2, [UInt8](repeating: 0, count: 600), final: false) + wire(0, [UInt8](repeating: 0, count: 401)),
        .messageTooBig
      ),
      ([0x82, 0xFF, 0x7F, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 0], .messageTooBig),
    ])
  func refuses(bytes: [UInt8], code: WebSocketFault.Code) {
    let settings = FrameDecoder.Settings(longestMessage: 1000)
    let good = wire(2, [1, 2, 3])
    for cut in [[good + bytes], (good + bytes).map { [$0] }] {
      let received = FrameDecoder.handle(cut, settings)
      #expect(received.fault == code && received.bytes.starts(with: [1, 2, 3]))
    }
  }

  @Test("reports a wrong header at its first wrong byte, and wrong text in the middle of it")
  func failsFast() {
    #expect(FrameDecoder.handle([[0x83]]).fault == .protocolError)
    #expect(FrameDecoder.handle([[0x82, 0x05]]).fault == .protocolError)
    #expect(FrameDecoder.handle([[0x89, 0xFE]]).fault == .protocolError)
    #expect(FrameDecoder.handle([[0x81, 0x90, 0, 0, 0, 0, 0x61, 0xF4, 0x90]]).fault == .invalidPayload)
    #expect(FrameDecoder.handle([[0x81, 0x90, 0, 0, 0, 0, 0x61, 0xF4, 0x8F]]).fault == nil)
  }

  @Test("keeps control texts apart from the bytes, whole, and bounded")
  func controlTexts() {
    let settings = FrameDecoder.Settings(longestControlText: 10)
    let bytes =
      wire(2, [1]) + wire(1, Array("{".utf8), final: false) + wire(9, []) + wire(0, Array("}ä".utf8)) + wire(2, [2])
    let expected = Heard(bytes: [1, 2], events: ["ping 0", "text {}ä"])
    #expect(FrameDecoder.handle([bytes], settings) == expected)
    #expect(FrameDecoder.handle(bytes.map { [$0] }, settings, room: 1) == expected)
    #expect(FrameDecoder.handle([wire(1, [UInt8](repeating: 65, count: 11))], settings).fault == .messageTooBig)
    #expect(FrameDecoder.handle([wire(2, [UInt8](repeating: 65, count: 11))], settings).fault == nil)
  }

  @Test("marks the ends of messages on request")
  func marks() {
    let bytes = wire(1, [65], final: false) + wire(0, [66]) + wire(2, []) + wire(2, [1])
    let expected = Heard(bytes: [65, 66, 1], events: ["text", "binary", "binary"])
    #expect(FrameDecoder.handle([bytes], .init(marksMessages: true)) == expected)
    #expect(FrameDecoder.handle(bytes.map { [$0] }, .init(marksMessages: true), room: 1) == expected)
  }
}

@Suite("A check of UTF-8")
struct UTF8CheckTests {
  @Test("agrees with the standard library, in any pieces")
  func agrees() {
    var random = SeededRandom()
    let seed = random.seed
    let parts: [[UInt8]] = [
      Array("plain ASCII, long enough for words".utf8), Array("äöü".utf8), Array("€".utf8), Array("😀".utf8),
      [0xF4, 0x8F, 0xBF, 0xBF],
      [0xEF, 0xBF, 0xBF], [0xC2], [0x80], [0xE0, 0x80], [0xED, 0xA0, 0x80], [0xF5], [0xF4, 0x90], [0xC1, 0x81], [0xFF],
      [0xF0, 0x8F],
      [0], [0xE1, 0x80], [0xBF],
    ]
    for _ in 0..<3000 {
      let bytes = (0..<Int.random(in: 1...4, using: &random)).flatMap { _ in
        parts[Int.random(in: 0..<(Bool.random(using: &random) ? 6 : parts.count), using: &random)]
      }
      var check = UTF8Check()
      let isAccepted = pieces(of: bytes, most: 9, &random).allSatisfy { piece in
        piece.withUnsafeBytes { check.accepts($0) }
      }
      #expect(
        (isAccepted && check.isComplete) == (String(validating: bytes, as: UTF8.self) != nil), "seed \(seed): \(bytes)")
    }
  }
}
