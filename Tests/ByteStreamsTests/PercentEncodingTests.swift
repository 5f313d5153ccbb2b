import ByteStreams
import Testing

@Suite("Percent-encoding")
struct PercentEncodingTests {
  @Test("is decoded once, with digits in upper and lower case")
  func escapes() {
    let bytes = PercentEncoding.decode("a%20%c3%A4%2541".utf8) { Issue.record("broken at \($0)") }
    #expect(bytes == Array("a ä%41".utf8))
  }

  @Test(
    "is invalid without two hexadecimal digits, and then stays as it is",
    arguments: [("%", [0]), ("a%4", [1]), ("%+1b", [0]), ("%g0", [0]), ("%%41", [0]), ("%41%4 %", [3, 6])])
  func broken(text: String, offsets: [Int]) {
    var seen: [Int] = []
    let bytes = PercentEncoding.decode(text.utf8) { seen.append($0) }
    #expect(seen == offsets)
    #expect(String(decoding: bytes, as: UTF8.self) == text.replacing("%41", with: "A"))
  }

  private struct Broken: Error {}

  @Test("ends with the error that is thrown for a broken escape")
  func thrown() {
    #expect(throws: Broken.self) {
      try PercentEncoding.decode("%zz".utf8) { (_) throws(Broken) in throw Broken() }
    }
  }
}
