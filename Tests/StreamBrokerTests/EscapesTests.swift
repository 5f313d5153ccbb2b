import StreamBroker
import Testing

@Suite("Bytes written as text")
struct EscapesTests {
  @Test("encode every byte, in upper and lower case, and read back as printed")
  func everyByte() {
    for byte in UInt8.min ... .max {
      let digits = (byte < 16 ? "0" : "") + String(byte, radix: 16)
      #expect(Escapes.bytes(of: "a\\x\(digits)b") == [0x61, byte, 0x62])
      #expect(Escapes.bytes(of: "\\x\(digits.uppercased())") == [byte])
      #expect(Escapes.bytes(of: Escapes.text(of: [byte, 0x30])) == [byte, 0x30])
    }
  }

  @Test(
    "are rejected where a letter or a digit is wrong or missing",
    arguments: ["\\", "\\q", "\\x", "\\x1", "\\xg0", "\\x-1", "\\x+1"])
  func wrong(text: String) {
    #expect(Escapes.bytes(of: text) == nil)
  }
}
