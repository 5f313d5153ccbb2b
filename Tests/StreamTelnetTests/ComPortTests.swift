// The messages of RFC 2217, in bytes written by hand.

import Testing

@testable import StreamTelnet

@Suite("A COM-PORT message")
struct ComPortTests {
  /// Each code with its value, and the content of its subnegotiation from a client.
  static let messages: [(ComPortMessage, [UInt8])] = [
    (.signature([]), [0]), (.signature(Array("Baudway".utf8)), [0] + Array("Baudway".utf8)),
    (.signature([255, 0, 255]), [0, 255, 0, 255]), (.baudRate(0), [1, 0, 0, 0, 0]),
    (.baudRate(115_200), [1, 0, 1, 0xC2, 0]), (.baudRate(0xFF00_FFFE), [1, 255, 0, 255, 254]),
    (.baudRate(.max), [1, 255, 255, 255, 255]), (.dataSize(8), [2, 8]), (.parity(5), [3, 5]), (.stopSize(3), [4, 3]),
    (.control(0), [5, 0]), (.control(19), [5, 19]), (.lineState(0xFF), [6, 255]), (.modemState(0xB0), [7, 0xB0]),
    (.suspend, [8]), (.resume, [9]), (.lineStateMask(255), [10, 255]), (.modemStateMask(0), [11, 0]),
    (.purge(3), [12, 3]),
  ]

  @Test("is read from both sides, and sent by both", arguments: messages)
  func bothWays(message: ComPortMessage, content: [UInt8]) {
    #expect(ComPortMessage(content, from: .client) == message)
    #expect(message.bytes(from: .client) == [255, 250, 44] + Wire.data(content) + [255, 240])
    let answer = [content[0] + 100] + content.dropFirst()
    #expect(ComPortMessage(answer, from: .server) == message)
    #expect(message.bytes(from: .server) == [255, 250, 44] + Wire.data(answer) + [255, 240])
    // The other side's codes mean nothing.
    #expect(ComPortMessage(answer, from: .client) == nil)
    #expect(ComPortMessage(content, from: .server) == nil)
  }

  @Test("is written as it stands in RFC 2217")
  func literally() {
    #expect(ComPortMessage.baudRate(9600).bytes(from: .client) == [255, 250, 44, 1, 0, 0, 0x25, 0x80, 255, 240])
    #expect(ComPortMessage.modemState(255).bytes(from: .server) == [255, 250, 44, 107, 255, 255, 255, 240])
  }

  @Test("with a wrong length is none", arguments: [[], [1], [1, 0, 0, 0], [1, 0, 0, 0, 1, 0], [2], [3], [4], [5]])
  func lengths(content: [UInt8]) {
    #expect(ComPortMessage(content, from: .client) == nil)
    if !content.isEmpty { #expect(ComPortMessage([content[0] + 100] + content.dropFirst(), from: .server) == nil) }
  }

  @Test("may ask for a notification without a value; of more than one byte the first counts")
  func noValue() {
    #expect(ComPortMessage([6], from: .client) == .lineState(0))
    #expect(ComPortMessage([7], from: .client) == .modemState(0))
    for code in [10, 11, 12] as [UInt8] { #expect(ComPortMessage([code], from: .client) == nil) }
    #expect(ComPortMessage([5, 8, 9], from: .client) == .control(8))
    #expect(ComPortMessage([8, 1], from: .client) == .suspend)
  }

  @Test("is none with a code that RFC 2217 does not have")
  func unknown() {
    for code in UInt8.min...UInt8.max {
      #expect((ComPortMessage([code, 1, 1, 1, 1], from: .client) != nil) == (code <= 12), "\(code)")
      #expect((ComPortMessage([code, 1, 1, 1, 1], from: .server) != nil) == (100...112 ~= code), "\(code)")
    }
  }
}
