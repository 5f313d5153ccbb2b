// Finds every key of config.yaml in the tables, gives it other values, and expects the change everywhere a key is
// visible: in Config, in the output of `check`, and in a reload's report. A new key needs nothing here, unless its kind
// is not enough to make a valid value.

import StreamBroker
import Testing

@testable import GatewayKit

@Suite("A key of the configuration")
struct ConfigKeysTests {
  @Test("changes its own property, its own line of `check` and its own name in a reload's report", arguments: Leaf.all)
  func everywhere(leaf: Leaf) throws {
    let base = try Self.read(Self.base)
    let shownBefore = try Self.shown(base.table)
    var count = 0
    for text in leaf.texts {
      let before = shownBefore[leaf.path].flatMap { try? leaf.value($0) }
      guard try leaf.value(text) != before else { continue }
      let new = try Self.read(Self.base.merging([leaf.path: text]) { $1 })
      let note: Comment = "\(leaf.path): \(text)"

      let properties = Set(Self.properties(in: new, unlike: base))
      #expect(properties.contains(Self.property(of: leaf)), note)
      #expect(properties.isSubset(of: Self.mayChange(leaf, Self.property(of: leaf))), note)

      let shown = try Self.shown(new.table)
      let value = try leaf.value(try #require(shown[leaf.path], note))
      #expect(leaf.isSecret ? shown[leaf.path] == "***" : try value == leaf.value(text), note)
      let lines = Set(shown.keys).union(shownBefore.keys).filter { shown[$0] != shownBefore[$0] }
      #expect(Set(lines).isSubset(of: Self.mayChange(leaf, leaf.path)), note)

      let report = ReloadPlan(from: base, to: new).report
      let names = Set(report.settings + report.changed.flatMap(\.keys))
      #expect(names.contains(Self.reported(leaf)), note)
      #expect(names.isSubset(of: Self.mayChange(leaf, Self.reported(leaf), prefix: "")), note)
      count += 1
    }
    #expect(count > 0 || leaf.path == "version", "no other value for \(leaf.path)")
  }

  @Test("has the default that the schema names", arguments: Leaf.all)
  func defaults(leaf: Leaf) throws {
    let name = leaf.path.replacing("routes.lab.", with: "")
    guard let standard = leaf.key.standard, Self.base[leaf.path] == nil, Self.base["defaults.\(name)"] == nil else {
      return
    }
    let shown = try Self.shown(try Self.read(Self.base.merging(["defaults.clients.writers": "one"]) { $1 }).table)
    #expect(try leaf.value(try #require(shown[leaf.path])) == leaf.value(standard))
  }

  // MARK: - The configuration whose keys are changed, one at a time

  /// By dotted names. Keys for shared links only are inherited from the defaults, so that `link` can be changed, too.
  private static let base = [
    "admin.listen": "http://127.0.0.1:4000", "users.ada.certificate": "CN=ada", "users.ada.roles.lab": "writer",
    "defaults.clients.writers": "one", "defaults.device.flush": "none", "defaults.capture.file": "x-{date}",
    "routes.lab.listen": "wss://127.0.0.1:4001", "routes.lab.endpoint": "sim://echo",
    "routes.lab.clients.max": "9", "routes.lab.clients.buffer": "64KiB", "routes.lab.clients.per-address": "3",
    "routes.lab.tls.certificate": "/a.pem", "routes.lab.tls.key": "/a.key", "routes.lab.tls.client-ca": "/ca.pem",
    "routes.lab.tls.certificates.certificate": "/b.pem", "routes.lab.tls.certificates.key": "/b.key",
    "routes.lab.packets.max": "100",
  ]

  private static func read(_ texts: [String: String]) throws -> Config {
    try ConfigFile.read(Array(yaml(texts.map { ($0.key.split(separator: ".").map(String.init), $0.value) }).utf8))
  }

  private static func yaml(_ texts: [(path: [String], text: String)]) -> String {
    if texts.count == 1, texts[0].path.isEmpty { return "'\(texts[0].text)'" }
    let parts = Dictionary(grouping: texts) { $0.path[0] }.sorted { $0.key < $1.key }
    let items = parts.map { name, texts in "\(name): \(yaml(texts.map { (Array($0.path.dropFirst()), $0.text) }))" }
    return "{ \(items.joined(separator: ", ")) }"
  }

  /// Values in the output of `check`, by dotted names.
  private static func shown(_ table: String) throws -> [String: String] {
    var shown: [String: String] = [:]
    func walk(_ node: YAMLNode, _ path: String) {
      switch node.content {
      case .scalar(let scalar): shown[path] = scalar.text
      case .sequence(let items):
        for item in items { walk(item, path) }
      case .mapping(let pairs):
        for pair in pairs {
          guard case .scalar(let key) = pair.key.content else { continue }
          walk(pair.value, path.isEmpty ? key.text : "\(path).\(key.text)")
        }
      }
    }
    walk(try #require(try YAMLParser.parse(Array(table.utf8))), "")
    return shown
  }

  // MARK: - Where a change is visible

  /// Properties whose names differ from their keys.
  private static let propertyNames = [
    "users.ada.token": "users.ada.tokens", "users.ada.certificate": "users.ada.certificates",
    "users.ada.roles.lab": "users.ada.roles", "routes.lab.tls.certificate": "routes.lab.tls.certificates",
    "routes.lab.tls.key": "routes.lab.tls.certificates",
    "routes.lab.tls.certificates.certificate": "routes.lab.tls.certificates",
    "routes.lab.tls.certificates.key": "routes.lab.tls.certificates",
  ]

  private static func property(of leaf: Leaf) -> String { propertyNames[leaf.path] ?? leaf.path }

  /// The name in a reload's report. Users are compared whole, and so are further certificates.
  private static func reported(_ leaf: Leaf) -> String {
    if leaf.path.hasPrefix("users.") { return "users" }
    if leaf.path.contains(".certificates.") { return "tls.certificates" }
    return leaf.path.replacing("routes.lab.", with: "")
  }

  /// Other properties that a key changes by its meaning.
  private static let consequences = [
    "routes.lab.clients.writers": ["clients.takeover"],
    "routes.lab.link": [
      "clients.writers", "clients.takeover", "clients.backlog", "clients.half-close", "clients.refuse-http",
      "device.open", "device.linger", "device.retry", "device.absent", "device.flush",
      "device.reset", "capture", "capture.file", "capture.format", "capture.rotate", "capture.rotate-every",
      "capture.keep",
    ],
  ]

  private static func mayChange(_ leaf: Leaf, _ name: String, prefix: String = "routes.lab.") -> Set<String> {
    Set((consequences[leaf.path] ?? []).map { prefix + $0 } + [name])
  }

  /// Dotted names of the properties of `Config` that differ. Uses reflection instead of the tables under test.
  private static func properties(in new: Any, unlike old: Any, _ path: String = "") -> [String] {
    if let new = new as? any Hashable, let old = old as? any Hashable, AnyHashable(new) == AnyHashable(old) {
      return []
    }
    let (one, other) = (Mirror(reflecting: new), Mirror(reflecting: old))
    if one.displayStyle == .optional, let new = one.children.first, let old = other.children.first {
      return properties(in: new.value, unlike: old.value, path)
    }
    if let new = new as? [Config.Route], let old = old as? [Config.Route] {
      return properties(in: new[0], unlike: old[0], "\(path).\(new[0].name)")
    }
    if let new = new as? [Config.User], let old = old as? [Config.User] {
      return properties(in: new[0], unlike: old[0], "\(path).\(new[0].name)")
    }
    guard one.displayStyle == .struct, String(reflecting: type(of: new)).hasPrefix("GatewayKit.Config") else {
      // Both are derived from users and clients.users.
      return ["routes.lab.access", "routes.lab.terminals"].contains(path) ? [] : [path]
    }
    return zip(one.children, other.children).flatMap { new, old in
      let name = dashed(new.label ?? "")
      return properties(in: new.value, unlike: old.value, path.isEmpty ? name : "\(path).\(name)")
    }
  }

  /// idleTimeout → idle-timeout, clientCA → client-ca
  private static func dashed(_ name: String) -> String {
    name.reduce(into: "") { text, letter in
      text +=
        letter.isUppercase && text.last?.isLowercase == true && !(name.hasSuffix("CA") && text.hasSuffix("c"))
        ? "-\(letter.lowercased())" : letter.lowercased()
    }
  }
}

/// A key with a value, supported by this build.
struct Leaf: Sendable, CustomTestStringConvertible {
  let path: String
  let key: ConfigKey

  var testDescription: String { path }

  /// `defaults` and the top-level `tls` have the same keys as a route; `include` has none of its own.
  static let all = ConfigKeys.top.filter { !["defaults", "tls", "include"].contains($0.name) }
    .flatMap { leaves($0, "") }

  private static func leaves(_ key: ConfigKey, _ above: String) -> [Leaf] {
    guard key.support(with: ListenerSchemes.built) == .built else { return [] }
    let path = above.isEmpty ? key.name : "\(above).\(key.name)"
    switch key.shape {
    case .value, .list, .url: return [Leaf(path: path, key: key)]
    case .mapping(let keys), .switched(let keys), .mappings(let keys): return keys.flatMap { leaves($0, path) }
    case .named(let shape, _): return leaves(ConfigKey(key.name == "users" ? "ada" : "lab", shape), path)
    }
  }

  private var kind: ValueKind? {
    switch key.shape {
    case .value(let kind), .list(let kind): kind
    default: nil
    }
  }

  var isSecret: Bool { kind?.isSecret ?? false }

  func value(_ text: String) throws -> Value { try kind?.read(text) ?? .text(text) }

  /// Other values for keys whose kind does not show what is valid.
  private static let samples = [
    "admin.listen": ["http://[::1]:4000"], "admin.hosts": ["gw.example.org"],
    "users.ada.password": ["$6$saltsalt$\(String(repeating: "a", count: 86))"],
    "users.ada.token": ["0123456789abcdef0123"],
    "routes.lab.listen": ["wss://127.0.0.1:4002/lab"], "routes.lab.endpoint": ["sim://sink"],
    "routes.lab.websocket.origins": ["https://lab.example"], "routes.lab.websocket.hosts": ["gw.example.org"],
  ]

  /// Values to try, as written in the file.
  var texts: [String] { Self.samples[path] ?? kind.map(Self.texts) ?? [] }

  private static func texts(_ kind: ValueKind) -> [String] {
    switch kind {
    case .text, .secret: ["ada", "bob"]
    case .path, .file: ["/one/file", "/another/file"]
    case .integer(let range), .size(let range): ["\(range.lowerBound + 1)", "\(range.lowerBound + 2)"]
    case .mode: ["0660", "0600"]
    case .duration(let range): [Units.text(range.lowerBound + .seconds(1)), Units.text(range.lowerBound + .seconds(2))]
    case .durations(let range): ["\(Units.text(range.lowerBound))..\(Units.text(range.lowerBound + .seconds(1)))"]
    case .flag: ["yes", "no"]
    case .words(let words): words
    case .uuid: ["1101", "1102"]
    case .network: ["10.0.0.0/8", "::1"]
    case .escapes: ["x", "y\\r"]
    case .resetRecipe: ResetRecipe.names + ["custom(dtr=off rts=on, 100ms, dtr=on !, 1s)"]
    case .prefixed(let word, let kind): texts(kind).map { "\(word):\($0)" }
    case .either(let one, let other): texts(one) + texts(other)
    }
  }
}
