// Replays the seeds, the golden configs and the fuzzers' findings in every test run: the properties must hold without a
// fuzzer too.

import Glibc
import Testing

@Suite("A fuzzed property", .timeLimit(.minutes(20)))
struct ReplayTests {
  private static let here = #filePath.replacing("/Replay/ReplayTests.swift", with: "")

  /// One input, with a name for the failure message.
  struct Case {
    let name: String
    let bytes: [UInt8]
  }

  @Test("holds for every seed and every finding", arguments: Property.allCases)
  func replay(property: Property) throws {
    let check = try property.checker()
    let cases = try Self.cases(of: property)
    #expect(cases.count > 10)
    for item in cases {
      do throws(Broken) { try check(item.bytes) } catch { Issue.record("\(item.name): \(error)") }
    }
  }

  @Test("holds for every prefix of a seed, and with any byte changed", arguments: Property.allCases)
  func mutations(property: Property) throws {
    let check = try property.checker()
    // Tests/run sets it: all of them take two minutes, and under a sanitizer many.
    let every = getenv("REPLAY_EVERY").flatMap { Int(String(cString: $0)) } ?? 1
    for item in try Self.cases(of: property) where item.bytes.count <= 200 {
      for place in stride(from: item.bytes.count % every, to: item.bytes.count, by: every) {
        var changed = item.bytes
        changed[place] = UInt8(truncatingIfNeeded: place &* 37 &+ Int(changed[place]) &+ 1)
        for (bytes, what) in [(Array(item.bytes[..<place]), "cut at"), (changed, "changed at")] {
          do throws(Broken) { try check(bytes) } catch { Issue.record("\(item.name) \(what) \(place): \(error)") }
        }
      }
    }
  }

  // MARK: - Files

  /// Each line of a .txt file is a case; every other file is one. Of a golden config, the case is the part before the
  /// expected result. Tests/Fuzz/run makes the fuzzers' seeds in the same way.
  private static func cases(of property: Property) throws -> [Case] {
    var cases: [Case] = []
    for folder in ["corpus", "found"] {
      for name in names(in: "\(here)/\(folder)/\(property)") {
        let bytes = try content("\(here)/\(folder)/\(property)/\(name)")
        guard name.hasSuffix(".txt") else {
          cases.append(Case(name: name, bytes: bytes))
          continue
        }
        for (index, line) in bytes.split(separator: UInt8(ascii: "\n")).enumerated() {
          cases.append(Case(name: "\(name):\(index + 1)", bytes: Array(line)))
        }
      }
    }
    guard property == .config || property == .ser2net else { return cases }
    let golden = here.replacing("/Fuzz", with: "/GatewayKitTests/\(property == .config ? "" : "Import")Golden")
    for name in names(in: golden) where name.hasSuffix(".golden") {
      let text = String(decoding: try content("\(golden)/\(name)"), as: UTF8.self)
      let end = text.firstRange(of: "----\n")?.lowerBound ?? text.endIndex
      cases.append(Case(name: name, bytes: Array(text[..<end].utf8)))
    }
    guard property == .config else { return cases }
    cases.append(Case(name: "config.yaml", bytes: try content(here.replacing("/Tests/Fuzz", with: "/config.yaml"))))
    return cases
  }

  private static func names(in folder: String) -> [String] {
    guard let directory = opendir(folder) else { return [] }
    defer { closedir(directory) }
    var names: [String] = []
    while let entry = readdir(directory) {
      let name = withUnsafePointer(to: &entry.pointee.d_name) {
        $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
      }
      if !name.hasPrefix(".") { names.append(name) }
    }
    return names.sorted()
  }

  private static func content(_ path: String) throws -> [UInt8] {
    let file = try #require(fopen(path, "r"), "\(path)")
    defer { fclose(file) }
    var bytes = [UInt8](repeating: 0, count: 2 << 20)
    return Array(bytes[..<fread(&bytes, 1, bytes.count, file)])
  }
}
