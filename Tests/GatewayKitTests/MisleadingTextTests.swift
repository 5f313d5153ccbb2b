import ByteStreams
import Glibc
import Logging
import Testing

@testable import GatewayKit

@Suite("A device's misleading text")
struct MisleadingTextTests {
  static let texts = ["a\u{2028}b", "a\u{2029}b", "a\u{061C}b", "a\u{200F}b", "a\u{202E}b", "a\u{2066}b", "a\u{9B}b"]

  @Test("is shown as a question mark in tables, and as an escape in JSON", arguments: texts)
  func shown(text: String) {
    #expect(TextTable.Cell(text).text == "a?b")
    let quoted = JSONValue.quote(text)
    #expect(quoted.utf8.allSatisfy { $0 < 0x80 } && quoted.hasPrefix("\"a\\u"))
    #expect(JSONValue.text(text).description == quoted)
  }

  @Test("is an escape in the log's text", arguments: texts)
  func logged(text: String) throws {
    var ends: [Int32] = [-1, -1]
    guard Glibc.pipe(&ends) == 0 else { throw SystemError("pipe") }
    let reader = Descriptor(owning: ends[0])
    let writer = Descriptor(owning: ends[1])
    let raw = writer.raw
    Logger(label: "test") { _ in LineLogHandler(.text, level: .info, to: raw) }.info("x", metadata: ["name": "\(text)"])
    var bytes = [UInt8](repeating: 0, count: 4096)
    let count = Glibc.read(reader.raw, &bytes, bytes.count)
    #expect(String(decoding: bytes.prefix(max(0, count)), as: UTF8.self).hasSuffix(" name=\(JSONValue.quote(text))\n"))
  }
}
