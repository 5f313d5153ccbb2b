// The table of endings is a contract: the log, events, status, API and these tests use its words.

import StreamTestKit
import StreamWebSocket
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("An ending", .timeLimit(.minutes(5)))
struct EndingTests {
  static let table: [(word: String, fault: Ending.Fault)] = [
    ("client-left", .nobody), ("no-answer", .nobody),
    ("endpoint-left", .nobody), ("client-lost", .client), ("open-failed", .endpoint),
    ("device-lost", .endpoint), ("full", .nobody), ("queue-left", .nobody), ("denied", .client),
    ("login-failed", .client), ("protocol-error", .client), ("replaced", .policy),
    ("kicked", .policy), ("idle", .policy), ("too-slow", .policy), ("route-removed", .ourselves),
    ("shutdown", .ourselves), ("internal", .ourselves),
  ]

  @Test("has a word of the table, and the party at fault")
  func words() {
    #expect(Ending.Word.allCases.map(\.rawValue) == Self.table.map(\.word))
    #expect(Ending.Word.allCases.map(\.fault) == Self.table.map(\.fault))
  }

  @Test(
    "is client-lost where the connection breaks off, and protocol-error where the client broke the rules",
    arguments: [true, false])
  func webSocket(breaksOff: Bool) throws {
    let poller = try Poller { _ in }
    // The beginning of a frame, or an unmasked frame, which clients must not send.
    let below = ScriptedStream(reads: [.bytes(breaksOff ? [0x82] : [0x82, 1, 0]), .ended], takesAll: true)
    let stream = WebSocketStream(over: below, as: .server, .init(), on: poller)
    let error = #expect(throws: WebSocketFault.self) {
      while try stream.read() != .ended {}
    }
    #expect(Ending(brokenBy: try #require(error)).word == (breaksOff ? .clientLost : .protocolError))
    stream.close()
  }
}
