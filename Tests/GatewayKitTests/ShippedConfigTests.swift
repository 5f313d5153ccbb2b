// The shipped config.yaml is the manual of its format; these tests keep it in step with the table of keys.

import StreamBroker
import Testing

@testable import GatewayKit

@Suite("The shipped config.yaml")
struct ShippedConfigTests {
  private let text: String

  init() throws {
    let path = #filePath.replacing("Tests/GatewayKitTests/ShippedConfigTests.swift", with: "config.yaml")
    text = try String(decoding: readBytes(path), as: UTF8.self)
  }

  private func read(_ text: String) throws(ConfigProblems) -> Config {
    try ConfigFile.read(Array(text.utf8))
  }

  @Test("is safe as it is: simulated devices, and only loopback addresses")
  func safe() throws {
    let config = try read(text)
    #expect(config.routes.map(\.name) == ["gps", "echo", "console"])
    #expect(config.routes.map(\.endpoint.description) == ["sim://nmea?rate=1", "sim://echo", "sim://console"])
    #expect(config.routes.flatMap(\.listen).map(\.url.target) == (1...3).map { "tcp://127.0.0.1:400\($0)" })
  }

  @Test("contains only defaults")
  func defaults() throws {
    let bare = config(of: try read(text).routes)
    #expect(try read(text) == read(bare))
  }

  private func config(of routes: [Config.Route]) -> String {
    let items = routes.map { "\($0.name): { listen: '\($0.listen[0].url)', endpoint: '\($0.endpoint)' }" }
    return "routes: { \(items.joined(separator: ", ")) }"
  }

  @Test("is right in its commented-out lines, except for keys that this version lacks")
  func comments() {
    let lines = text.split(separator: "\n", omittingEmptySubsequences: false).map { line in
      let indent = line.prefix { $0 == " " }
      let rest = line.dropFirst(indent.count)
      return rest.hasPrefix("#") && rest.count > 1 && !rest.hasPrefix("# ") ? indent + rest.dropFirst() : line
    }
    let problems = #expect(throws: ConfigProblems.self) { try read(lines.joined(separator: "\n")) }
    #expect(problems?.list.count ?? 0 > 0)
    for problem in problems?.list ?? [] { #expect(problem.message.hasSuffix("not in \(Version.name)"), "\(problem)") }
  }

  @Test("names every key of the table")
  func complete() {
    for key in keys(ConfigKeys.top) { #expect(text.contains("\(key):"), "\(key)") }
    for parameter in EndpointSchemes.grammar("tty")!.parameters { #expect(text.contains("\(parameter.name):")) }
  }

  private func keys(_ list: [ConfigKey]) -> [String] { list.flatMap { [$0.name] + keys($0.shape) } }

  private func keys(_ shape: ConfigKey.Shape) -> [String] {
    switch shape {
    case .value, .list, .url: []
    case .mapping(let inner), .switched(let inner), .mappings(let inner): keys(inner)
    case .named(let inner, _): keys(inner)
    }
  }
}
