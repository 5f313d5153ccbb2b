// The table of endings is a contract: log, events, status, API and these tests use its words.

import Testing

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
}
