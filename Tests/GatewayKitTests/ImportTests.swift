// Golden imports. Each file holds a configuration of ser2net, a line `----`, the configuration that it becomes, another
// such line, and what has no equivalent. A name that begins with "bad" expects no configuration. With GOLDEN_UPDATE in
// the environment the results are rewritten, for you to review and commit.

import Glibc
import StreamBroker
import Testing

@testable import GatewayKit

@Suite("An import from ser2net")
struct ImportTests {
  private static let folder = #filePath.replacing("ImportTests.swift", with: "ImportGolden")
  private static let divider = "----\n"
  static let names = goldenFiles(in: folder)

  @Test("gives the result that its golden file expects", arguments: names)
  func golden(name: String) throws {
    let (input, expected) = try Self.parts(of: name)
    let result = Self.result(of: input)
    if getenv("GOLDEN_UPDATE") != nil {
      try writeText(input + Self.divider + result, to: "\(Self.folder)/\(name)")
    }
    #expect(result == expected)
    #expect(name.hasPrefix("bad") == result.hasPrefix(Self.divider))
  }

  @Test("is a configuration that check accepts", arguments: names)
  func valid(name: String) throws {
    guard let made = try? Self.convert(try Self.parts(of: name).input) else {
      #expect(name.hasPrefix("bad"))
      return
    }
    let config = try Self.read(made.text)
    #expect(config.routes.count == made.routes)
    #expect(try Self.read(config.table) == config)
  }

  @Test("has at most 100 columns but for values")
  func width() throws {
    for name in Self.names {
      for line in (try? Self.convert(try Self.parts(of: name).input).text.split(separator: "\n")) ?? [] {
        let isComment = line.drop { $0 == " " }.hasPrefix("# ") && !line.contains("#   ")
        #expect(!isComment || line.count <= 104, "\(name): \(line)")
      }
    }
  }

  @Test("ends with a fault where a file is far too large")
  func bounds() {
    let connection = "connection: &a\n  accepter: tcp,1\n  connector: echo\n"
    let options = connection + "  options:\n" + String(repeating: "    x: y\n", count: 300)
    let doubled = (1...40).reduce("define: &n0 12345678\n") { $0 + "define: &n\($1) \"*(n\($1 - 1))*(n\($1 - 1))\"\n" }
    for (text, words) in [
      (String(repeating: connection, count: 2049), "6145:1: more than 2048 connections"),
      (options, "261:5: more than 256 options of one connection"),
      (doubled + connection, "11:1: a text of more than 4KiB"),
      (connection + String(repeating: "led: &l x\n", count: 1001), "1004:1: more than 1000 entries"),
      ("1:raw:0:/dev/x\n" + String(repeating: "x", count: 5000), "2:1: a line of more than 4KiB"),
    ] {
      #expect(Self.result(of: text).hasPrefix("----\nser2net.yaml:\(words)"), "\(Self.result(of: text).prefix(100))")
    }
  }

  @Test("of connections that all want one port comes to an end")
  func conflicts() throws {
    let all = (0..<300).map { "connection: &c\($0)\n  accepter: tcp,1\n  connector: echo\n" }.joined()
    let made = try Self.convert(all)
    #expect(made.routes == 1 && made.lostCount == 299)
  }

  // MARK: - Golden files

  private static func parts(of name: String) throws -> (input: String, expected: String) {
    let content = try String(decoding: readBytes("\(folder)/\(name)"), as: UTF8.self)
    let end = try #require(content.firstRange(of: divider))
    return (String(content[..<end.lowerBound]), String(content[end.upperBound...]))
  }

  private static func convert(_ input: String) throws(ConfigProblems) -> Ser2netImport {
    try Ser2netImport.convert(
      Array(input.utf8), file: "ser2net.yaml", in: ConfigEnvironment(variables: [:], directory: "."),
      broker: Gateway.broker)
  }

  private static func result(of input: String) -> String {
    do throws(ConfigProblems) {
      let made = try convert(input)
      return made.text + divider + (made.lost.map { "\($0)\n" } ?? "")
    } catch {
      return divider + "\(error)\n".replacing(Version.name, with: "Baudway VERSION")
    }
  }

  /// With schemes that this build has in the place of those that it lacks.
  private static func read(_ text: String) throws(ConfigProblems) -> Config {
    var text = text
    for (scheme, other) in [("telnet", "tcp"), ("telnets", "tls")] where !ListenerSchemes.built.contains(scheme) {
      text.replace("\(scheme)://", with: "\(other)://")
    }
    if !Gateway.broker.schemes.contains("rfc2217") { text.replace("rfc2217://192.0.2.1:2000", with: "sim://echo") }
    return try ConfigFile.read(Array(text.utf8))
  }
}

func goldenFiles(in folder: String) -> [String] {
  guard let directory = opendir(folder) else { return [] }
  defer { closedir(directory) }
  var names: [String] = []
  while let entry = readdir(directory) {
    let name = withUnsafePointer(to: &entry.pointee.d_name) {
      $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
    }
    if name.hasSuffix(".golden") { names.append(name) }
  }
  return names.sorted()
}
