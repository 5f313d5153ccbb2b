// Requests at the control socket: which are understood, which are refused, and that none traps.

import StreamBroker
import StreamTestKit
import Testing

@testable import GatewayKit

@Suite("A control request")
struct ControlRequestTests {
  private static let avr = try? ResetRecipe("avr")
  private static let custom = try? ResetRecipe("custom(dtr=off, 1ms, dtr=on)")

  static let understood: [(String, ControlRequest)] = [
    ("health", .health), ("status", .status), ("reload", .reload), ("  status\r", .status),
    ("reset gps", .link(route: "gps", .reset(nil))), ("reset gps avr", .link(route: "gps", .reset(avr))),
    ("reset gps custom(dtr=off, 1ms, dtr=on)", .link(route: "gps", .reset(custom))),
    (#"{"request":"reset","route":"gps","recipe":"avr"}"#, .link(route: "gps", .reset(avr))),
    (#"{"request":"reset","route":"gps"}"#, .link(route: "gps", .reset(nil))),
    ("release gps", .link(route: "gps", .release)), ("reopen gps", .link(route: "gps", .reopen)),
    (#"{"request":"release","route":"gps"}"#, .link(route: "gps", .release)),
    ("capture gps", .capture(route: "gps", .pcapng)), ("capture gps hex", .capture(route: "gps", .hex)),
    (#"{"request":"capture","route":"gps","format":"raw"}"#, .capture(route: "gps", .raw)),
    ("kick gps 17", .kick(route: "gps", sessions: [17])),
    ("kick gps 17 18\t19", .kick(route: "gps", sessions: [17, 18, 19])),
    ("kick gps --all", .kick(route: "gps", sessions: nil)),
    (#"{"request":"health"}"#, .health), (#"{"request":"status","protocol":1}"#, .status),
    (#"{ "request" : "reload" } "#, .reload),
    (#"{"request":"kick","route":"a b","sessions":[18446744073709551615]}"#, .kick(route: "a b", sessions: [.max])),
    (#"{"route":"x","all":true,"request":"kick"}"#, .kick(route: "x", sessions: nil)),
  ]

  @Test("is words or a JSON object", arguments: understood)
  func understands(line: String, request: ControlRequest) throws {
    #expect(try ControlRequest.parse(Array(line.utf8)) == request)
  }

  @Test("survives being written and read again", arguments: understood.map(\.1))
  func roundTrip(request: ControlRequest) throws {
    #expect(try ControlRequest.parse(Array(request.line.utf8)) == request)
  }

  static let refused: [(String, String)] = [
    ("", "an empty request"), (" ", "an empty request"), ("Health", "unknown request"),
    ("health now", "'health' takes no arguments"),
    ("reset", "'reset' needs a route"), ("reset gps arv", "did you mean 'avr'?"),
    (#"{"request":"reset"}"#, "the key 'route' is missing"),
    ("capture", "'capture' needs a route"), ("capture gps pcap", "'format' must be pcapng, text, hex or raw"),
    (#"{"request":"capture","route":"gps","format":1}"#, "'format' must be"),
    ("release", "'release' needs a route"), ("reopen gps now", "'reopen' needs a route"),
    (#"{"request":"release"}"#, "the key 'route' is missing"),
    (#"{"request":"reopen","route":"gps","recipe":"avr"}"#, "unknown key 'recipe'"),
    (#"{"request":"reset","route":"gps","recipe":1}"#, "'recipe' must be a text"),
    ("kick", "'kick' needs"), ("kick gps", "'kick' needs"), ("kick gps -1", "'-1' is not a session number"),
    ("kick gps 17 --all", "'--all' is not"), ("kick gps --all 17", "'--all' is not"),
    ("kick gps 18446744073709551616", "'18446744073709551616' is not"), ("kick gps +1", "'+1' is not"),
    ("kick gps ١", "'١' is not"), ("{", "not JSON at byte 1"), ("{}", "the key 'request' is missing"),
    (#"{"request":1}"#, "the key 'request' is missing"), (#"{"request":"coffee"}"#, "unknown request"),
    (#"{"request":"status","protocol":2}"#, "this gateway uses protocol 1"),
    (#"{"request":"status","route":"x"}"#, "unknown key 'route'"),
    (#"{"request":"status","request":"reload"}"#, "a key is given twice"),
    (#"{"request":"kick","route":"x"}"#, "'kick' needs"),
    (#"{"request":"kick","route":"x","sessions":[]}"#, "'kick' needs"),
    (#"{"request":"kick","route":"x","sessions":[1],"all":true}"#, "'kick' needs"),
    (#"{"request":"kick","route":"x","sessions":[1.5]}"#, "'sessions' must be numbers"),
    (#"{"request":"kick","route":"x","sesions":[1]}"#, "unknown key 'sesions'"),
    (#"{"request":"kick","sessions":[1]}"#, "the key 'route' is missing"),
    (String(repeating: "x", count: 1025), "at most 1024 bytes"),
  ]

  @Test("that is invalid is refused, with the reason", arguments: refused)
  func refuses(line: String, why: String) {
    do throws(ControlFault) {
      let request = try ControlRequest.parse(Array(line.utf8))
      Issue.record("\(line) was taken for \(request)")
    } catch {
      #expect(error.message.contains(why), "\(error.message)")
    }
  }

  @Test("of any bytes is parsed without a trap, and so is every prefix of a valid one")
  func anything() {
    var random = SeededRandom(seed: 4711)
    let samples = Self.understood.map { Array($0.0.utf8) }
    for sample in samples { for end in 0...sample.count { _ = try? ControlRequest.parse(sample[..<end]) } }
    for _ in 0..<20_000 {
      var line = samples.randomElement(using: &random)!
      for _ in 0..<Int.random(in: 1...4, using: &random) {
        let place = Int.random(in: 0...line.count, using: &random)
        switch Int.random(in: 0...2, using: &random) {
        case 0: line.insert(.random(in: 0...255, using: &random), at: place)
        case 1 where place < line.count: line.remove(at: place)
        default: if place < line.count { line[place] = .random(in: 0...255, using: &random) }
        }
      }
      if let request = try? ControlRequest.parse(line) {
        #expect((try? ControlRequest.parse(Array(request.line.utf8))) == request)
      }
    }
  }
}
