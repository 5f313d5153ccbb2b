// The table of endings is a contract: log, events, status, API and these tests use its words.

import StreamTestKit
import StreamWebSocket
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("An ending", .timeLimit(.minutes(1)))
struct EndingTests {
  static let table: [(word: String, fault: Ending.Fault)] = [
    ("client-left", .nobody), ("endpoint-left", .nobody), ("client-lost", .client), ("open-failed", .endpoint),
    ("device-lost", .endpoint), ("full", .nobody), ("queue-left", .nobody), ("denied", .client),
    ("login-failed", .client), ("protocol-error", .client), ("replaced", .policy),
    ("kicked", .policy), ("idle", .policy), ("too-slow", .policy), ("route-removed", .ourselves),
    ("shutdown", .ourselves), ("internal", .ourselves),
  ]

  @Test("has a word of the table, and whose fault it is")
  func words() {
    #expect(Ending.Word.allCases.map(\.rawValue) == Self.table.map(\.word))
    #expect(Ending.Word.allCases.map(\.fault) == Self.table.map(\.fault))
  }

  @Test(
    "is the client's loss where the connection breaks off, and his error where he broke the rules",
    arguments: [true, false])
  func webSocket(breaksOff: Bool) throws {
    let poller = try Poller { _ in }
    // The beginning of a frame, or a frame that no client sends.
    let below = ScriptedStream(reads: [.bytes(breaksOff ? [0x82] : [0x82, 1, 0]), .ended], takesAll: true)
    let stream = WebSocketStream(over: below, as: .server, .init(), on: poller)
    let error = #expect(throws: WebSocketFault.self) {
      while try stream.read() != .ended {}
    }
    #expect(Ending(brokenBy: try #require(error)).word == (breaksOff ? .clientLost : .protocolError))
    stream.close()
  }
}
