// Requests of `baudway.v1`, as bytes.

import StreamBroker
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("A request of baudway.v1", .timeLimit(.minutes(5)))
struct ControlChannelRequestTests {
  @Test(
    "is read",
    arguments: [
      (#"{"request":"line","baud":9600}"#, ControlChannelRequest.line(.init(bitsPerSecond: 9600))),
      (
        #"{"request":"line","data":7,"parity":"even","stop":2,"flow":"rtscts"}"#,
        .line(.init(dataBits: 7, parity: .even, stopBits: .two, flowControl: .rtscts))
      ),
      (#"{"request":"line","stop":1.5}"#, .line(.init(stopBits: .oneAndHalf))),
      (
        #"{"request":"line","baud":9600.0,"data":8e0,"stop":2.0}"#,
        .line(.init(bitsPerSecond: 9600, dataBits: 8, stopBits: .two))
      ),
      (#"{"request":"dtr","on":true}"#, .output(.dtr, isOn: true)),
      (#"{"request":"rts","on":false}"#, .output(.rts, isOn: false)),
      (#"{"request":"break","on":true}"#, .break(isOn: true)),
      (#"{"request":"break","ms":250}"#, .breakFor(.milliseconds(250))),
      (#"{"request":"purge","what":"input"}"#, .purge(.input)),
      (#"{"request":"writer","wish":"take"}"#, .writer(.take)),
      (#"{"request":"watch","on":true}"#, .watch(isOn: true)), (#" {"id":7,"request":"status"} "#, .status),
    ])
  func good(text: String, request: ControlChannelRequest) throws {
    #expect(try ControlChannelRequest.parse(Array(text.utf8)).request == request)
  }

  @Test("for other than five data bits makes two stop bits of one and a half, unless it asks for them")
  func oneAndHalf() {
    let five = LineSettings(dataBits: 5, stopBits: .oneAndHalf)
    #expect(ControlChannelRequest.LineChange(dataBits: 6).applied(to: five).stopBits == .two)
    #expect(ControlChannelRequest.LineChange(parity: .even).applied(to: five).stopBits == .oneAndHalf)
    let seven = LineSettings(dataBits: 7, stopBits: .oneAndHalf)
    #expect(ControlChannelRequest.LineChange().applied(to: seven) == seven, "a request that changes nothing")
    let asked = ControlChannelRequest.LineChange(dataBits: 6, stopBits: .oneAndHalf)
    #expect(asked.applied(to: five).stopBits == .oneAndHalf)
  }

  @Test(
    "that is wrong is refused with the reason, and with what was probably meant",
    arguments: [
      ("", "not JSON at byte 0: a value is missing", nil), ("[]", "a request must be an object", nil),
      ("{}", "'request' is missing, such as \"request\":\"line\"", nil),
      (
        #"{"request":"lien","baud":1}"#,
        "unknown request 'lien'; expected line, dtr, rts, break, purge, writer, watch or status",
        "line"
      ),
      (#"{"request":"line","buad":1}"#, "'line' has no key 'buad'", "baud"),
      (#"{"request":"line"}"#, "'line' needs 'baud', 'data', 'parity', 'stop' or 'flow'", nil),
      (#"{"request":"line","baud":0}"#, "'baud' must be a whole number from 1 to 20000000", nil),
      (#"{"request":"line","baud":-1}"#, "'baud' must be a whole number from 1 to 20000000", nil),
      (#"{"request":"line","baud":"9600"}"#, "'baud' must be a whole number from 1 to 20000000", nil),
      (#"{"request":"line","parity":"evn"}"#, "'parity' must be none, even, odd, mark or space", "even"),
      (#"{"request":"line","stop":3}"#, "'stop' must be 1, 1.5 or 2", nil),
      (#"{"request":"dtr","on":1}"#, "'on' must be true or false", nil),
      (#"{"request":"break","on":true,"ms":1}"#, "'break' takes 'on' or 'ms', not both", nil),
      (#"{"request":"break","ms":5001}"#, "'ms' must be a whole number from 1 to 5000", nil),
      (#"{"request":"purge"}"#, "'purge' needs 'what'", nil),
      (#"{"request":"status","x":1}"#, "'status' has no key 'x'", nil),
      (#"{"request":"status","request":"status"}"#, "a key is given twice", nil),
      (#"{"request":"status","id":-1}"#, "an id must be a whole number from 0, or a text of up to 64 bytes", nil),
      (#"{"request":"status","id":null}"#, "an id must be a whole number from 0, or a text of up to 64 bytes", nil),
    ])
  func wrong(text: String, message: String, suggestion: String?) {
    do throws(ControlChannelRequest.Fault) {
      _ = try ControlChannelRequest.parse(Array(text.utf8))
      Issue.record("\(text) is taken")
    } catch {
      #expect(error.message == message && error.suggestion == suggestion)
    }
  }

  @Test("keeps its id, also when it is wrong")
  func ids() throws {
    #expect(try ControlChannelRequest.parse(Array(#"{"request":"status","id":"a\n"}"#.utf8)).id == .text("a\n"))
    #expect(try ControlChannelRequest.parse(Array(#"{"request":"status","id":17.0}"#.utf8)).id == .integer(17))
    do throws(ControlChannelRequest.Fault) {
      _ = try ControlChannelRequest.parse(Array(#"{"request":"x","id":18446744073709551615}"#.utf8))
    } catch { #expect(error.id == .integer(UInt64.max)) }
  }

  @Test("has at most 4096 bytes, and deep nesting does no harm")
  func bounded() throws {
    let request = #"{"request":"status"}"#
    _ = try ControlChannelRequest.parse(
      Array((request + String(repeating: " ", count: 4096 - request.utf8.count)).utf8))
    #expect(throws: ControlChannelRequest.Fault.self) {
      try ControlChannelRequest.parse(Array((request + String(repeating: " ", count: 4097 - request.utf8.count)).utf8))
    }
    for text in [
      "{\"request\":\"status\",\"id\":\"\(String(repeating: "x", count: 4096))\"}", String(repeating: "[", count: 4096),
    ] {
      #expect(throws: ControlChannelRequest.Fault.self) { try ControlChannelRequest.parse(Array(text.utf8)) }
    }
  }
}
