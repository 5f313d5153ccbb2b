// JSON both ways: other parsers accept what we write, and we read others' JSON strictly.

import FoundationEssentials
import StreamTestKit
import Testing

@testable import GatewayKit

@Suite("JSON")
struct JSONTests {
  static let good: [(String, JSONValue)] = [
    ("null", .null), (" true ", .bool(true)), ("0", .integer(0)), ("18446744073709551615", .integer(UInt64.max)),
    ("18446744073709551616", .decimal(18446744073709551616)), ("-0", .integer(0)), ("1.5e3", .integer(1500)),
    ("17.0", .integer(17)), ("1.7E1", .integer(17)), ("170e-1", .integer(17)), ("0.17", .decimal(0.17)),
    ("-17.0", .decimal(-17)), ("17.5", .decimal(17.5)), ("1e19", .integer(10_000_000_000_000_000_000 as UInt64)),
    ("1e20", .decimal(1e20)), ("9007199254740993", .integer(9_007_199_254_740_993)),
    ("\"\"", .text("")), (#""é😀\u00e9\ud83d\ude00\n\/\"""#, .text("é😀é😀\n/\"")), ("[]", .array([])),
    ("[1, 2]", .array([.integer(1), .integer(2)])),
    ("{ }", .object([])), (#"{"a":{"b":[null]}}"#, .object(["a": .object(["b": .array([.null])])])),
  ]

  @Test("is read", arguments: good)
  func reads(text: String, value: JSONValue) throws {
    #expect(try JSONReader.read(text.utf8) == value)
    #expect(try JSONReader.read(value.description.utf8) == value)
  }

  @Test(
    "that is invalid is refused",
    arguments: [
      "", " ", "nul", "True", "01", "1.", ".5", "+1", "1e", "--1", "1e999", "\"", "\"\\x\"", "\"\\u12\"", "\"\\ud800\"",
      "\"\\ud800\\u0041\"", "\"\\udc00\"", "\"a\nb\"", "[", "[1", "[1,]", "[,]", "{", "{a:1}", "{\"a\"}", "{\"a\":}",
      "{\"a\":1,}", "1 2",
      "'a'", "// x\n1", String(repeating: "[", count: 100_000),
    ])
  func refuses(text: String) {
    #expect(throws: JSONFault.self) { try JSONReader.read(text.utf8) }
  }

  @Test(
    "that is not UTF-8 is refused",
    arguments: [[0x22, 0xff, 0x22], [0x22, 0xc3, 0x22], [0x22, 0xed, 0xa0, 0x80, 0x22]])
  func encoding(bytes: [UInt8]) {
    #expect(throws: JSONFault.self) { try JSONReader.read(bytes) }
  }

  @Test("that we write is valid for another parser")
  func others() throws {
    let hostile = "\"\\\n\r\t\u{0}\u{1b}[31m\u{7f}\u{9b}é😀\u{2028}"
    let text = JSONValue.object([
      "text": .text(hostile), hostile: .integer(7), "absent": nil, "seconds": .seconds(1_234_567_890),
    ]).description
    let object = try JSONDecoder().decode([String: Either].self, from: Data(text.utf8))
    #expect(object == ["text": .text(hostile), hostile: .number(7), "seconds": .number(1.234)])
    #expect(text.unicodeScalars.allSatisfy { !JSONValue.isControl($0) })
  }

  private enum Either: Decodable, Equatable {
    case text(String), number(Double)
    init(from decoder: any Decoder) throws {
      let box = try decoder.singleValueContainer()
      if let number = try? box.decode(Double.self) {
        self = .number(number)
      } else {
        self = .text(try box.decode(String.self))
      }
    }
  }

  @Test("of any bytes is parsed without a trap, and survives being written and read again")
  func anything() throws {
    var random = SeededRandom(seed: 7)
    let samples = Self.good.map { Array($0.0.utf8) }
    for _ in 0..<20_000 {
      var bytes = samples.randomElement(using: &random)! + samples.randomElement(using: &random)!
      for _ in 0..<Int.random(in: 1...3, using: &random) {
        bytes[Int.random(in: 0..<bytes.count, using: &random)] = .random(in: 0...255, using: &random)
      }
      if let value = try? JSONReader.read(bytes) { #expect(try JSONReader.read(value.description.utf8) == value) }
    }
  }
}
