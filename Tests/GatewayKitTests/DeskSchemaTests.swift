// Deploy/baudway.v1.schema.json is made by code from the tables of requests and events; this keeps it in step.

import Glibc
import StreamBroker
import Testing

@testable import ByteStreams
@testable import GatewayKit

@Suite("The schema of baudway.v1")
struct DeskSchemaTests {
  @Test("is what the tables say; with GOLDEN_UPDATE in the environment it is written anew")
  func inStep() throws {
    let path = #filePath.replacing("Tests/GatewayKitTests/DeskSchemaTests.swift", with: "Deploy/baudway.v1.schema.json")
    if getenv("GOLDEN_UPDATE") != nil { try writeText(DeskSchema.text, to: path) }
    let isInStep = try String(decoding: readBytes(path), as: UTF8.self) == DeskSchema.text
    #expect(isInStep, "GOLDEN_UPDATE=1 swift test --filter DeskSchemaTests writes Deploy/baudway.v1.schema.json anew")
  }

  @Test("names every event there is, with every key it has")
  func events() throws {
    let schema = try JSONReader.read(DeskSchema.text.utf8)
    let choices = try #require(schema["definitions"]?["event"]?["anyOf"]?.array)
    let all: [DeskEvent] = [
      .hello(route: "r", session: 1, role: .monitor, user: "ada", banner: "hi"), .link(.waiting(.lost(nil))),
      .line(LineSettings()),
      .modem([.cts], changes: 1), .errors(LineCounts()), .pen(holder: nil, isMine: false), .drops(bytes: 1, total: 2),
      .queue(place: 3), .lost(4),
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
