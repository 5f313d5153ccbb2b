// Deploy/config.schema.json is generated from the tables; these tests keep it in step. Tests/EndToEnd/test_schema.py
// checks with a validator what the schema accepts and rejects.

import Glibc
import StreamBroker
import Testing

@testable import GatewayKit

@Suite("The schema of the configuration")
struct ConfigSchemaTests {
  private static func path(_ name: String) -> String {
    #filePath.replacing("Tests/GatewayKitTests/ConfigSchemaTests.swift", with: name)
  }

  @Test("equals the text generated from the tables (GOLDEN_UPDATE rewrites it)")
  func inStep() throws {
    let path = Self.path("Deploy/config.schema.json")
    if getenv("GOLDEN_UPDATE") != nil { try writeText(ConfigSchema.text(), to: path) }
    let isInStep = try String(decoding: readBytes(path), as: UTF8.self) == ConfigSchema.text()
    #expect(isInStep, "GOLDEN_UPDATE=1 swift test --filter ConfigSchemaTests writes Deploy/config.schema.json anew")
  }

  @Test("matches a scheme with + or . literally")
  func pattern() {
    #expect(ConfigSchema.pattern("tcp") == "tcp" && ConfigSchema.pattern("tls+a.b-1") == #"tls\+a\.b-1"#)
  }

  @Test("is named where editors look for it", arguments: ["config.yaml", "Deploy/container.yaml"])
  func named(file: String) throws {
    let first = try String(decoding: readBytes(Self.path(file)), as: UTF8.self).prefix { $0 != "\n" }
    let name = try #require(first.wholeMatch(of: /# yaml-language-server: \$schema=(.+)/)?.1)
    let folder = file.contains("/") ? "Deploy/" : ""
    #expect(folder + name == "Deploy/config.schema.json")
  }

  @Test("describes every key in one line")
  func summaries() {
    for key in keys(ConfigKeys.top) {
      #expect((5...130).contains(key.summary.count) && !key.summary.contains("\n"), "\(key.name): \(key.summary)")
    }
  }

  private func keys(_ list: [ConfigKey]) -> [ConfigKey] { list.flatMap { [$0] + keys($0.shape) } }

  private func keys(_ shape: ConfigKey.Shape) -> [ConfigKey] {
    switch shape {
    case .value, .list, .url: []
    case .mapping(let inner), .switched(let inner), .mappings(let inner): keys(inner)
    case .named(let inner, _): keys(inner)
    }
  }
}
