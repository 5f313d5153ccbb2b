// How settings are read: units, words, numbers, and the pitfalls of each.

import StreamBroker
import Testing

@Suite("A value")
struct ValueKindTests {
  @Test(
    "of time or size reads in its units and shows in the largest that fits",
    arguments: [
      ("0", "0s"), ("250ms", "250ms"), ("1000ms", "1s"), ("90s", "90s"), ("60m", "1h"), ("5m", "5m"),
      ("1.75ms", "1.75ms"), ("0.5s", "500ms"), ("1.000001ms", "1.000001ms"), ("0.5m", "30s"), ("2.50ms", "2.5ms"),
    ])
  func durations(text: String, shown: String) throws {
    #expect(try ValueKind.duration(.zero ... .seconds(86400)).read(text).description == shown)
  }

  @Test(arguments: [("64KiB", 65536, "64KiB"), ("10MB", 10_000_000, "10MB"), ("1500", 1500, "1500"), ("0", 0, "0")])
  func sizes(text: String, bytes: Int, shown: String) throws {
    let value = try ValueKind.size(0...(1 << 30)).read(text)
    #expect(value == .size(bytes) && value.description == shown)
  }

  @Test(
    "that is wrong gives an error with what is expected",
    arguments: [
      (
        ValueKind.duration(.zero ... .seconds(60)), "30",
        "expected a duration from 0s to 1m, such as 30s, not '30'; 30s"
      ),
      (
        .duration(.zero ... .seconds(60)), "9223372036854775807h",
        "expected a duration from 0s to 1m, such as 30s, not '9223372036854775807h'; "
      ),
      (.size(4096...65536), "64K", "expected a size from 4KiB to 64KiB, such as 64KiB, not '64K'; 64KiB"),
      (
        .size(4096...65536), "9223372036854775807GiB",
        "expected a size from 4KiB to 64KiB, such as 64KiB, not '9223372036854775807GiB'; "
      ),
      (.size(0...9), "-1", "expected a size from 0 to 9, such as 64KiB, not '-1'; "),
      (.integer(1...9), "0x5", "expected a whole number from 1 to 9, not '0x5'; "),
      (.integer(1...9), "٣", "expected a whole number from 1 to 9, not '٣'; "),
      (.integer(1...9), "", "expected a whole number from 1 to 9, not ''; "),
      (.flag, "ja", "expected yes or no (on or off), not 'ja'; "), (.secret, "", "expected a secret; "),
      (.mode, "0888", "expected permission bits in octal, such as 0660, not '0888'; "),
      (.network, "10.0.0.0/33", "expected an address or a network, such as 192.168.0.0/16, not '10.0.0.0/33'; "),
      (
        .durations(.zero ... .seconds(60)), "30s..1s",
        "expected a range of durations from 0s to 1m, such as 250ms..30s, not '30s..1s'; 1s..30s"
      ),
    ])
  func faults(kind: ValueKind, text: String, said: String) {
    let fault = #expect(throws: ValueFault.self) { try kind.read(text) }
    #expect(fault.map { "\($0.message); \($0.suggestion ?? "")" } == said)
  }

  @Test(
    "of each kind is understood",
    arguments: [
      (ValueKind.flag, "on", "yes"), (.flag, "False", "no"), (.network, "::1/128", "::1/128"), (.uuid, "1101", "1101"),
      (.durations(.zero ... .seconds(60)), "250ms..30s", "250ms..30s"), (.escapes, "a\\r\\n\\x1B", "a\\r\\n\\x1B"),
      (.either(.words(["refuse"]), .prefixed("idle", .duration(.zero ... .seconds(60)))), "idle:30s", "idle:30s"),
    ])
  func kinds(kind: ValueKind, text: String, shown: String) throws {
    #expect(try kind.read(text).description == shown)
  }

  @Test("is suggested for the names that other programs use, if there is an equivalent")
  func synonyms() {
    #expect(Suggestion.nearest(to: "certificate", in: ["ca", "cert", "key"]) == "cert")
    #expect(Suggestion.nearest(to: "cert", in: ["certificate", "key"]) == "certificate")
    #expect(Suggestion.nearest(to: "insecure", in: ["ca", "verify"]) == "verify=none")
    #expect(Suggestion.nearest(to: "insecure", in: ["baud"]) == nil)
  }

  @Test(
    "is quoted shortly in one line, with the nearest valid word",
    arguments: [("buad", "baud"), ("cleints", nil), ("x", nil), ("BAUD", "baud"), ("dataa", "data"), ("Speed", "baud")])
  func near(word: String, meant: String?) {
    #expect(Suggestion.nearest(to: word, in: ["baud", "data", "parity"]) == meant)
    #expect(
      Suggestion.quote("a\nb" + String(repeating: "x", count: 50)) == "'a\\nb\(String(repeating: "x", count: 37))…'")
  }
}
