// How a line's settings are written as text.

import Testing

@testable import ByteStreams

@Suite("The settings of a serial line")
struct SerialLineTests {
  private static let words: [(LineSettings, String)] = [
    (LineSettings(), "9600 8N1"),
    (
      LineSettings(bitsPerSecond: 115_200, dataBits: 7, parity: .even, stopBits: .two, flowControl: .rtscts),
      "115200 7E2 rtscts"
    ),
    (LineSettings(bitsPerSecond: 31_250, dataBits: 5, parity: .mark, stopBits: .oneAndHalf), "31250 5M1.5"),
    (LineSettings(parity: .space, flowControl: .xonxoff), "9600 8S1 xonxoff"),
  ]

  @Test("are printed in the usual notation", arguments: words)
  func description(settings: LineSettings, words: String) { #expect("\(settings)" == words) }
}
