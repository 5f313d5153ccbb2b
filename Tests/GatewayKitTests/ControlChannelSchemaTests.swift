// Deploy/baudway.v1.schema.json is generated from the tables of requests and events; these tests keep it in step.

import Glibc
import StreamBroker
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The schema of baudway.v1")
struct ControlChannelSchemaTests {
  @Test("equals the text generated from the tables (GOLDEN_UPDATE rewrites it)")
  func inStep() throws {
    let path = #filePath.replacing(
      "Tests/GatewayKitTests/ControlChannelSchemaTests.swift", with: "Deploy/baudway.v1.schema.json")
    if getenv("GOLDEN_UPDATE") != nil { try writeText(ControlChannelSchema.text, to: path) }
    let isInStep = try String(decoding: readBytes(path), as: UTF8.self) == ControlChannelSchema.text
    #expect(
      isInStep,
      "GOLDEN_UPDATE=1 swift test --filter ControlChannelSchemaTests writes Deploy/baudway.v1.schema.json anew")
  }

  @Test("names every event, with all its keys")
  func events() throws {
    let schema = try JSONReader.read(ControlChannelSchema.text.utf8)
    let choices = try #require(schema["definitions"]?["event"]?["anyOf"]?.array)
    let all: [ControlChannelEvent] = [
      .hello(route: "r", session: 1, role: .monitor, user: "ada", banner: "hi"), .link(.waiting(.lost(nil))),
      .line(LineSettings()), .outputs(ModemOutputStates(dtr: true), isBreak: false),
      .modem([.cts], changes: 1), .errors(LineCounts()), .writer(holder: nil, isMine: false),
      .drops(bytes: 1, total: 2),
      .queue(position: 3), .lost(4),
      .end(.kicked, reason: "why"),
    ]
    #expect(choices.count == all.count)
    for (event, choice) in zip(all, choices) {
      let known = choice["properties"]?.members?.map(\.key) ?? []
      let said = event.json.members?.map(\.key) ?? []
      #expect(choice["properties"]?["event"]?["const"] == event.json["event"])
      #expect(Set(said) == Set(known), "\(event)")
      let required = choice["required"]?.array?.compactMap(\.text) ?? []
      #expect(required.allSatisfy { said.contains($0) })
    }
  }
}
