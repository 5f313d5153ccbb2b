// Golden configurations. Each file holds a configuration, a line `----`, and the expected result: the problems, or the
// table that `check` prints. A file whose name begins with "warned" expects the warnings. A first line `# listeners:
// ws` allows listener schemes that this build lacks. With GOLDEN_UPDATE in the environment the second part is
// rewritten, for you to review and commit.

import Glibc
import StreamBroker
import Testing

@testable import GatewayKit

@Suite("A config file")
struct ConfigGoldenTests {
  private static let folder = #filePath.replacing("ConfigGoldenTests.swift", with: "Golden")
  private static let environment = ["PORT": "4001", "BAUD": "9600", "EMPTY": ""]

  static let names = goldenFiles(in: folder)

  @Test("gives the result that its golden file expects", arguments: names)
  func golden(name: String) throws {
    let path = "\(Self.folder)/\(name)"
    let content = try String(decoding: readBytes(path), as: UTF8.self)
    let divider = try #require(content.firstRange(of: "----\n"))
    let text = String(content[..<divider.lowerBound])
    let answer = name.hasPrefix("warned") ? try Self.warnings(of: text) : Self.answer(to: text)
    if getenv("GOLDEN_UPDATE") != nil { try writeText(content[..<divider.upperBound] + answer, to: path) }
    #expect(answer == content[divider.upperBound...])
    #expect(name.hasPrefix("good") == answer.hasPrefix("version: 1\n"))
  }

  @Test("that is valid means the same when its table is read again", arguments: names.filter { $0.hasPrefix("good") })
  func again(name: String) throws {
    let content = try String(decoding: readBytes("\(Self.folder)/\(name)"), as: UTF8.self)
    let divider = try #require(content.firstRange(of: "----\n"))
    let text = String(content[..<divider.lowerBound])
    let config = try Self.read(text)
    #expect(try Self.read(Self.listeners(of: text).line + Self.withSecrets(config.table)) == Self.withSecrets(config))
  }

  @Test("has enough golden files")
  func complete() { #expect(Self.names.count > 20) }

  private static func read(_ text: String) throws(ConfigProblems) -> Config {
    try ConfigFile.read(Array(text.utf8), environment: environment, listeners: listeners(of: text).schemes)
  }

  private static func listeners(of text: String) -> (line: String, schemes: Set<String>) {
    let mark = "# listeners: "
    guard text.hasPrefix(mark) else { return ("", ListenerSchemes.built) }
    let line = text.prefix { $0 != "\n" }
    return ("\(line)\n", ListenerSchemes.built.union(line.dropFirst(mark.count).split(separator: " ").map(String.init)))
  }

  // Secrets are masked in the table; otherwise it means the same.
  private static let hash = "$6$a$\(String(repeating: "b", count: 86))"
  private static func withSecrets(_ table: String) -> String {
    table.replacing("password: '***'", with: "password: '\(hash)'").replacing("token: '***'", with: "certificate: CN=t")
  }
  private static func withSecrets(_ config: Config) -> Config {
    let mask = Secret(hash)
    let users = config.users.map { user in
      Config.User(
        name: user.name, password: user.password.map { _ in mask }, tokens: [],
        certificates: user.certificates + user.tokens.map { _ in "CN=t" }, roles: user.roles)
    }
    let routes = config.routes.map { route in
      var route = route
      if route.access != .open { route.access = Access(users, route: route.name, only: route.access.only) }
      if route.terminals != .open { route.terminals = Access(users, route: route.name, only: route.terminals.only) }
      return route
    }
    var masked = config
    (masked.users, masked.routes) = (users, routes)
    return masked
  }

  private static func answer(to text: String) -> String {
    do throws(ConfigProblems) { return try read(text).table } catch { return withoutVersion("\(error)\n") }
  }

  private static func warnings(of text: String) throws -> String {
    let reader = ConfigReader(
      files: ["config.yaml"], broker: Gateway.broker, in: ConfigEnvironment(variables: environment, directory: "."))
    let root = try #require(try YAMLParser.parse(Array(text.utf8)))
    let warnings = try ConfigBuilder.examine(root, reader, opensFiles: false).warnings
    return withoutVersion(warnings.map { "\($0)\n" }.joined())
  }

  private static func withoutVersion(_ text: String) -> String { text.replacing(Version.name, with: "Baudway VERSION") }
}

func readBytes(_ path: String) throws -> [UInt8] {
  let file = try #require(fopen(path, "r"), "\(path)")
  defer { fclose(file) }
  var bytes = [UInt8](repeating: 0, count: 2 << 20)
  return Array(bytes[..<fread(&bytes, 1, bytes.count, file)])
}

func writeText(_ text: some StringProtocol, to path: String) throws {
  let file = try #require(fopen(path, "w"), "\(path)")
  defer { fclose(file) }
  fputs(String(text), file)
}
